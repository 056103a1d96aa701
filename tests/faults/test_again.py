"""Groups that end in the middle of their work, and are made again in the same process."""

import logging
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace._native import DataType
from headrace.collectives.demand import Collective
from headrace.collectives.run.choose import Chooser
from headrace.errors import CommunicationError
from headrace.executor import Executor
from tests.conformance.groups import each, group
from tests.waiting import HANG_S, wait_until

RANKS = 3
WARM_UP, LIVES, ROUNDS = 10, 100, 3


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def held() -> tuple[int, int, int]:
    """Descriptors, Python's threads and the kernel's threads of this process."""
    descriptors, tasks = (len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task"))
    return descriptors, threading.active_count(), tasks


def left(before: tuple[int, int, int]) -> dict[str, tuple[int, int]]:
    """Return what there is more of than before, with both numbers.

    Less is no leak: a thread of an earlier test may have been on its way out.
    """
    names = ("descriptors", "Python's threads", "the kernel's threads")
    numbers = zip(names, before, held(), strict=True)
    return {name: (then, now) for name, then, now in numbers if now > then}


def live(shared_memory: bool) -> None:
    """Make a group, use it, and end it while a collective is under way."""
    errors: list[str] = []
    done = threading.Barrier(RANKS, timeout=HANG_S)

    def act(executor: Executor) -> None:
        choice = Chooser(RANKS).choose(Collective.ALLREDUCE, 1 << 18)
        loaded = executor.load(choice.program, choice.proof)
        data = np.full(1 << 16, executor.rank + 1.0, np.float32)
        rows = [(data.ctypes.data, data.size, 1, choice.chunks)]
        call = executor.prepare(loaded, rows, dtype=DataType.float32)
        executor.run(call)
        assert (data == 6.0).all()
        done.wait()
        if executor.rank == 0:
            executor.abort("a member left")
            return
        try:
            executor.run(call)
        except CommunicationError as error:
            errors.append(str(error))

    with group(RANKS, 1, shared_memory=shared_memory) as executors:
        each(executors, act)
    assert len(errors) == RANKS - 1
    assert all("rank 0 ended the group: a member left" in error for error in errors), errors


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_hundred_aborted_groups_leave_nothing_behind(
    shared_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # pytest keeps what ranks log when they fail
    for _ in range(WARM_UP):
        live(shared_memory)
    before, grown_mb = held(), list[float]()
    # A leak grows every time; what earlier tests left to the allocator does not.
    while len(grown_mb) < ROUNDS and min(grown_mb, default=np.inf) >= 1.0:
        memory = memory_mb()
        for _ in range(LIVES):
            live(shared_memory)
        grown_mb.append(memory_mb() - memory)
    # the kernel lets go of a thread a little after it was joined
    wait_until(lambda: not left(before), lambda: left(before))
    assert min(grown_mb) < 1.0, grown_mb
