"""Algorithm 1, the rule of decay steps, and the schedules beside it, as pure functions."""

import copy
import json
import math
from itertools import pairwise

import pytest

from headrace.compression.adapt.accordion import Accordion, is_critical
from headrace.compression.adapt.controls import AdaQS, HandSet
from headrace.compression.adapt.rates import falls_between, is_decay_step
from headrace.compression.adapt.schedule import LevelSchedule, SeenMark
from headrace.compression.errors import CompressionError

LOW, HIGH = "powersgd:4", "powersgd:1"


def follow(
    schedule: LevelSchedule,
    norms: list[dict[str, float]],
    rates: list[float],
    noise: list[dict[str, float]] | None = None,
) -> list[str]:
    """Return for each mark the codecs of its layers; `rates[m]` is that of mark m."""
    state, levels = schedule.start(list(norms[0]))
    rows: list[str] = []
    for mark, found in enumerate(norms):
        rows.append(" ".join(str(levels.codecs[name]) for name in found))
        seen = SeenMark(
            marks=mark + 1,
            rates=[rates[min(mark + 1, len(rates) - 1)]],
            norms=found if levels.accumulate else None,
            noise=noise[mark] if noise is not None and levels.accumulate else None,
        )
        before = copy.deepcopy(state)
        following, levels = schedule.decide(state, seen)
        assert state == before, "decide changed its argument"
        state = json.loads(json.dumps(following))  # as a checkpoint keeps it
        assert state == following
    return rows


def test_low_without_history_then_by_the_change_of_the_norm() -> None:
    schedule = Accordion(low=LOW, high=HIGH, window=2)
    # the marks that count: 0 (history), then the ends of windows: 1, 3, 5, 7
    norms = [8.0, 3.9, 99.0, 2.0, 99.0, 1.9, 99.0, 3.0]
    rows = follow(schedule, [{"w": norm} for norm in norms], [0.1])
    assert rows == [LOW, LOW, LOW, LOW, HIGH, HIGH, HIGH, HIGH]
    # |3.9-2.0|/3.9 = 0.487 < 0.5: mark 4 on is high; |1.9-3.0|/1.9 = 0.58: low again after mark 7
    rows = follow(schedule, [{"w": norm} for norm in [*norms, 3.0]], [0.1])
    assert rows[-1] == LOW


@pytest.mark.parametrize(
    ("old", "current", "critical"),
    [
        (None, 1.0, True),
        (1.0, 0.5, True),
        (1.0, 0.51, False),
        (1.0, 1.5, True),  # the errata's brackets: a rise counts as a fall does
        (1.0, 1.49, False),
        (0.0, 0.0, False),
        (0.0, 0.1, True),
        (1.0, math.nan, True),
        (1.0, math.inf, True),
    ],
)
def test_the_brackets(old: float | None, current: float, critical: bool) -> None:
    assert is_critical(old, current, 0.5) is critical


def test_each_layer_or_the_whole_model() -> None:
    norms = [{"a": 1.0, "b": 10.0}, {"a": 0.1, "b": 10.0}, {"a": 0.1, "b": 10.0}]
    rows = follow(Accordion(low=LOW, high=HIGH, window=1), norms, [0.1])
    assert rows == [f"{LOW} {LOW}", f"{LOW} {LOW}", f"{LOW} {HIGH}"]
    rows = follow(Accordion(low=LOW, high=HIGH, window=1, per_layer=False), norms, [0.1])
    assert rows[2] == f"{HIGH} {HIGH}"  # the large layer outweighs the small one


def test_low_for_a_whole_window_after_a_step_of_decay() -> None:
    schedule = Accordion(low=LOW, high=HIGH, window=3)
    rates = [0.1] * 7 + [0.01] * 6
    rows = follow(schedule, [{"w": 1.0}] * 13, rates)
    # decays before mark 7, in the middle of a window: low at once, for the three marks 7, 8, 9
    assert rows == [LOW] * 3 + [HIGH] * 4 + [LOW] * 3 + [HIGH] * 3


def test_a_norm_that_is_not_finite_keeps_the_older_history() -> None:
    schedule = Accordion(low=LOW, high=HIGH, window=1)
    norms = [{"w": norm} for norm in (1.0, math.nan, 0.9, 0.9)]
    assert follow(schedule, norms, [0.1]) == [LOW, LOW, LOW, HIGH]


def decays(rates: list[float]) -> list[int]:
    """Return the marks before which the rate is found to step down."""
    recent: list[list[float]] = []
    found: list[int] = []
    for mark, (old, new) in enumerate(pairwise(rates)):
        falls = falls_between([old], [new])
        if is_decay_step(falls, recent):
            found.append(mark + 1)
        recent = [*recent, falls][-2:]
    return found


def test_smooth_schedules_have_no_steps() -> None:
    for marks in (5, 6, 7, 8, 10, 15, 20, 30, 90, 300, 5000):
        cosine = [(1 + math.cos(math.pi * mark / marks)) / 2 for mark in range(marks + 1)]
        warm_up = [(mark + 1) / 5 for mark in range(4)]
        assert decays(cosine) == [], marks
        assert decays(warm_up + cosine) == [], marks
        for power in (0.5, 1, 2, 3) if marks >= 8 else ():
            falling = [(1 - mark / marks) ** power for mark in range(marks + 1)]
            assert decays(falling) == [], (marks, power)
    assert decays([0.9**mark for mark in range(50)]) == []


def test_steps_are_found_alone_and_over_a_smooth_schedule() -> None:
    assert decays([0.1] * 5 + [0.01] * 5 + [0.001] * 5) == [5, 10]
    assert decays([0.1] * 5 + [0.05] * 5 + [0.02] * 2) == [5, 10]
    assert decays([0.01 * mark for mark in range(1, 6)] + [0.005] * 3) == [5]
    cosine = [(1 + math.cos(math.pi * mark / 30)) / 2 for mark in range(30)]
    assert decays([rate * (0.1 if mark >= 12 else 1) for mark, rate in enumerate(cosine)]) == [12]
    assert decays([0.5**mark for mark in range(20)]) == [1]  # a trend from its second fall


def test_a_window_in_steps() -> None:
    schedule = Accordion(low=LOW, high=HIGH, window=500, unit="steps")
    assert schedule.mark_steps == 50
    assert follow(schedule, [{"w": 1.0}] * 12, [0.1]) == [LOW] * 10 + [HIGH] * 2
    assert Accordion(low=LOW, high=HIGH, window=3, unit="steps").mark_steps == 1


def test_adaqs_halves_the_compression_as_the_ratio_halves() -> None:
    schedule = AdaQS(levels=("powersgd:1", "powersgd:2", "powersgd:4"), window=1)
    norms = [{"w": norm} for norm in (8.0, 5.0, 4.0, 3.0, 1.9, 0.1, 0.1)]
    rows = follow(schedule, norms, [0.1], [{"w": 1.0}] * 7)
    wanted = ["powersgd:1"] * 3 + ["powersgd:2"] * 2 + ["powersgd:4"] * 2
    assert rows == wanted
    calm = follow(schedule, [{"w": 1.0}] * 4, [0.1], [{"w": 0.0}] * 4)
    assert calm == ["powersgd:1"] * 4  # no deviation: no ratio


def test_adaqs_keeps_the_level_of_layers_without_a_gradient() -> None:
    """A KeyError: `Detector` gives them a norm of 0 and no noise, as after steps that overflow."""
    schedule = AdaQS(levels=("powersgd:1", "powersgd:2"), window=1)
    norms = [{"w": 0.0, "idle": 0.0}, {"w": 4.0, "idle": 0.0}, {"w": 1.0, "idle": 0.0}] * 2
    noise = [{}, {"w": 1.0}, {"w": 1.0}] * 2
    rows = follow(schedule, norms, [0.1], noise)
    assert rows == ["powersgd:1 powersgd:1"] * 3 + ["powersgd:2 powersgd:1"] * 3


def test_hand_set_levels() -> None:
    schedule = HandSet(levels=[(0, LOW), (2, HIGH), (4, LOW)])
    assert follow(schedule, [{"w": 1.0}] * 6, [0.1]) == [LOW, LOW, HIGH, HIGH, LOW, LOW]
    steps = HandSet(levels=[(0, LOW), (200, HIGH), (300, LOW)], unit="steps")
    assert steps.mark_steps == 100
    assert follow(steps, [{"w": 1.0}] * 4, [0.1]) == [LOW, LOW, HIGH, LOW]


def test_bad_arguments() -> None:
    for wrong, needed in (
        ({"eta": 0.0}, "eta is 0.0, needs more than 0"),
        ({"window": 0}, "window is 0, needs 1 or more epochs"),
        ({"unit": "hours"}, "needs 'epochs' or 'steps'"),
        ({"low": "powersgd:0"}, "rank is 0"),
        ({"low": HIGH, "high": LOW}, "needs the gentler codec as low"),
    ):
        with pytest.raises(CompressionError, match=needed):
            Accordion(**{"low": LOW, "high": HIGH, **wrong})  # pyright: ignore[reportArgumentType]
    with pytest.raises(CompressionError, match=r"begin at \[0, 5, 5\]"):
        HandSet(levels=[(0, LOW), (5, HIGH), (5, LOW)])
    with pytest.raises(CompressionError, match="levels is empty"):
        AdaQS(levels=())
    with pytest.raises(CompressionError, match="levels is the text 'sign', needs a list"):
        AdaQS(levels="sign")
    with pytest.raises(CompressionError, match="fall is 1"):
        AdaQS(levels=(LOW,), fall=1.0)
    with pytest.raises(CompressionError, match="window is 10 steps, needs more than 10"):
        AdaQS(levels=(LOW,), unit="steps")  # one step has no deviation: no level ever changed
    assert AdaQS(levels=(LOW,), window=11, unit="steps").mark_steps == 2
