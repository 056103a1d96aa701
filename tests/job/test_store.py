"""torch's stores: what they are called, and errors that tell a lost one from absent ranks."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from headrace.errors import CommunicationError
from headrace.job.agreement import Proposer, own_connection, rank_names
from headrace.job.store import answering, describe_store, wait_for
from tests.conformance.launch import all_succeed

SERVER = """
import time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, 3, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(100)
"""

JOB = """
import os, signal, sys, torch, torch.distributed as dist, headrace.torch
from datetime import timedelta
port, pid, limit = int(sys.argv[1]), int(sys.argv[2]), timedelta(seconds=60)
rank = int(os.environ["RANK"])
store = dist.TCPStore("127.0.0.1", port, 3, False, limit)
dist.init_process_group("headrace", store=store, rank=rank, world_size=2, timeout=limit)
tensor = torch.ones(10)
dist.all_reduce(tensor)
if rank == 0:
    os.kill(pid, signal.SIGKILL)
dist.all_reduce(tensor)  # the group goes on without it
assert tensor[0].item() == 4.0
dist.monitored_barrier()  # was of the store
try:
    dist.new_group([0, 1], timeout=limit)
except RuntimeError as error:
    assert f"the store at 127.0.0.1:{port} does not answer" in str(error), error
    assert type(error).__name__ == "CommunicationError"
else:
    raise AssertionError("there is no store")
print("named", flush=True)
os._exit(0)  # torch's end of a group needs the store, too
"""


@pytest.fixture
def server() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def port_of(server: "subprocess.Popen[str]") -> int:
    assert server.stdout is not None
    return int(server.stdout.readline())


class At:
    """A store that is at some address."""

    host, port = "fd00::1", 5


def test_stores_are_called_by_where_they_are(tmp_path: Path) -> None:
    file = dist.FileStore(str(tmp_path / "store"), 1)
    assert (
        describe_store(dist.PrefixStore("a", file)) == f"the store in the file {tmp_path / 'store'}"
    )
    assert describe_store(dist.HashStore()) == "the store"
    assert describe_store(At()) == "the store at [fd00::1]:5"


def test_errors_of_a_store_that_answers_pass() -> None:
    store = dist.HashStore()
    with pytest.raises(RuntimeError, match="another") as raised, answering(store, "rank 0: test"):
        raise RuntimeError("another")
    assert not isinstance(raised.value, CommunicationError)
    assert not wait_for(store, ["never"], 0.01, "rank 0: test")
    store.set("there", "")
    assert wait_for(store, ["there"], 0.0, "rank 0: test")
    # of timedelta.max, which stands for a wait without end, it was an OverflowError
    assert wait_for(store, ["there"], timedelta.max.total_seconds(), "rank 0: test")


def test_changes_name_a_lost_store(server: "subprocess.Popen[str]") -> None:
    """They quoted torch's text of a broken pipe."""
    port = port_of(server)
    store: Any = dist.TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=5))
    proposer = Proposer(own_connection(store), rank_names(2))
    server.kill()
    server.wait()
    words = f"agreeing on a change: the store at 127.0.0.1:{port} does not answer"
    with pytest.raises(CommunicationError, match=words):
        proposer.propose("plan", b"")


def test_a_job_whose_store_ended_names_it(server: "subprocess.Popen[str]") -> None:
    """new_group raised torch's raw text, or blamed ranks that had come."""
    port = port_of(server)
    all_succeed(JOB, 2, str(port), str(server.pid))
