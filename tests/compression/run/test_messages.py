"""Exchanges by messages on Gloo, against the definition; failures end all of them."""

import os
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from headrace.compression.codecs.requests import AllGather, AllToAll
from headrace.compression.run.messages import Messages
from tests.conformance.launch import all_succeed

TIMEOUT_S = 30.0


RANK = """
import sys
from tests.compression.run import test_messages
test_messages.be_rank(*sys.argv[1:])
"""


def be_rank(ranks: str, store: str, name: str) -> None:
    """Run a function of this module in a group, in a process of its own."""
    rank = int(os.environ["RANK"])
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=int(ranks), timeout=timeout
    )
    globals()[name](rank, int(ranks))
    dist.destroy_process_group()


def _run(ranks: int, folder: Path, work: Callable[[int, int], None]) -> None:
    all_succeed(RANK, ranks, str(ranks), str(folder / "store"), work.__name__)


def _group() -> Any:
    return dist.distributed_c10d._get_default_group()  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def _payload(rank: int, number: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def _exchange_many(rank: int, ranks: int) -> None:
    """Many of both kinds and of several sizes under way at once, begun before others arrive."""
    messages = Messages(_group())
    sizes = (1, 7, 4096, 300_000)
    begun: list[tuple[Any, torch.Tensor, torch.Tensor]] = []
    for number, size in enumerate(sizes * 3):
        whole = torch.stack([_payload(r, number, ranks, size) for r in range(ranks)])
        if number % 2:
            shards = AllToAll(whole[rank].clone())
            begun.append((messages.begin(shards), shards.received, whole[:, rank]))
        else:
            every = torch.empty(ranks, ranks * size, dtype=torch.uint8)
            gathered = AllGather(whole[rank].reshape(-1).clone(), every)
            begun.append((messages.begin(gathered), every, whole.view(ranks, -1)))
        if number == 4:
            dist.barrier()  # a collective among messages that are under way
    for work, received, expected in begun:
        work.wait()
        assert work.is_completed()
        assert torch.equal(received, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_messages_exchange_what_collectives_would(ranks: int, tmp_path: Path) -> None:
    _run(ranks, tmp_path, _exchange_many)


def _one_leaves(rank: int, ranks: int) -> None:
    messages = Messages(_group())
    dist.barrier()
    if rank == ranks - 1:
        return  # its connections are closed, and it begins nothing
    closed = r"[Cc]losed|closure|reset"
    try:
        work = messages.begin(AllGather(torch.zeros(100), torch.zeros(ranks, 100)))
    except RuntimeError as error:  # it was gone already
        assert re.search(closed, str(error)), error
        return
    with pytest.raises(RuntimeError):
        work.wait(timedelta(seconds=2))
    messages.abort()
    with pytest.raises(RuntimeError, match=closed):
        work.wait(timedelta(seconds=TIMEOUT_S / 3))
    assert work.is_completed()


def test_messages_to_a_rank_that_is_gone_fail_soon(tmp_path: Path) -> None:
    _run(3, tmp_path, _one_leaves)


def _abort(rank: int, ranks: int) -> None:
    del ranks
    messages = Messages(_group())
    dist.barrier()
    if rank == 1:
        threading.Event().wait(1)  # takes part in nothing, but lives
        with pytest.raises(RuntimeError):
            dist.barrier()
        return
    work = messages.begin(AllToAll(torch.zeros(2, 10)))
    messages.abort()
    with pytest.raises(RuntimeError, match="closure"):
        work.wait(timedelta(seconds=TIMEOUT_S / 3))


def test_aborted_messages_fail_on_both_sides_at_once(tmp_path: Path) -> None:
    _run(2, tmp_path, _abort)


class _Unready:
    """Of a message that another thread waits for in vain."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def wait(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("closed"), MemoryError("no memory"), ValueError()])
def test_whatever_fails_ends_an_exchange(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MemoryError ended the thread, and the waits for it and for later exchanges did not."""
    monkeypatch.setattr(dist, "irecv", lambda *_, **__: _Unready(error))
    monkeypatch.setattr(dist, "isend", lambda *_, **__: _Unready(error))
    messages = Messages(cast(dist.ProcessGroup, SimpleNamespace(rank=lambda: 0, size=lambda: 2)))
    for _ in range(2):
        work = messages.begin(AllToAll(torch.zeros(2, 10)))
        with pytest.raises(RuntimeError, match=str(error) or type(error).__name__):
            work.wait(timedelta(seconds=2))
        assert work.is_completed()
