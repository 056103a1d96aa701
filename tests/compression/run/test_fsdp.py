"""Compressed gradients of fully sharded models in a job of two ranks: see fsdp_job.py."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from headrace.compression.run.shards import ShardedParameter
from tests.compression.run import fsdp_job
from tests.conformance.launch import outputs, ranks, results


@cache
def job(backend: str, how: str, count: int) -> list[dict[str, str]]:
    """By rank: check -> what went wrong ("" for nothing)."""
    script = Path(fsdp_job.__file__)
    with ranks(count, script, backend, how, GLOO_SOCKET_IFNAME="lo") as processes:
        return results(outputs(processes))


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize(
    ("backend", "device"),
    [
        pytest.param("gloo", "cpu", marks=pytest.mark.sampled(1)),
        pytest.param("headrace", "cpu", marks=pytest.mark.sampled(1)),
        pytest.param("gloo", "double", marks=pytest.mark.sampled(1)),
        pytest.param("headrace", "cuda", marks=gpu),
    ],
)
def test_fully_sharded(backend: str, device: str) -> None:
    checks = fsdp_job.STAGED if device == "double" else fsdp_job.CHECKS
    passed(backend, device, fsdp_job.RANKS, checks)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["gloo", "headrace"])
def test_another_number_of_ranks(backend: str) -> None:
    passed(backend, "resharded", 3, fsdp_job.RESHARDED)


def passed(backend: str, how: str, count: int, checks: Sequence[Callable[[], None]]) -> None:
    for rank, found in enumerate(job(backend, how, count)):
        assert set(found) == {check.__name__ for check in checks}
        for check, problem in found.items():
            assert not problem, f"{check} on rank {rank}:\n{problem}"


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize(("shape", "dim"), [((7, 3), 0), ((4,), 0), ((2, 30, 3), 1), ((1, 2), 0)])
def test_rows_are_those_of_fsdp(shape: tuple[int, ...], dim: int, shards: int) -> None:
    """Rows of the reduced gradient, as torch copies them in, and back to the parameter."""
    whole = torch.randn(shape, generator=torch.Generator().manual_seed(shards))
    padded = [*shape]
    padded[dim] = -(-shape[dim] // shards)
    column = ShardedParameter(
        name="p", shape=shape, padded=tuple(padded), shard=tuple(padded), dim=dim
    )
    given = torch.cat(whole.chunk(shards, dim)) if dim else whole  # as FSDP reorders it
    rows = torch._chunk_cat([given], 0, shards)
    split = column.split(whole, shards)
    assert torch.equal(torch.stack([shard.reshape(-1) for shard in split]), rows)
    assert torch.equal(column.join(split), whole)
    chunks = whole.chunk(shards, dim)
    empty = column.empty_shards(shards)
    assert [e.shape for e in empty[: len(chunks)]] == [c.shape for c in chunks]
    assert not any(e.numel() for e in empty[len(chunks) :])
    assert torch.equal(column.join([*chunks, *empty[len(chunks) :]]), whole)
