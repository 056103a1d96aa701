"""Limits that hold in loops and native code, and Ctrl-C as a flag."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan import limited as module
from headrace.collectives.plan.engine import SearchInterrupted, SearchProblem, SearchSettings
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.collectives.plan.limited import TimeLimit, first_interrupt, run_limited
from headrace.collectives.run.synthesis import NativeSearch
from headrace.topology import presets
from tests.waiting import HANG_S


def test_the_first_interrupt_is_an_answer_the_second_an_exception() -> None:
    before = signal.getsignal(signal.SIGINT)
    with first_interrupt() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interrupted()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_never_interrupted() -> None:
    answers: list[bool] = []

    def ask() -> None:
        with first_interrupt() as interrupted:
            answers.append(interrupted())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]


def test_what_ends_in_time_returns_or_raises() -> None:
    assert run_limited(lambda: 7, 60.0) == 7

    def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        run_limited(fail, 60.0)


@pytest.mark.parametrize("main", [True, False])
def test_a_loop_without_end_is_stopped(main: bool) -> None:
    """A loop of a generator that nothing bounds used to hang planning for ever."""
    ended: list[str] = []

    def loop() -> None:
        try:
            while True:
                with contextlib.suppress(Exception):
                    sum(range(100))
        finally:
            ended.append("cleaned up")

    def limited() -> None:
        with pytest.raises(TimeLimit):
            run_limited(loop, 0.05)
        ended.append("stopped")

    if main:
        limited()
    else:
        thread = threading.Thread(target=limited)
        thread.start()
        thread.join(30)
    assert ended == ["cleaned up", "stopped"]


def test_code_that_cannot_be_stopped_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 0.1)
    release = threading.Event()

    def stubborn() -> str:
        while not release.is_set():
            with contextlib.suppress(BaseException):
                release.wait(60)
        return "too late"

    with pytest.raises(TimeLimit):
        run_limited(stubborn, 0.02)
    release.set()


def test_an_interrupt_is_handed_on() -> None:
    """Ctrl-C comes to the main thread: the code that it is meant for runs in another one."""

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        run_limited(interrupted, 60.0)


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_is_not_lost_where_the_work_ends(fails: bool) -> None:
    """Ctrl-C did nothing where a generator ended before the exception came to its thread."""

    def ends() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.0005)
        if fails:
            raise LookupError
        return 7

    for _ in range(20):
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            run_limited(ends, 60.0)
            time.sleep(HANG_S)  # a signal may come to the main thread only now


def test_the_first_interrupt_may_be_deferred() -> None:
    def deferring() -> list[bool]:
        with first_interrupt() as came:
            answers = [came()]
            os.kill(os.getpid(), signal.SIGINT)
            while not came():
                time.sleep(0.001)
            return [*answers, came()]

    assert run_limited(deferring, 60.0) == [False, True]


class Turns(float):
    """A limit that is never passed; `main` is called in the main thread, which looks at it."""

    main: Callable[[], None]

    def __lt__(self, spent_s: float) -> bool:
        self.main()
        return False


def test_an_interrupt_that_comes_within_a_finalizer_is_not_lost() -> None:
    """Python ignores what a finalizer raises: the main thread lost a Ctrl-C that came in one."""

    class Dropped:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def wait() -> None:
        while True:
            time.sleep(0.001)

    dropped, limit = [Dropped()], Turns(60.0)
    limit.main = dropped.clear
    with pytest.raises(KeyboardInterrupt):
        run_limited(wait, limit)


def test_a_third_interrupt_abandons_the_work() -> None:
    release = threading.Event()

    def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(BaseException):
                release.wait(HANG_S)

    before, limit = signal.getsignal(signal.SIGINT), Turns(60.0)
    limit.main = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_limited(stubborn, limit)
    assert not release.is_set()
    release.set()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_native_search_is_stopped() -> None:
    """It looks for signals, which only the main thread has; it has to see the limit, too."""
    topology = presets.dgx2(1)
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=topology.ranks))
    problem = SearchProblem(topology=topology, deliveries=deliveries, chunk_mb=1.0)
    settings = SearchSettings(restarts=1 << 30, limit_s=1e9)
    with pytest.raises(TimeLimit):
        run_limited(lambda: NativeSearch().search(problem, settings), 0.1)


def test_an_interrupted_native_search_keeps_its_best() -> None:
    topology = presets.dgx2(1)
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=topology.ranks))
    problem = SearchProblem(topology=topology, deliveries=deliveries, chunk_mb=1.0)
    settings = SearchSettings(restarts=1 << 30, limit_s=1e9)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(SearchInterrupted) as caught:
        run_limited(lambda: NativeSearch().search(problem, settings), 60.0)
    assert caught.value.found.total_us < float("inf")


PROFILED = """
import cProfile, contextlib, time
from headrace.collectives.plan.limited import TimeLimit, run_limited

def spin():
    while True:
        time.sleep(0)

assert run_limited(lambda: 3, 5) == 3
with contextlib.suppress(TimeLimit):
    run_limited(spin, 0.05)
profile = cProfile.Profile()
print(profile.runcall(lambda: sum(n for n in range(100))))
"""


def test_functions_run_under_a_profiler_after_a_limited_one() -> None:
    """A pending exception was cleared, and CPython's flag of one stayed: every call hung."""
    command = [sys.executable, "-c", PROFILED]
    assert (
        subprocess.run(command, capture_output=True, timeout=HANG_S, check=True).stdout == b"4950\n"
    )
