"""The policy by itself: observations in, actions out, no clock and no index."""

import numpy as np
import pytest

from headrace.index.adapt.decide import (
    SeenActivity,
    TuningAction,
    TuningLimits,
    TuningOutcome,
    TuningPhase,
    TuningState,
    decide,
)
from headrace.index.adapt.workload import (
    NONE,
    SeenWorkload,
    key_distance,
    merged_workload,
    mix_distance,
)
from tests.policies import PolicyRun

DONE, KEPT, FAILED = TuningOutcome.DONE, TuningOutcome.KEPT, TuningOutcome.FAILED


def look(
    inserts: float,
    *,
    cost_ns: float = 100.0,
    center: float = 0.5,
    count: int = 10_000,
    seed: int = 0,
) -> SeenWorkload:
    """A workload of finds and inserts whose keys are around a center, of 0 to 1."""
    random = np.random.default_rng(seed)
    sample = np.clip(random.normal(center, 0.1, 200), 0, 1) * 2**63
    finds = int(count * (1 - inserts))
    return SeenWorkload(
        counts=(finds, count - finds, 0, 0),
        cost_ns=(cost_ns, cost_ns, float("nan"), float("nan")),
        sample=np.sort(sample.astype(np.uint64)),
    )


class Run(PolicyRun[TuningState, SeenActivity, TuningAction]):
    """The policy, fed with one look after another, 0.1 s apart."""

    def __init__(self, **limits: float) -> None:
        super().__init__(decide, TuningState(limits=TuningLimits(**limits)))  # type: ignore[arg-type]
        self.now_s = 0.0

    def look_at(
        self, workload: SeenWorkload = NONE, outcome: TuningOutcome | None = None
    ) -> TuningAction:
        self.now_s += 0.1
        return self.see(SeenActivity(now_s=self.now_s, workload=workload, outcome=outcome))

    def until(self, action: TuningAction, workload: SeenWorkload, most: int = 50) -> int:
        """Return the number of looks that it takes until the action."""
        times = (self.now_s + 0.1 * number for number in range(1, most + 1))
        count = self.see_until(action, (SeenActivity(now_s=t, workload=workload) for t in times))
        self.now_s += 0.1 * count
        return count

    def plan(self, workload: SeenWorkload, outcome: TuningOutcome = DONE) -> TuningAction:
        """See a recording and a planning; return the action after it."""
        assert self.look_at(workload) is TuningAction.WAIT
        assert self.look_at(workload, DONE) is TuningAction.PLAN
        return self.look_at(workload, outcome)

    def follow(self, workload: SeenWorkload, after: SeenWorkload | None = None) -> TuningAction:
        """See a change through: recording, planning, conversion, judgement."""
        self.until(TuningAction.RECORD, workload)
        assert self.plan(workload) is TuningAction.CONVERT
        assert self.look_at(workload) is TuningAction.WAIT
        assert self.look_at(after or workload, DONE) is TuningAction.WAIT
        assert [self.look_at(after or workload) for _ in range(2)] == [TuningAction.WAIT] * 2
        return self.look_at(after or workload)


def test_the_phases_of_figure_3_5_are_planned_for_one_by_one() -> None:
    run = Run()
    for number, inserts in enumerate((0.15, 0.85, 1.0, 0.15)):
        workload = look(inserts, seed=number)
        began_s = run.now_s
        assert run.follow(workload) is TuningAction.ACCEPT
        assert run.now_s - began_s < 2
        assert {run.look_at(look(inserts, seed=seed)) for seed in range(100)} == {TuningAction.WAIT}


def test_a_mix_that_stays_is_planned_once() -> None:
    run = Run()
    run.follow(look(0.5))
    for seed in range(200):
        assert run.look_at(look(0.5 + 0.04 * (-1) ** seed, seed=seed)) is TuningAction.WAIT


def test_one_odd_look_is_no_change() -> None:
    run = Run()
    run.follow(look(0.2))
    for seed in range(20):
        assert run.look_at(look(0.9)) is TuningAction.WAIT
        assert run.look_at(look(0.2, seed=seed)) is TuningAction.WAIT


def test_an_idle_index_is_left_alone() -> None:
    run = Run()
    assert {run.look_at() for _ in range(50)} == {TuningAction.WAIT}
    run.follow(look(0.2))
    assert {run.look_at() for _ in range(50)} == {TuningAction.WAIT}
    # few operations a look are collected until they tell
    assert run.until(TuningAction.RECORD, look(0.9, count=500)) == 8


def test_moved_keys_are_a_change() -> None:
    run = Run()
    run.follow(look(0.5))
    assert run.until(TuningAction.RECORD, look(0.5, center=0.8)) <= 6  # the pause after the first


def test_a_conversion_that_was_kept_delays_no_other() -> None:
    run = Run()
    run.follow(look(0.1))
    assert run.until(TuningAction.RECORD, look(0.9)) == run.state.limits.confirmations


def test_a_useless_planning_is_not_repeated_soon() -> None:
    """Keys that move on and on, and the plan remains the best."""
    run = Run()
    plannings = []
    for number in range(600):
        moved = look(0.5, center=number % 7 / 7, seed=number)
        match run.look_at(moved):
            case TuningAction.RECORD:
                plannings.append(run.now_s)
                assert run.plan(moved, KEPT) is TuningAction.ACCEPT
            case action:
                assert action is TuningAction.WAIT
    pauses = np.diff(plannings)
    assert 4 <= len(pauses) <= 7
    assert (pauses[1:] > 1.3 * pauses[:-1]).all()


def test_a_slower_configuration_is_reverted() -> None:
    run = Run()
    assert run.follow(look(0.5), after=look(0.5, cost_ns=140)) is TuningAction.REVERT
    assert run.look_at(look(0.5)) is TuningAction.WAIT
    assert run.look_at(look(0.5), DONE) is TuningAction.ACCEPT
    assert run.state.phase is TuningPhase.WATCHING
    assert {run.look_at(look(0.5, seed=seed)) for seed in range(50)} == {TuningAction.WAIT}


def test_costs_within_their_scatter_are_kept() -> None:
    assert Run().follow(look(0.5), after=look(0.5, cost_ns=115)) is TuningAction.ACCEPT


def test_unknown_costs_are_not_judged() -> None:
    unknown = float("nan")
    assert Run().follow(look(0.5), after=look(0.5, cost_ns=unknown)) is TuningAction.ACCEPT
    assert Run().follow(look(0.5, cost_ns=unknown), after=look(0.5)) is TuningAction.ACCEPT


def test_a_change_while_converting_begins_anew() -> None:
    run = Run()
    run.until(TuningAction.RECORD, look(0.1))
    assert run.plan(look(0.1)) is TuningAction.CONVERT
    assert run.look_at(look(0.9)) is TuningAction.WAIT
    assert run.look_at(look(0.9)) is TuningAction.RECORD
    assert run.plan(look(0.9)) is TuningAction.CONVERT


def test_a_change_while_judging_is_not_judged() -> None:
    run = Run()
    run.until(TuningAction.RECORD, look(0.1))
    assert run.plan(look(0.1)) is TuningAction.CONVERT
    assert run.look_at(look(0.1), DONE) is TuningAction.WAIT
    assert run.look_at(look(0.9, cost_ns=900)) is TuningAction.ACCEPT


def test_failures_end_in_watching() -> None:
    run = Run()
    run.until(TuningAction.RECORD, look(0.1))
    assert run.look_at(look(0.1), FAILED) is TuningAction.ACCEPT
    run.until(TuningAction.RECORD, look(0.9))
    assert run.plan(look(0.9), FAILED) is TuningAction.ACCEPT


def test_distances() -> None:
    assert mix_distance(look(0.2), look(0.7)) == pytest.approx(0.5)
    assert key_distance(look(0.2), look(0.2, seed=3)) == 0
    assert key_distance(look(0.2), look(0.2, center=0.9)) > 0.5
    assert key_distance(look(0.2), NONE) == 0
    assert not look(0.2).in_batches
    both = merged_workload(look(0.0, count=100, cost_ns=10), look(0.0, count=300, cost_ns=30))
    assert both.counts == (400, 0, 0, 0)
    assert both.cost_ns[0] == 25
    assert both.cost_of((1.0, 0, 0, 0)) == 25
    assert NONE.cost_of((1.0, 0, 0, 0)) is None
