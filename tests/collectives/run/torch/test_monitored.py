"""The barrier that names missing ranks, among ranks that are threads."""

from datetime import timedelta

import numpy as np
import pytest

from headrace.collectives.run.torch.monitored import monitored_barrier
from headrace.errors import CommunicationError
from headrace.executor import Executor, receive, send
from tests.conformance.groups import each, group
from tests.waiting import HANG_S, STALL_S

LIMIT = timedelta(seconds=HANG_S)
BRIEF = timedelta(seconds=STALL_S)


def called(executor: Executor, round_: int, limit: timedelta, *, all_ranks: bool = True) -> str:
    """Return what the barrier raises; empty: nothing."""
    try:
        monitored_barrier(executor, round_, limit, all_ranks=all_ranks)
    except CommunicationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("all_ranks", [False, True])
def test_missing_ranks_are_named_and_the_group_goes_on(
    all_ranks: bool, shared_memory: bool
) -> None:
    texts = dict.fromkeys(range(4), "")

    def act(executor: Executor) -> None:
        rank = executor.rank
        if rank not in (1, 3):
            texts[rank] = called(executor, 1, BRIEF, all_ranks=all_ranks)
        assert called(executor, 2, LIMIT) == ""
        if rank == 1:  # comes late, and learns it at once
            texts[rank] = called(executor, 1, LIMIT)
        both = np.full(1, rank), np.zeros(1, int)
        exchanges = [
            send(executor, both[0], rank ^ 1, 5, deadline_s=HANG_S),
            receive(executor, both[1], rank ^ 1, 5, deadline_s=HANG_S),
        ]
        for exchange in exchanges:
            exchange.wait()
        assert both[1].item() == rank ^ 1

    with group(4, shared_memory=shared_memory) as executors:
        each(executors, act)
    missing = f"Rank{'s 1, 3' if all_ranks else ' 1'} failed to pass monitoredBarrier in 3 s"
    assert texts[0] == missing
    for rank in (1, 2):
        words = f"Rank {rank} successfully reached monitoredBarrier, but received errors"
        assert texts[rank].startswith(words), texts
        assert texts[rank].endswith(f"from rank 0: {missing}"), texts


def test_a_limit_of_zero_takes_the_ranks_that_are_there() -> None:
    """A timeout of zero was taken for "not set", so for the group's, of minutes."""
    texts: dict[int, str] = {}

    def act(executor: Executor) -> None:
        if executor.rank == 0:
            texts[0] = called(executor, 1, timedelta(0))
            receive(executor, np.empty(0), 1, 3, deadline_s=HANG_S).wait()
            texts[1] = called(executor, 2, timedelta(0))
        else:
            # a message that is sent later has come, so that the arrival has, too
            arrival = executor.send(0, 0, 0, (1 << 31) + 2, deadline_s=HANG_S)
            send(executor, np.empty(0), 0, 3, deadline_s=HANG_S).wait()
            executor.wait(arrival)

    with group(2) as executors:
        each(executors, act)
    assert texts == {
        0: "Rank 0 timed out in monitoredBarrier after 0 s, before rank 1 reached it",
        1: "",
    }


def test_a_limit_may_be_any() -> None:
    """One of timedelta.max, which stands for a wait without end, was an OverflowError."""
    with group(3) as executors:
        each(
            executors,
            lambda executor: monitored_barrier(executor, 1, timedelta.max, all_ranks=True),
        )


def test_a_rank_that_left_is_named_with_the_reason() -> None:
    texts: dict[int, str] = {}

    def act(executor: Executor) -> None:
        if executor.rank == 1:
            executor.close()
        else:
            texts[executor.rank] = called(executor, 1, LIMIT)

    with group(3) as executors:
        each(executors, act)
    assert "failed to pass monitoredBarrier, as the group ended: rank 1 left the group" in texts[0]
    assert "rank 1 left the group" in texts[2]


def test_a_silent_rank_0_ends_the_barrier_of_the_others() -> None:
    with group(2) as executors:
        text = called(executors[1], 1, timedelta(seconds=STALL_S / 2))
        assert "rank 0 did not answer within 3 s" in text
        each(executors, lambda executor: monitored_barrier(executor, 2, LIMIT, all_ranks=True))
