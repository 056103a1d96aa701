"""One rank of a job whose callbacks begin calls and wait for them, run by test_callbacks.py.

Ranks sleep for times of their own here and there, so that what ends in which order differs.
"""

import json
import queue
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future, collect_all, wait_all

from tests.collectives.run.torch.hooks_sample import HOOK_CHECKS
from tests.waiting import STALL_S

RANKS = 2
TIMEOUT_S = 60.0


def begun(value: float, size: int = 8) -> Any:
    """Begin an allreduce of a tensor of `value` + rank; returns its work."""
    return dist.all_reduce(torch.full((size,), value + dist.get_rank()), async_op=True)


def total(value: float) -> float:
    """Return what every element of `begun`'s result is."""
    ranks = dist.get_world_size()
    return ranks * value + sum(range(ranks))


def pause(chance: random.Random) -> None:
    if chance.random() < 0.5:
        time.sleep(chance.random() * 2e-3)


def waits_in_callbacks() -> None:
    """Each of the three ways to wait hung for ever."""

    def by_future(_: Future) -> float:
        return begun(1).get_future().wait()[0][0].item()

    def by_work(_: Future) -> float:
        work = begun(2)
        work.wait()
        return work.result()[0][0].item()

    def at_once(_: Future) -> float:
        tensor = torch.full((8,), 3.0 + dist.get_rank())
        dist.all_reduce(tensor)
        return tensor[0].item()

    for number, callback in enumerate((by_future, by_work, at_once), 1):
        assert begun(0).get_future().then(callback).wait() == total(number)


def nested() -> None:
    def nest(depth: int) -> float:
        future = begun(depth).get_future()
        if depth == 0:
            return future.wait()[0][0].item()
        return future.then(lambda done: done.value()[0][0].item() + nest(depth - 1)).wait()

    assert nest(20) == sum(total(depth) for depth in range(21))


def waits_for_a_later_call() -> None:
    """The callback's own thread may not be the one that ends the call it waits for."""
    box: queue.Queue[Any] = queue.Queue()
    for wait in (lambda work: work.get_future().wait(), lambda work: work.wait()):
        first = begun(0)
        future = first.get_future()
        waiting = future.then(lambda _, wait=wait: wait(box.get(timeout=TIMEOUT_S)) and None)
        first.wait()  # does not run the callback, which waits for this thread
        later = begun(1)
        box.put(later)
        waiting.wait()
        assert later.result()[0][0].item() == total(1)


def waits_for_callbacks() -> None:
    """For a later one of the same queue, for several, and by other means than futures."""
    box: queue.Queue[Future] = queue.Queue()
    first = begun(0).get_future().then(lambda _: box.get(timeout=TIMEOUT_S).wait() + 1)
    box.put(begun(1).get_future().then(lambda done: done.value()[0][0].item()))
    assert first.wait() == total(1) + 1

    def several(_: Future) -> float:
        parts = [begun(i).get_future().then(lambda done: done.value()[0][0].item()) for i in (1, 2)]
        ended = threading.Event()
        begun(3).get_future().add_done_callback(lambda _: ended.set())
        assert ended.wait(TIMEOUT_S)
        return sum(wait_all(parts)) + sum(part.wait() for part in collect_all(parts).wait())

    assert begun(0).get_future().then(several).wait() == 2 * (total(1) + total(2))


def a_callback_that_waits_for_itself() -> None:
    box: queue.Queue[Future] = queue.Queue()
    future = begun(0).get_future().then(lambda _: box.get(timeout=TIMEOUT_S).wait())
    box.put(future)
    try:
        future.wait()
    except RuntimeError as error:
        assert "waits for its own result" in str(error), error
    else:
        raise AssertionError("it ended")


def alike_calls() -> None:
    """Nothing tells these calls from one another: only their order can."""
    chance = random.Random(dist.get_rank())
    # a chain on a future that is done, or not yet: on every rank as it happens
    for turn in range(60):
        chains, mine = [], []
        for index in range(4):
            value = 100 * turn + 10 * index
            future = begun(value).get_future()
            pause(chance)

            def second(_: Future, value: float = value) -> float:
                pause(chance)
                return begun(value + 1).get_future().wait()[0][0].item()

            def third(done: Future, value: float = value) -> list[float]:
                works = [begun(value + 2), begun(value + 3)]
                return [done.value(), *(work.get_future().wait()[0][0].item() for work in works)]

            half = future.then(second)
            pause(chance)
            chains.append(half.then(third))
            mine.append(begun(value + 4))
        both = collect_all(chains).then(lambda _, t=turn: begun(t).get_future().wait()[0][0].item())
        for index, chain in enumerate(chains):
            value = 100 * turn + 10 * index
            assert chain.wait() == [total(value + i) for i in (1, 2, 3)], (turn, index)
            mine[index].wait()
            assert mine[index].result()[0][0].item() == total(value + 4), (turn, index)
        assert both.wait() == total(turn)


def calls_of_another_group() -> None:
    other = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))

    def callback(_: Future) -> float:
        tensor = torch.full((8,), 1.0 + dist.get_rank())
        return dist.all_reduce(tensor, group=other, async_op=True).get_future().wait()[0][0].item()

    futures = [begun(i).get_future().then(callback) for i in range(5)]
    for _ in range(5):
        dist.all_reduce(torch.ones(8), group=other)
    assert wait_all(futures) == 5 * [total(1)]
    dist.destroy_process_group(other)


def a_chain_without_end() -> None:
    """Each callback begins a call whose callback does: 300 levels, but few connections."""
    done: queue.Queue[float] = queue.Queue()

    def link(left: int) -> Callable[[Future], None]:
        def callback(_: Future) -> None:
            if left == 0:
                done.put(0.0)
            else:
                begun(left).get_future().then(link(left - 1))

        return callback

    begun(0).get_future().then(link(40))
    done.get(timeout=TIMEOUT_S)
    before = open_files()
    begun(0).get_future().then(link(300))
    done.get(timeout=TIMEOUT_S)
    assert open_files() <= before
    assert len(completion_threads()) < 4


def an_error_reaches_every_future() -> None:
    def failing(_: Future) -> None:
        raise ValueError("mine")

    chained = begun(0).get_future().then(failing).then(lambda done: done.value())
    for wait in (chained.wait, lambda: wait_all([chained]), lambda: collect_all([chained]).wait()):
        try:
            wait()
        except RuntimeError as error:
            assert "mine" in str(error), error
        else:
            raise AssertionError("the error is lost")


def destroy_in_a_callback() -> None:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))
    future = dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future()

    def destroy(done: Future) -> float:
        dist.destroy_process_group(group)
        return done.value()[0][0].item()

    assert future.then(destroy).wait() == dist.get_world_size()


def a_call_that_one_rank_leaves_out() -> None:
    """Ends by the deadline, in the callback, and is an error at both."""
    for connected in (False, True):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=TIMEOUT_S))

        def call(_: Future, group: Any = group) -> None:
            dist.all_reduce(torch.ones(2), group=group)

        if connected:
            dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future().then(
                call
            ).wait()
        group.set_timeout(timedelta(seconds=STALL_S))
        future = dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future()
        left_out = dist.get_rank() == 1
        future = future.then((lambda _: None) if left_out else call)
        try:
            future.wait()
        except RuntimeError as error:
            assert not left_out, error
            assert "CommunicationError" in str(error), error
            assert connected or "do the same callbacks begin the same calls" in str(error), error
        else:
            assert left_out
        dist.barrier()
        dist.destroy_process_group(group)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def completion_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "headrace-completions"]


CHECKS: list[Callable[[], None]] = [
    waits_in_callbacks,
    nested,
    waits_for_a_later_call,
    waits_for_callbacks,
    a_callback_that_waits_for_itself,
    alike_calls,
    calls_of_another_group,
    a_chain_without_end,
    an_error_reaches_every_future,
    destroy_in_a_callback,
    a_call_that_one_rank_leaves_out,
    *HOOK_CHECKS,
]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("headrace", timeout=timedelta(seconds=TIMEOUT_S))
    results = {}
    wanted = sys.argv[1:]
    for check in CHECKS:
        if wanted and check.__name__ not in wanted:
            continue
        started = time.monotonic()
        try:
            check()
            results[check.__name__] = ""
        except Exception:  # every check is to be reported
            results[check.__name__] = traceback.format_exc()
        print(f"{check.__name__}: {time.monotonic() - started:.1f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    results["threads"] = str(completion_threads()) if completion_threads() else ""
    print("RESULTS", json.dumps(results), flush=True)


if __name__ == "__main__":
    import headrace.torch  # noqa: F401 - registers the backend where headrace is not installed

    main()
