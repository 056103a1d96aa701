"""Reports of failed exchanges among ranks that are threads: who is missing, and how soon."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from headrace.compression.errors import ExchangeError
from headrace.compression.run import failures
from headrace.compression.run.failures import FailureReports
from tests.waiting import ENDLESS_S, STALL_S, no_hang

LOOK_S, REPORT_S = 0.2, STALL_S


class Group:
    """A group of ranks 10, 11, ... of a job."""

    def __init__(self, rank: int, ranks: int, store: Any) -> None:
        self._rank, self.members, self.store = rank, [10 + r for r in range(ranks)], store

    def rank(self) -> int:
        return self._rank


class Work:
    """A collective that ends after `end_s`, with an error if there is one; as Gloo's."""

    def __init__(self, end_s: float, error: str = "") -> None:
        self._end = time.monotonic() + end_s
        self._error = error

    def is_completed(self) -> bool:
        return time.monotonic() >= self._end

    def wait(self, timeout: timedelta = timedelta(seconds=30)) -> bool:
        time.sleep(max(0.0, min(self._end - time.monotonic(), timeout.total_seconds())))
        if not self.is_completed():
            raise RuntimeError("Operation timed out!")
        if self._error:
            raise RuntimeError(self._error)
        return True


class LostStore(dist.HashStore):
    """A store whose process ended."""

    def check(self, *_: object) -> bool:
        raise RuntimeError("Broken pipe")

    set = check  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LOOK_S", LOOK_S)
    monkeypatch.setattr(failures, "REPORT_S", REPORT_S)
    monkeypatch.setattr(failures, "is_gloo", lambda _: True)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: group.members)
    monkeypatch.setattr(dist.distributed_c10d, "_get_process_group_store", lambda g: g.store)


class EndingStore(dist.HashStore):
    """A store whose process ends when all ranks but the lost one have reported, and a bit later."""

    def check(self, keys: list[str]) -> bool:
        if all(super(EndingStore, self).check([f"headrace/failed_exchange/{r}"]) for r in (0, 1)):
            self.checks = getattr(self, "checks", 0) + 1
            if self.checks > 5:
                raise RuntimeError("Connection reset by peer")
        return super().check(keys)


def failed(rank: int, store: Any, works: list[Work], ranks: int = 5) -> ExchangeError:
    """Return how a round of exchanges ends on a rank, as `Exchanger` waits for it."""
    reports: Any = FailureReports(Group(rank, ranks, store))  # type: ignore[arg-type]
    errors: list[RuntimeError] = []
    with no_hang():  # no exchange is waited for until its end
        for work in works:
            try:
                reports.wait(work)
            except RuntimeError as error:
                errors.append(error)
        assert errors
        error = reports.error(errors[0])
    assert reports.error(RuntimeError("a later one")) is error
    return error


def test_all_that_are_left_name_the_one_that_is_not() -> None:
    """Rank 3 is lost, rank 2's connection breaks, the others would wait on; many exchanges each."""
    store = dist.HashStore()
    rounds = {
        rank: [Work(0.1, "Read error [1.2.3.4]" if rank == 2 else ""), *[Work(ENDLESS_S)] * 12]
        for rank in (0, 1, 2, 4)
    }
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda rank: failed(rank, store, rounds[rank]), rounds))
    for error in found:
        assert error.missing == (13,)
        assert f"rank 13 did not report within {REPORT_S:g} s" in str(error)
        assert "start the job again" in str(error)
    assert "Read error [1.2.3.4]" in str(found[2])


def test_no_rank_is_missing_where_all_report() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        ends = [[Work(0.1, "Timed out waiting 100ms")], [Work(ENDLESS_S)]]
        found = list(threads.map(lambda rank: failed(rank, store, ends[rank], 2), range(2)))
    for error in found:
        assert error.missing == ()
        assert "No rank is missing" in str(error)


def test_a_lost_store_is_named() -> None:
    for end in (Work(0.1, "Connection closed by peer"), Work(ENDLESS_S)):
        error = failed(1, LostStore(), [end])
        assert "does not answer: the process that runs it" in str(error)


def test_a_store_that_ends_after_the_reports_is_no_matter() -> None:
    store = EndingStore()
    store.set("headrace/failed_exchange/0", "failed")  # rank 0 ends before the others
    error = failed(1, store, [Work(0.1, "Connection closed by peer")], 3)
    assert error.missing == (12,)


@pytest.mark.parametrize("end_s", [0.0, 0.1, 2 * LOOK_S, 3 * LOOK_S])
def test_an_exchange_that_only_takes_long_is_waited_for(end_s: float) -> None:
    reports: Any = FailureReports(Group(0, 2, dist.HashStore()))  # type: ignore[arg-type]
    work = Work(end_s)
    reports.wait(work)
    assert work.is_completed()
