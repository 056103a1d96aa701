"""A forked child (a data loader's worker) and the executors that are its parent's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.groups import group
from tests.conformance.launch import environment, outputs, ranks
from tests.forked import status_of_child
from tests.waiting import JOB_S

SAMPLED = pytest.mark.sampled(1)

CHILD = """
import gc, os, sys, threading, time
from headrace.executor import Executor

executors = [Executor(rank, 2, secret="s", threads=int(sys.argv[1])) for rank in (0, 1)]
addresses = [executor.address for executor in executors]
joining = [threading.Thread(target=one.connect, args=(addresses,)) for one in executors]
for thread in joining:
    thread.start()
for thread in joining:
    thread.join()
time.sleep(0.1)  # their threads are asleep by now
child = os.fork()
if child == 0:
    executors.clear()
    del joining, thread
    gc.collect()
    os._exit(0)
ended = 0
end = time.monotonic() + 60
while ended == 0 and time.monotonic() < end:
    ended, _ = os.waitpid(child, os.WNOHANG)
    time.sleep(0.01)
if ended == 0:
    os.kill(child, 9)
    os.waitpid(child, 0)
for executor in executors:
    executor.close()
sys.exit(0 if ended else "the child did not let go of its parent's executors")
"""


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_child_lets_go_of_its_parents_executors(threads: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, threads],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_child_of_a_child_drops_the_executors_of_both() -> None:
    """Those of the first parent were dropped twice, which was an error, and kept the others."""

    def child() -> None:
        sys.unraisablehook = lambda _: os._exit(1)
        with group(1) as executors:

            def grandchild() -> None:
                assert parents[0].forked
                assert executors[0].forked

            assert status_of_child(grandchild) == 0

    with group(1) as parents:
        assert status_of_child(child) == 0


PENDING = """
import os, sys, time
from datetime import timedelta
import torch
from tests.collectives.run.torch.test_caller import no_others, reduce, two
from headrace.collectives.run.torch.group import HeadraceGroup
from headrace.errors import CommunicationError

with two() as (first, second):
    group = HeadraceGroup(first, "tests", None, no_others)
    ended = reduce(first)
    reduce(second).wait()
    ended.wait()
    work = reduce(first)
    message = first.receive(torch.zeros(1), 1, 0)
    early = reduce(first).get_future()
    late = early.then(lambda done: done.value())
    uses = {
        "wait": work.wait,
        "wait a while": lambda: work.wait(timedelta(seconds=60)),
        "is_completed": work.is_completed,
        "get_future": work.get_future,
        "wait for a future": early.wait,
        "wait for a callback": late.wait,
        "give a callback": lambda: early.then(lambda done: None),
        "wait for a message": message.wait,
        "ask for a message": message.is_completed,
        "begin a call": lambda: reduce(first),
        "send": lambda: first.send(torch.zeros(1), 1, 0),
        "barrier": group.barrier,
    }
    child = os.fork()
    if child == 0:
        wrong = []
        for name, use in uses.items():
            try:
                use()
                wrong.append(name + " did not raise")
            except CommunicationError as error:
                if "forked child" not in str(error):
                    wrong.append(f"{name}: {error}")
        if ended.wait() is not True or ended.get_future().then(lambda done: 3).wait() != 3:
            wrong.append("a call that had ended is lost")
        group.shutdown()
        print("; ".join(wrong), file=sys.stderr, flush=True)
        os._exit(1 if wrong else 0)
    end, status = time.monotonic() + 60, None
    while status is None and time.monotonic() < end:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else None
        time.sleep(0.01)
    if status is None:
        os.kill(child, 9)
        os.waitpid(child, 0)
        sys.exit("the child hung")
    works = [reduce(second), reduce(second)]
    for one in (work, *works):  # the parent goes on
        one.wait()
    late.wait()
    sys.exit(status)
"""


@SAMPLED
def test_a_child_cannot_use_calls_that_are_pending_in_its_parent() -> None:
    """It waited for ever: for threads that only the parent has."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PENDING],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


JOB = Path(__file__).with_name("fork_job.py")


def trains(loaders: int, exits: int, deadline_s: float) -> None:
    with ranks(2, JOB, str(loaders), str(exits)) as processes:
        texts = outputs(processes, deadline_s)
        assert [process.returncode for process in processes] == [0, 0], texts


@SAMPLED
def test_workers_of_a_data_loader_leave_their_parents_groups_alone() -> None:
    """A child that ended revoked blocks that its parent had published, and ended its group."""
    trains(10, 1, 180)


@pytest.mark.slow
def test_two_hundred_forks_leave_the_parents_groups_alone() -> None:
    trains(200, 10, 280)
