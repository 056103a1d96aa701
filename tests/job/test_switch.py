"""One rank's switch: what promises, verdicts and their absence mean to the calls."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headrace.errors import CommunicationError, InputError
from headrace.job.switch import CallSwitch, mark_step
from tests.waiting import ENDLESS_S, HANG_S, no_hang, wait_until


class Counting:
    """An executor that only counts; `lag` collectives are still under way."""

    def __init__(self) -> None:
        self.rank = 3
        self.epoch = 0
        self.count = 0
        self.lag = 0

    def submitted(self) -> int:
        return self.count

    def finished(self) -> int:
        return self.count - self.lag


class Rank:
    def __init__(self) -> None:
        self.executor = Counting()
        self.switch = CallSwitch(self.executor)
        self.epochs: list[int] = []

    def call(self, times: int = 1) -> None:
        for _ in range(times):
            if self.switch.armed:
                self.switch.turn(("allreduce", 8))
            self.epochs.append(self.executor.epoch)
            self.executor.count += 1


@contextmanager
def beside(action: object) -> Iterator[threading.Thread]:
    assert callable(action)
    thread = threading.Thread(target=action)
    thread.start()
    yield thread
    thread.join(HANG_S)
    assert not thread.is_alive()


def nothing() -> None:
    pass


def test_a_change_begins_at_the_agreed_call() -> None:
    rank = Rank()
    rank.call(5)
    assert rank.switch.promise(1, nothing, margin=4) == 9
    rank.call(2)
    rank.switch.commit(1, 11)
    rank.call(10)
    assert rank.epochs == [0] * 11 + [1] * 6
    assert not rank.switch.armed


def test_changes_queue_up() -> None:
    rank, done = Rank(), []
    for epoch in (2, 5, 6):
        at = rank.switch.promise(epoch, lambda epoch=epoch: done.append(epoch), margin=3)
        rank.switch.commit(epoch, at)
    rank.call(12)
    assert rank.epochs == [0] * 3 + [2] * 3 + [5] * 3 + [6] * 3
    assert done == [2, 5, 6]


def test_an_aborted_change_leaves_no_trace() -> None:
    rank = Rank()
    rank.switch.promise(1, pytest.fail, margin=2)
    rank.switch.abort(1)
    assert not rank.switch.armed
    rank.call(5)
    assert rank.epochs == [0] * 5
    with pytest.raises(CommunicationError, match="too late"):
        rank.switch.commit(1, 9)


@pytest.mark.parametrize("at", [4, 7])
def test_a_rank_waits_at_the_promised_call_for_the_verdict(at: int) -> None:
    rank = Rank()
    assert rank.switch.promise(1, nothing, margin=4) == 4
    with beside(lambda: rank.call(10)) as thread:
        wait_until(lambda: rank.executor.count >= 4, "the rank makes the calls that it may")
        thread.join(0.1)
        assert rank.executor.count == 4
        rank.switch.commit(1, at)
    assert rank.epochs == [0] * at + [1] * (10 - at)


def test_a_waiting_rank_goes_on_when_the_change_is_aborted() -> None:
    rank = Rank()
    rank.switch.promise(1, pytest.fail, margin=1)
    with beside(lambda: rank.call(3)) as thread:
        wait_until(lambda: rank.executor.count >= 1, "the rank makes the call that it may")
        thread.join(0.05)
        assert rank.executor.count == 1
        rank.switch.abort(1)
    assert rank.epochs == [0] * 3


def test_without_a_verdict_a_rank_makes_no_change_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rank = Rank()
    rank.switch.promise(1, pytest.fail, margin=1, hold_s=0.1)
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), no_hang():
        rank.call(3)
    assert time.monotonic() - started >= 0.1
    assert rank.epochs == [0] * 3
    assert "stays with change 0" in caplog.text
    with pytest.raises(CommunicationError, match="too late"):
        rank.switch.commit(1, 5)


def test_closing_ends_a_wait() -> None:
    rank, errors = Rank(), []

    def calls() -> None:
        try:
            rank.call(3)
        except CommunicationError as error:
            errors.append(str(error))

    rank.switch.promise(1, pytest.fail, margin=1)
    with beside(calls):
        wait_until(lambda: rank.executor.count >= 1, "the rank makes the call that it may")
        rank.switch.close()
    assert errors == ["the group was closed"]
    assert rank.switch.sequence() == 1
    with pytest.raises(CommunicationError, match="closed"):
        rank.switch.promise(2, nothing)


def test_an_action_may_make_calls_of_its_own() -> None:
    rank = Rank()
    rank.switch.commit(4, rank.switch.promise(4, lambda: rank.call(2), margin=1))
    rank.call(3)
    assert rank.epochs == [0, 4, 4, 4, 4]


def test_a_drained_action_comes_after_what_was_under_way() -> None:
    rank, seen = Rank(), []
    action = rank.switch.drained(lambda: seen.append(rank.executor.lag), ENDLESS_S)
    rank.switch.commit(1, rank.switch.promise(1, action, margin=2))
    rank.call(2)
    rank.executor.lag = 2
    with beside(rank.call) as thread:
        thread.join(0.05)
        assert not seen
        rank.executor.lag = 0
    assert seen == [0]
    rank.executor.lag = 1
    with pytest.raises(CommunicationError, match=r"before number 3 did not end within 0\.05 s"):
        rank.switch.drained(pytest.fail, 0.05)()


@pytest.mark.parametrize(
    ("epoch", "margin", "text"),
    [(3, 1, "epoch is 3, needs more than 3"), (4, 0, "margin is 0"), (4, 1, "3 is undecided")],
)
def test_what_cannot_be_promised(epoch: int, margin: int, text: str) -> None:
    rank = Rank()
    rank.switch.promise(3, nothing)
    with pytest.raises(InputError, match=text):
        rank.switch.promise(epoch, nothing, margin=margin)
    with pytest.raises(InputError, match="at is 63, needs at least the promised 64"):
        rank.switch.commit(3, 63)


def test_calls_are_recorded_once() -> None:
    rank = Rank()
    rank.call()
    assert rank.switch.recorded() == []
    rank.switch.record()
    before = time.monotonic()
    rank.call(2)
    calls = rank.switch.recorded()
    assert [key for key, _ in calls] == [("allreduce", 8)] * 2
    assert before <= calls[0][1] <= calls[1][1] <= time.monotonic()
    assert rank.switch.recorded() == []
    rank.switch.commit(1, rank.switch.promise(1, nothing, margin=1))
    rank.call(3)
    assert rank.switch.armed  # still recording
    assert rank.epochs[-2:] == [1, 1]


def test_steps_are_marked_while_another_thread_makes_groups() -> None:
    """A step that ended meanwhile was a RuntimeError: the set of groups changed as it was read."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        switches = [Rank().switch for _ in range(2000)]
        with beside(lambda: [switch.record() for switch in switches]) as thread:
            while thread.is_alive():
                mark_step()
    finally:
        sys.setswitchinterval(before_s)
