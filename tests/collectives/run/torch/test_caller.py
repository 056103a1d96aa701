"""Works and their buffers, when a wait is cut short or an interrupt comes at a bad moment."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import AllreduceOptions

from headrace.collectives.run.choose import Chooser
from headrace.collectives.run.torch import buffers as binding
from headrace.collectives.run.torch.callbacks import Callbacks
from headrace.collectives.run.torch.caller import Caller
from headrace.collectives.run.torch.completions import completion_threads
from headrace.collectives.run.torch.group import HeadraceGroup
from headrace.collectives.run.torch.work import PendingWork, SeveralWorks
from headrace.errors import CommunicationError
from headrace.executor import Executor
from tests.conformance.groups import each
from tests.waiting import HANG_S, no_hang, wait_until


@contextmanager
def two(timeout_s: float = 20.0, *, shared_memory: bool = True) -> Iterator[list[Caller]]:
    executors = [
        Executor(
            rank,
            2,
            secret="tests",
            shared_memory=shared_memory,
            completions=completion_threads.queue,
        )
        for rank in range(2)
    ]
    addresses = [executor.address for executor in executors]
    callbacks = Callbacks("tests", completion_threads.run, completion_threads.may_block)
    callers = [Caller(executor, Chooser(2), timeout_s, callbacks) for executor in executors]
    try:
        each(executors, lambda executor: executor.connect(addresses, HANG_S))
        yield callers
    finally:
        for caller in callers:
            with suppress(CommunicationError):  # a test has closed it
                caller.close("tests")


def no_others(_name: str, _deadline_s: float) -> Caller:
    raise AssertionError("no callback begins calls here")


def interrupted_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with an interrupt as it returns."""

    def interrupted(*arguments: Any, **options: Any) -> Any:
        function(*arguments, **options)
        raise KeyboardInterrupt

    return interrupted


def test_a_receive_gives_up_waiting_when_told_and_goes_on() -> None:
    with two() as (first, second):
        landing = torch.zeros(4)
        work = second.receive(landing, 0, 3)
        started = time.monotonic()
        with (
            no_hang(),
            pytest.raises(CommunicationError, match=r"timed out after 0\.2 s.*still running"),
        ):
            work.wait(timedelta(seconds=0.2))
        assert time.monotonic() - started >= 0.2
        first.send(torch.ones(4), 1, 3).wait()
        assert work.wait(timedelta(seconds=HANG_S))
        assert landing.tolist() == [1.0] * 4
        assert work.source_rank() == 0


def test_a_wait_may_be_of_any_length() -> None:
    """One for timedelta.max, which stands for a wait without end, was an OverflowError."""
    ended: list[bool] = []
    with two() as (first, second):
        work = reduce(first)
        waiting = threading.Thread(target=lambda: ended.append(work.wait(timedelta.max)))
        waiting.start()
        wait_until(lambda: work._event is not None, "the thread does not wait")
        reduce(second).wait()
        waiting.join()
    assert ended == [True]


def test_buffers_outlive_an_interrupted_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    with two() as (first, second):
        for name, begin in (
            ("send", lambda: first.send(torch.ones(3), 1, 0)),
            ("recv", lambda: first.receive(torch.ones(3), 1, 0)),
            ("submit", lambda: reduce(first)),
        ):
            before = set(first._starting)
            with monkeypatch.context() as patch:
                patch.setattr(
                    first.executor, name, interrupted_after(getattr(first.executor, name))
                )
                with pytest.raises(KeyboardInterrupt):
                    begin()
            (lost,) = first._starting - before
            assert [tensor.numel() for tensor in lost.result()] == [3]
        landing = torch.zeros(3)
        second.receive(landing, 0, 0).wait()
        assert landing.tolist() == [1.0] * 3
        assert not second._starting
    assert not first._starting


@pytest.mark.parametrize(
    ("shared_memory", "policy"), [(True, os.SCHED_BATCH), (False, os.SCHED_OTHER)]
)
def test_where_memory_is_shared_the_executors_threads_preempt_no_other(
    shared_memory: bool, policy: int
) -> None:
    def threads() -> dict[str, tuple[str, int]]:
        """State and policy by thread; see proc(5)."""
        found: dict[str, tuple[str, int]] = {}
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # of an earlier test, on its way out
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                found[task.name] = fields[0], int(fields[38])
        return found

    before = threads()
    with two(shared_memory=shared_memory) as callers:

        def added() -> list[tuple[str, int]]:
            return [state for task, state in threads().items() if task not in before]

        # until they sleep: one that has just been started may not have run
        wait_until(lambda: added() == [("S", policy)] * len(callers), added)
        after = threads()
        for task, (_, as_before) in before.items():
            assert after.get(task, ("", as_before))[1] == as_before


def test_a_refused_submission_keeps_nothing() -> None:
    with two() as (first, _):
        with pytest.raises(ValueError, match="rank 7"):
            first.send(torch.ones(3), 7, 0)
        assert not first._starting
        assert not first._loose


def test_beginning_many_messages_takes_a_few_polls_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the 64th on all under way were polled for each that began: thousands took seconds."""
    polls: list[int] = []
    with two() as (first, _second):
        poll = first.executor.poll

        def counted(handle: int) -> bool:
            polls.append(handle)
            return poll(handle)

        monkeypatch.setattr(first.executor, "poll", counted)
        for _ in range(1000):
            first.receive(torch.empty(1), 1, 0)
        assert len(first._loose) == 1000
        assert len(polls) < 2000


def test_a_wait_after_an_interrupted_one_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with two(timeout_s=0.5) as (first, second):
        work = second.receive(torch.zeros(2), 0, 0)
        first.send(torch.ones(2), 1, 0).wait()
        with monkeypatch.context() as patch:
            patch.setattr(second.executor, "wait", interrupted_after(second.executor.wait))
            with pytest.raises(KeyboardInterrupt):
                work.wait()
        started = time.monotonic()
        for _ in range(2):  # the second time it is known at once
            with no_hang(), pytest.raises(CommunicationError, match="outcome was lost"):
                work.wait()
        assert time.monotonic() - started >= 0.5
        assert work.is_completed()
        assert not second._loose


def test_a_coalescing_region_ends_in_the_work_of_all_it_left_pending() -> None:
    with two() as callers:
        groups = [HeadraceGroup(caller, "tests", None, no_others) for caller in callers]
        tensors = [[torch.full((size,), 1.0) for size in (3, 5000)] for _ in groups]
        works = []
        for member, mine in zip(groups, tensors, strict=True):
            member.start_coalescing(torch.device("cpu"))
            for tensor in mine:
                member.allreduce([tensor], asynchronous())
            works.append(member.end_coalescing(torch.device("cpu")))
        for work, mine in zip(works, tensors, strict=True):
            assert isinstance(work, SeveralWorks)
            work.wait()
            assert all((tensor == 2).all() for tensor in mine)
            assert len(work.result()) == 2
        for caller in callers:
            reduce(caller)
        assert groups[0].end_coalescing(torch.device("cpu")).is_completed()  # no region, no works


def test_a_call_that_fails_while_its_group_ends_leaves_no_connection_open() -> None:
    """`destroy_process_group` raised the call's error, and nothing closed the group later."""
    with two() as (first, second):
        group = HeadraceGroup(first, "tests", None, no_others)
        tensor = torch.ones(3, 2)[:, 0]  # the executor has a copy
        group.allreduce([tensor], asynchronous())
        tensor.untyped_storage().resize_(0)
        peer = threading.Timer(0.1, lambda: reduce(second))
        peer.start()
        group.shutdown(HANG_S)
        peer.join()
        with pytest.raises(CommunicationError, match="destroyed"):
            first.send(torch.ones(3), 1, 0)


def test_an_interrupt_while_a_group_ends_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two() as (first, _):
        group = HeadraceGroup(first, "tests", None, no_others)
        monkeypatch.setattr(first, "drain", interrupted_after(first.drain))
        with pytest.raises(KeyboardInterrupt):
            group.shutdown()
        with pytest.raises(CommunicationError, match="destroyed"):
            first.send(torch.ones(3), 1, 0)


def test_an_interrupt_in_the_middle_of_closing_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind the connections of callbacks, those of the group itself stayed open."""
    with two() as (first, other):
        group = HeadraceGroup(first, "tests", None, no_others)
        group._others["callbacks"] = other
        monkeypatch.setattr(other, "close", interrupted_after(other.close))
        with pytest.raises(KeyboardInterrupt):
            group.shutdown()
        with pytest.raises(CommunicationError, match="destroyed"):
            first.send(torch.ones(3), 1, 0)


def asynchronous() -> AllreduceOptions:
    options = AllreduceOptions()
    options.asyncOp = True
    return options


def reduce(caller: Caller) -> PendingWork:
    """Submit an allreduce of three numbers."""
    tensor, options = torch.ones(3), asynchronous()
    known = caller.reduction(tensor, options.reduceOp)
    bound = binding.in_place(tensor, known.chunks)
    work = caller.allreduce(known, tensor.data_ptr(), [tensor], options, bound)
    assert isinstance(work, PendingWork)
    return work


def completing_threads() -> int:
    return sum(thread.name == "headrace-completions" for thread in threading.enumerate())


def test_only_callbacks_need_a_second_thread_that_completes_calls() -> None:
    with two() as callers:
        for _ in range(10):
            for future in [reduce(caller).get_future() for caller in callers]:
                future.wait()
        assert completing_threads() == 1
        for _ in range(10):
            futures = [reduce(caller).get_future() for caller in callers]
            for chained in [future.then(lambda _: None) for future in futures]:
                chained.wait()
        assert completing_threads() == 2


def test_a_callback_that_is_given_past_the_queues_can_wait_for_another_call() -> None:
    with two() as callers:
        callers[0].callbacks.whole = False  # as where torch makes a new object for the future
        later = threading.Event()

        def wait_for_the_second(_: Any) -> None:
            later.wait(HANG_S)
            for work in second:
                work.get_future().wait()

        unseen = torch.futures.Future[None]()
        chained = reduce(callers[0]).ending().then(wait_for_the_second)
        chained.add_done_callback(lambda _: unseen.set_result(None))
        reduce(callers[1])  # which ends the call, in the thread that then runs the callback
        second = [reduce(caller) for caller in callers]
        later.set()
        unseen.wait()
