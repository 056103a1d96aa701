"""Decisions on batches of real ids, followed: the lookahead that caches have room for."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import pytest

from headrace import _native
from headrace.embeddings.adapt.agent import JobAdaptation
from headrace.embeddings.room import needed_slots, resident_rows
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.cacher.cacher import BatchDecisions, CacherOptions, IdBatch, dispatched
from headrace.embeddings.run.cacher.following import CacherPace
from headrace.embeddings.tables import EmbeddingTable, table_groups

TABLES = (EmbeddingTable(name="items", rows=20_000, dim=4),)
IDS = 1_000
PREFETCH = 4


def id_batches(alpha: float, seed: int = 7) -> Iterator[IdBatch]:
    """Yield batches without end, whose ids are drawn by Zipf's law."""
    random = np.random.default_rng(seed)
    shares = np.cumsum(np.arange(1.0, TABLES[0].rows + 1) ** -alpha)
    while True:
        ids = np.searchsorted(shares / shares[-1], random.random(IDS)).astype(np.int64)
        yield IdBatch(examples=IDS, fields={}, ids=(ids,), lengths=(None,))


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """Means over decisions of a window, in a cache that has room for all rows.

    Attributes
    ----------
    resident : rows in the cache while a batch is trained.
    estimated : the same by the distinct rows of the window, and what its newest batch fetches.
    fetched : for a batch.
    """

    resident: float
    estimated: float
    fetched: float

    @classmethod
    def measured(cls, lookahead: int, alpha: float) -> "SteadyWindow":
        window = _native.Lookahead(
            [TABLES[0].rows], trainers=1, lookahead=lookahead, prefetch=1, slots=TABLES[0].rows
        )
        rows: list[tuple[int, float, int]] = []
        for batch in islice(id_batches(alpha), 4 * lookahead):
            window.push(list(batch.ids), np.array([[IDS]]))
            if window.ready:
                newest = window.newest_fetched
                estimated = resident_rows(window.distinct, newest, window.arrived)
                resident = window.resident
                fetched = int(window.pop().fetched.sum())
                rows.append((resident + fetched, estimated, fetched))
        return cls(*map(float, np.mean(rows[2 * lookahead :], axis=0)))


def planned_slots(lookahead: int, alpha: float) -> int:
    """Return the slots that a cache needs for batches like these."""
    window = SteadyWindow.measured(lookahead, alpha)
    return round(needed_slots(window.resident, window.fetched, PREFETCH))


class EvenPace(CacherPace):
    """Readers and a cacher that are faster than the trainers."""

    def __init__(self) -> None:
        pass

    @property
    def ahead(self) -> bool:
        return True

    def late(self) -> bool:
        return False

    def set_room(self, batches: int) -> None:
        del batches


@dataclass
class FollowedJob:
    """One trainer's cache, whose decisions are followed.

    Attributes
    ----------
    lookaheads : in force, by batch.
    """

    slots: int
    lookahead: int | None
    most: int | None = None
    lookaheads: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.adaptation = JobAdaptation(1, most_lookahead=self.most or self.lookahead)

    def parts(self, batches: Iterator[IdBatch]) -> list[TrainerBatch]:
        options = CacherOptions(
            tables=TABLES,
            groups=table_groups(TABLES),
            slots=(self.slots,),
            trainers=1,
            lookahead=self.lookahead,
            prefetch=PREFETCH,
        )

        def follow(decisions: BatchDecisions) -> None:
            self.adaptation.follow(decisions, EvenPace())
            self.lookaheads.append(decisions.lookahead)

        return [part for (part,) in dispatched(batches, options, follow=follow)]


@pytest.mark.parametrize("alpha", [0.0, 1.05])
def test_rows_in_a_cache_follow_from_those_of_a_window(alpha: float) -> None:
    window = SteadyWindow.measured(20, alpha)
    assert window.estimated == pytest.approx(window.resident, rel=0.05)


def test_a_cache_with_the_slots_that_are_needed_fetches_as_early_as_planned() -> None:
    """Also where batches differ: no row leaves for want of room, no fetch waits for a slot."""
    for alpha, lookahead in ((0.0, 10), (0.8, 20), (1.05, 30)):
        slots = planned_slots(lookahead, alpha)
        decisions = _native.Lookahead(
            [TABLES[0].rows], trainers=1, lookahead=lookahead, prefetch=PREFETCH, slots=slots
        )
        for batch in islice(id_batches(alpha, seed=3), 100):
            decisions.push(list(batch.ids), np.array([[IDS]]))
            if decisions.ready:
                decision = decisions.pop()
                assert decision.evicted_for_room == 0
                assert decision.after == max(-1, decision.batch - PREFETCH)


def test_a_planned_lookahead_stays_where_the_skew_does() -> None:
    job = FollowedJob(slots=planned_slots(40, alpha=1.05), lookahead=40)
    job.parts(islice(id_batches(1.05), 300))
    assert min(job.lookaheads) >= 36
    assert not job.adaptation.records.events


def test_a_lookahead_grows_to_that_of_a_plan_for_as_many_slots() -> None:
    job = FollowedJob(slots=planned_slots(40, alpha=1.05), lookahead=5, most=300)
    job.parts(islice(id_batches(1.05), 300))
    assert 36 <= min(job.lookaheads[150:]) <= max(job.lookaheads) <= 46


def test_a_lookahead_falls_where_skew_ends_and_rows_are_fetched_as_early_as_there_is_room() -> None:
    slots = planned_slots(40, alpha=1.05)
    skewed, even = islice(id_batches(1.05), 100), islice(id_batches(0.0), 100)
    job = FollowedJob(slots=slots, lookahead=40)
    parts = job.parts(chain(skewed, even))
    assert max(job.lookaheads[-50:]) < 10
    assert job.adaptation.status()["prefetch"] == PREFETCH
    assert not any(change["event"] == "prefetch" for change in job.adaptation.records.events)
    early = [part.batch - part.groups[0].after for part in parts[120:-10]]
    assert np.mean(early) >= 2, early
