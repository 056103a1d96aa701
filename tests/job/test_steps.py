"""Steps are found in calls alone, and only lasting changes of their time are reported."""

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.job.period import find_period, regroup
from headrace.job.steps import CHANGED, MARK, Change, ChangeDetector, StepClock, TrainingStep

Calls = list[tuple[Hashable, float]]


def calls_of(
    pattern: Sequence[Hashable], durations: Sequence[float], start_s: float = 100.0
) -> Calls:
    """Steps of these durations: computing for half of it, then the pattern's calls."""
    made: Calls = []
    for duration in durations:
        for k, key in enumerate(pattern):
            made.append((key, start_s + duration * (0.5 + 0.5 * k / len(pattern))))
        start_s += duration
    return made


def fed(clock: StepClock, calls: Calls) -> list[TrainingStep]:
    """Feed one by one: how calls are batched must not matter."""
    return [step for call in calls for step in clock.feed([call])]


def smallest_period(keys: Sequence[int]) -> int | None:
    """By definition: of what repeats three times at the end, the shortest that explains most."""
    covered = {}
    for period in range(1, len(keys) // 3 + 1):
        length = period
        while length < len(keys) and keys[-length - 1] == keys[-length - 1 + period]:
            length += 1
        if length >= 3 * period:
            covered[period] = length
    enough = 0.9 * max(covered.values(), default=0)
    return min((p for p, length in covered.items() if length >= enough), default=None)


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_period_is_the_one_by_definition(keys: list[int]) -> None:
    assert find_period(keys) == smallest_period(keys)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 5))
@example([1, 0, 1, 1, 1, 1, 1, 1, 1], 0)
def test_steps_are_found_whatever_their_calls(pattern: list[int], noise_before: int) -> None:
    clock = StepClock()
    before = [(f"once {k}", float(k)) for k in range(noise_before)]
    steps = fed(clock, [*before, *calls_of(pattern, [0.2] * 40)])
    assert len(steps) >= 10
    # a pattern that repeats something shorter is found as that, or as what takes equal times; half
    # of a pattern's time is before its first call, so that only whole patterns have its mean
    last = steps[-3 * len(pattern) :]
    assert sum(step.duration_s for step in last) / len(last) == pytest.approx(
        0.2 * len(clock.pattern) / len(pattern), rel=0.5
    )
    assert {step.pattern for step in steps[-5:]} == {steps[-1].pattern}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20])
def test_distinct_calls_give_exact_step_times(size: int) -> None:
    clock = StepClock()
    durations = [0.2 + 0.01 * (k % 7) for k in range(30)]
    steps = fed(clock, calls_of(range(size) if size > 1 else ["a"], durations))
    assert len(clock.pattern) == size
    assert len(steps) >= 20
    assert np.mean([step.duration_s for step in steps]) == pytest.approx(0.23, rel=0.05)


def test_a_step_of_equal_calls_is_told_by_its_pause() -> None:
    times = np.array([t for _, t in calls_of(["a"] * 5, [1.0] * 20)])
    assert regroup(times, 1) == 5
    clock = StepClock()
    steps = fed(clock, calls_of(["a"] * 5, [1.0] * 80))
    assert [step.duration_s for step in steps[-10:]] == pytest.approx([1.0] * 10)


def test_a_run_of_equal_calls_is_no_period_once_more_is_known() -> None:
    clock = StepClock()
    steps = fed(clock, calls_of(["a"] * 9 + ["b"], [1.0] * 40))
    assert len(clock.pattern) == 10
    assert [step.duration_s for step in steps[-10:]] == pytest.approx([1.0] * 10)


def test_a_call_out_of_the_pattern_costs_its_step_only() -> None:
    clock = StepClock()
    pattern = ["a", "b", "c"]
    fed(clock, calls_of(pattern, [1.0] * 20))
    barrier = [("barrier", 121.0)]
    steps = fed(clock, [*barrier, *calls_of(pattern, [1.0] * 5, start_s=125.0)])
    assert [step.duration_s for step in steps] == pytest.approx([1.0] * 3)
    assert {step.pattern for step in steps} == {1}


def test_another_pattern_replaces_the_first() -> None:
    clock = StepClock()
    fed(clock, calls_of(["a", "b"], [1.0] * 20))
    steps = fed(clock, calls_of(["x", "y", "z"], [2.0] * 30, start_s=200.0))
    assert sorted(clock.pattern) == ["x", "y", "z"]  # pyright: ignore[reportArgumentType]
    assert steps[-1].pattern == 2
    assert steps[-1].duration_s == pytest.approx(2.0)


def test_the_training_loop_may_say_where_steps_end() -> None:
    clock = StepClock()
    calls: Calls = []
    for k in range(6):
        # evaluation calls of varying number: no pattern to find
        calls += [(f"call {j}", k + j / 10) for j in range(k)] + [(MARK, k + 0.9)]
    steps = clock.feed(calls)
    assert [step.duration_s for step in steps] == pytest.approx([1.0] * 5)
    assert clock.pattern == tuple(f"call {j}" for j in range(5))


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("after_s", [0.3, 2.0])
def test_an_announced_change_is_none(marked: bool, announced: bool, after_s: float) -> None:
    clock, detector = StepClock(), ChangeDetector()
    found: list[Change | None] = []
    for step in range(60):
        if step == 30 and announced:
            found += [detector.add(each) for each in clock.feed([(CHANGED, 30.0)])]
        start_s, took_s = (step, 1.0) if step < 30 else (30 + after_s * (step - 30), after_s)
        calls: Calls = [(name, start_s + took_s * at) for name, at in (("a", 0.5), ("b", 0.7))]
        calls += [(MARK, start_s + took_s)] * marked
        found += [detector.add(each) for each in fed(clock, calls)]
    assert any(found) != announced
    assert detector.latest_s == pytest.approx(after_s)
    assert detector.reference_s == pytest.approx(after_s)


def test_a_step_that_an_announcement_falls_into_does_not_count() -> None:
    clock, detector = StepClock(), ChangeDetector()
    for step in range(5):
        clock.feed([("a", step + 0.5), (MARK, step + 1.0)])
    [mixed] = clock.feed([("a", 5.2), (CHANGED, 5.4), ("a", 5.6), (MARK, 6.0)])
    assert detector.add(mixed) is None
    assert detector.steps == 0
    [whole] = clock.feed([("b", 6.5), (MARK, 7.0)])
    detector.add(whole)
    assert detector.steps == 1


# ---- changes ----------------------------------------------------------------------------------


def changes(durations: Sequence[float]) -> Iterator[tuple[int, Change]]:
    detector = ChangeDetector()
    for index, duration in enumerate(durations):
        step = TrainingStep(duration_s=duration, pattern=1)
        change = detector.add(step)
        if change is not None:
            yield index, change


@pytest.mark.parametrize("factor", [1.3, 2.5, 0.7, 0.4])
def test_a_lasting_change_is_reported_at_its_second_step(factor: float) -> None:
    [(index, change)] = changes([1.0] * 20 + [factor] * 20)
    assert index == 21
    assert (change.before_s, change.after_s) == (1.0, factor)
    assert change.slower == (factor > 1)


def test_there_and_back_are_two_changes() -> None:
    found = list(changes([1.0] * 10 + [2.0] * 10 + [1.0] * 10))
    ratios = [(index, change.after_s / change.before_s) for index, change in found]
    assert ratios == [(11, 2.0), (21, 0.5)]


def test_a_little_more_after_a_change_is_none() -> None:
    assert [index for index, _ in changes([1.0] * 10 + [1.3] * 5 + [1.5] * 20)] == [11]


@pytest.mark.parametrize("factor", [1.15, 0.87])
def test_less_than_a_fifth_is_no_change(factor: float) -> None:
    assert not list(changes([1.0] * 20 + [factor] * 50))


@pytest.mark.parametrize("recovery", [True, False])
def test_a_seventh_less_is_a_change_where_recovery_is_expected(recovery: bool) -> None:
    detector = ChangeDetector()
    detector.recovery = recovery
    steps = [TrainingStep(duration_s=duration, pattern=1) for duration in [1.0] * 10 + [0.86] * 10]
    found = [change for step in steps if (change := detector.add(step))]
    assert [change.slower for change in found] == [False] * recovery


def test_single_stragglers_are_ignored() -> None:
    durations = [1.0 if k % 5 else 30.0 for k in range(100)]
    assert not list(changes(durations))


def test_slow_drift_is_noticed() -> None:
    assert list(changes([1.0 * 1.003**k for k in range(200)]))


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3])
def test_noise_alone_is_no_change(sigma: float) -> None:
    found = 0
    for seed in range(5):
        random = np.random.default_rng(seed)
        found += len(list(changes(np.exp(random.normal(0, sigma, 400)).tolist())))
    # in 2000 steps; a false alarm costs a look at statistics, which then explain nothing
    assert found <= (0 if sigma <= 0.1 else 3)


def test_a_change_is_found_in_noise() -> None:
    random = np.random.default_rng(1)
    noise = np.exp(random.normal(0, 0.05, 60))
    noise[30:] *= 2.0
    [(index, change)] = changes(noise.tolist())
    assert index == 31
    assert change.after_s / change.before_s == pytest.approx(2.0, rel=0.15)


def test_steps_that_may_be_parts_of_steps_change_nothing() -> None:
    """Three equal calls a step look like three steps until times have been asked."""
    clock, detector = StepClock(), ChangeDetector()
    calls = [("same", 100.0 + 0.3 * step + at) for step in range(40) for at in (0.0, 0.01, 0.02)]
    found = [detector.add(step) for step in fed(clock, calls)]
    assert found
    assert not any(found)
    assert len(clock.pattern) == 3


def after_restart(durations: Sequence[float], like_s: float | None) -> list[int]:
    """At which steps after a restart a change is found."""
    detector = ChangeDetector()
    steps = [
        TrainingStep(duration_s=duration, pattern=1) for duration in [1.0] * 10 + list(durations)
    ]
    for step in steps[:10]:
        detector.add(step)
    detector.restart(like_s)
    assert detector.steps == 0
    return [index for index, step in enumerate(steps[10:]) if detector.add(step)]


def test_what_another_plan_takes_is_seen_unless_it_is_known() -> None:
    assert after_restart([2.0] * 10, None) == []
    assert after_restart([2.0] * 10, 1.0) == [2]  # the first is of both plans
    assert after_restart([5.0, *[1.0] * 9], 1.0) == []
