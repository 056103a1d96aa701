"""Traces of jobs: skew that changes, readers, servers and trainers that slow, and noise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.embeddings.adapt.decide import JobState, decide
from headrace.embeddings.adapt.seen import JobChanges, SeenBatch, SeenStep
from headrace.embeddings.adapt.shares import shares_by_cost
from headrace.embeddings.changes import JobChange
from headrace.embeddings.room import needed_slots
from tests.policies import PolicyRun

Run = PolicyRun[JobState, SeenBatch, JobChanges]


def planned(
    lookahead: int = 40, *, most: int = 300, prefetch: int = 4, trainers: int | None = None
) -> Run:
    state = JobState.planned(
        lookahead=lookahead, most=most, prefetch=prefetch, ready=2, trainers=trainers
    )
    return PolicyRun(decide, state)


def told(run: Run, trace: Iterator[SeenBatch]) -> list[JobChange]:
    return [change for changes in run.follow(trace) for change in changes]


def even(batches: int, **changes: object) -> Iterator[SeenBatch]:
    """A job whose window fills the cache: one batch more needs more than its slots."""
    seen = SeenBatch(batch=0, arriving=40, slot_share=1.01)
    for batch in range(batches):
        yield replace(seen, batch=batch, arriving=batch + 40, **changes)  # type: ignore[arg-type]


@dataclass
class Caches:
    """A window of batches, each of hot rows and of others, which stay for half of the window.

    Attributes
    ----------
    hot, cold : rows of all batches, and the others of each, as parts of the slots, by batch.
    """

    run: Run
    hot: Callable[[int], float]
    cold: Callable[[int], float]
    readers: Callable[[int], bool] = lambda _: True
    window: list[int] = field(default_factory=list)
    lookaheads: list[int] = field(default_factory=list)

    def decisions(self, batches: int) -> list[JobChange]:
        """Decide so many batches; return what is told."""
        changes: list[JobChange] = []
        arriving = self.window[-1] + 1 if self.window else 0
        for batch in range(arriving - len(self.window), arriving - len(self.window) + batches):
            while len(self.window) < self.run.state.lookahead.lookahead:
                self.window.append(arriving)
                arriving += 1
            self.lookaheads.append(self.run.state.lookahead.lookahead)
            staying = max(map(self.hot, self.window)) + sum(map(self.cold, self.window)) / 2
            prefetch, newest = self.run.state.waits.prefetch, self.window[-1]
            coming = sum(map(self.cold, self.window[1:prefetch]))
            self.window.pop(0)
            changes += self.run.see(
                SeenBatch(
                    batch=batch,
                    arriving=arriving,
                    slot_share=needed_slots(staying, self.cold(newest), prefetch),
                    short=staying + coming > 1,
                    late=not self.readers(batch),
                )
            )
        return changes


def test_a_lookahead_follows_a_change_of_skew() -> None:
    """From 90% of accesses in hot rows to none: a batch has a sixth of the slots to itself."""
    caches = Caches(
        planned(50),
        hot=lambda batch: 0.38 if batch < 100 else 0.0,
        # with 0.02 rounding decides whether 55 batches fit
        cold=lambda batch: 0.0201 if batch < 100 else 0.16,
    )
    assert caches.decisions(50) == []
    assert set(caches.lookaheads) <= {*range(50, 55)}
    (down,) = caches.decisions(150)
    assert (down.name, down.before, down.after) == ("lookahead", 54, 6)
    assert str(down).endswith(
        "lookahead 54 -> 6: the caches have no room for the rows of as many batches"
    )
    assert caches.run.state.waits.prefetch == 4


def test_a_lookahead_grows_where_rows_need_less_room() -> None:
    caches = Caches(planned(6), hot=lambda _: 0.38, cold=lambda _: 0.0201)
    (change,) = caches.decisions(80)
    assert (change.name, change.before, change.after) == ("lookahead", 6, 54)


def test_a_batch_of_fewer_rows_is_no_room() -> None:
    """A lookahead that grew by each would be too long: it would fall and grow by turns."""
    run = planned(6)
    trace = [replace(seen, slot_share=1.02 if seen.batch % 7 else 0.98) for seen in even(200)]
    run.follow(trace)
    assert run.state.lookahead.lookahead == 6


def test_a_lookahead_grows_no_farther_than_planned_and_by_no_delay() -> None:
    run = planned(6, most=8)
    run.follow(even(20, slot_share=0.2))
    assert run.state.lookahead.lookahead == 8
    run = planned(6)
    run.follow(even(20, slot_share=0.2, ahead=False))
    assert run.state.lookahead.lookahead == 6


def test_trainers_go_on_with_what_has_arrived_while_readers_are_late() -> None:
    caches = Caches(
        planned(47, most=47),
        hot=lambda _: 0.38,
        cold=lambda _: 0.013,
        readers=lambda batch: not 60 <= batch < 90,
    )
    changes = caches.decisions(200)
    assert [(change.before, change.after) for change in changes] == [(47, 17), (17, 47)]
    assert "readers are late" in changes[0].reason


def test_a_lookahead_is_at_least_the_prefetch() -> None:
    run = planned(5)
    run.follow(even(9, late=True))
    assert run.state.lookahead.lookahead == 4


@dataclass
class Network:
    """Steps of a job whose waits depend on what is in force.

    Attributes
    ----------
    wait : part of a step, by the state and the batch.
    """

    run: Run
    wait: Callable[[JobState, int], float]
    batches: Iterator[int] = field(default_factory=count)

    def decisions(self, batches: int, **changes: object) -> list[JobChange]:
        def trace() -> Iterator[SeenBatch]:
            for batch, seen in zip(
                islice(self.batches, batches), even(batches, **changes), strict=True
            ):
                wait_s = self.wait(self.run.state, batch)
                step = SeenStep(batch=batch - 6, step_s=1.0, wait_s=wait_s)
                yield replace(seen, batch=batch, arriving=batch + 40, steps=(step,))

        return told(self.run, trace())


def test_prefetch_follows_a_server_whose_fetches_take_longer() -> None:
    """It is raised until waits end, which batches of before the change do not show."""
    network = Network(
        planned(), lambda state, batch: 0.0 if batch < 100 else max(0, 7 - state.waits.prefetch) / 8
    )
    assert network.decisions(100) == []
    changes = network.decisions(500)
    assert [(change.name, change.after) for change in changes] == [
        ("prefetch", 5),
        ("prefetch", 6),
        ("prefetch", 7),
    ]
    assert "trainers wait 38% of a step for rows" in changes[0].reason


def test_what_does_not_help_is_undone_once() -> None:
    """A server that is too slow on average: a larger prefetch keeps no trainer from waiting."""
    network = Network(planned(most=40), lambda _state, _batch: 0.3)
    changes = network.decisions(2000, slot_share=0.5)
    names = [(change.name, change.before, change.after) for change in changes]
    assert names == [
        ("prefetch", 4, 5),
        ("prefetch", 5, 4),
        ("lookahead limit", 40, 50),
        ("lookahead", 40, 50),
        ("lookahead limit", 50, 40),
        ("none", 0, 0),
    ]
    assert "it did not help: trainers wait 30% of a step, 30% before" in changes[1].reason
    assert "more servers or larger caches" in changes[-1].reason


def test_a_limit_that_helps_is_raised_again() -> None:
    """A slower link: with a longer lookahead fewer rows move."""
    network = Network(
        planned(most=40, prefetch=16),
        lambda state, _: max(0.0, 0.4 - (state.lookahead.lookahead - 40) / 100),
    )
    changes = network.decisions(2000, slot_share=0.1)
    limits = [change.after for change in changes if change.name == "lookahead limit"]
    assert limits == [50, 63, 79]


def test_more_parts_are_kept_ready_where_decisions_come_in_bursts() -> None:
    network = Network(planned(prefetch=16, most=40), lambda state, _: 0.36 / state.waits.ready)
    changes = network.decisions(1000, ahead=False)
    assert [(change.name, change.after) for change in changes] == [("ready", 4), ("ready", 8)]


def test_pauses_of_a_machine_change_nothing() -> None:
    """A step of 16 takes 20 times as long, and for 16 steps in 200 all wait."""
    network = Network(
        planned(),
        lambda _, batch: 19.0 if batch % 16 == 3 else 0.3 if batch % 200 < 16 else 0.01,
    )
    assert network.decisions(1000) == []


def test_a_prefetch_stays_where_the_caches_have_no_room_for_as_many_batches() -> None:
    """Decisions delay its fetches, so that a smaller one would fetch no row sooner."""
    run = planned(20)
    changes = told(run, even(100, slot_share=4.0, short=True))
    assert [(change.name, change.after) for change in changes] == [("lookahead", 4)]
    assert run.state.waits.prefetch == 4


def test_a_prefetch_that_rows_have_no_room_for_is_undone() -> None:
    network = Network(planned(20), lambda _state, _batch: 0.3)
    changes = network.decisions(1000, slot_share=1.2)
    assert [(change.name, change.before, change.after) for change in changes] == [
        ("prefetch", 4, 5),
        ("prefetch", 5, 4),
        ("none", 0, 0),
    ]


def slow_trainers(
    run: Run, batches: int, costs: Callable[[int], list[float]], waits: bool = True
) -> list[JobChange]:
    """Follow trainers whose examples cost so many seconds; shares arrive 40 batches later."""
    examples: dict[int, tuple[int, ...]] = {}

    def trace() -> Iterator[SeenBatch]:
        for seen in even(batches):
            shares = run.state.shares
            assert shares is not None
            examples[seen.arriving] = tuple(round(1000 * share) for share in shares.shares)
            counts = examples.get(seen.batch, (1000 // len(shares.shares),) * len(shares.shares))
            compute_s = tuple(
                number * cost for number, cost in zip(counts, costs(seen.batch), strict=True)
            )
            step_s = max(compute_s) if waits else 10 * max(compute_s)
            step = SeenStep(
                batch=seen.batch, step_s=step_s, wait_s=0.0, compute_s=compute_s, examples=counts
            )
            yield replace(seen, steps=(step,))

    return told(run, trace())


def test_shares_follow_a_trainer_that_slows_and_recovers() -> None:
    run = planned(trainers=2)
    changes = slow_trainers(run, 900, lambda batch: [1e-3, 2e-3 if 100 <= batch < 500 else 1e-3])
    assert [change.name for change in changes] == ["shares", "shares"]
    assert changes[0].after == pytest.approx((2 / 3, 1 / 3))
    assert changes[1].after == pytest.approx((1 / 2, 1 / 2))
    assert "an example takes trainer 1 2.00 times as long" in changes[0].reason
    assert "shares 0.500/0.500 -> 0.667/0.333" in str(changes[0])


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_shares_stay_equal_where_rates_only_vary(spread: float) -> None:
    random = np.random.default_rng(4)
    run = planned(trainers=4)
    assert slow_trainers(run, 2000, lambda _: [*random.lognormal(-7, spread, 4)]) == []


def test_shares_stay_equal_where_steps_do_not_depend_on_them_or_the_job_says_so() -> None:
    run = planned(trainers=2)
    assert slow_trainers(run, 300, lambda _: [1e-3, 2e-3], waits=False) == []
    for trainers in (None, 1):
        assert planned(trainers=trainers).state.shares is None


@given(costs=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=32))
def test_shares_are_within_their_limits(costs: list[float]) -> None:
    shares = shares_by_cost(costs)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0.5 / len(costs) - 1e-9
    assert max(shares) <= 1.5 / len(costs) + 1e-9
    for cost, share in zip(costs, shares, strict=True):
        for other, larger in zip(costs, shares, strict=True):
            assert cost <= other or share <= larger + 1e-9
