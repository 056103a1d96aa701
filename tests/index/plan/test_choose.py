"""Choosing: the model ranks, trials decide, the cap holds, and all of it is reproducible."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from headrace.index.configuration import Configuration
from headrace.index.errors import CapError
from headrace.index.plan.choose import ROUNDS, plan
from headrace.index.plan.grid import grid
from headrace.index.plan.plan import IndexPlan
from headrace.index.plan.trial import TOGETHER, ConfigurationTrial
from headrace.index.tables import LEAVES
from headrace.index.trace import FIND, INSERT, Trace
from tests.index.plan.models import FakeTrials, profile, random_model

SAMPLED = pytest.mark.sampled(4)

MODEL = random_model()


def rate_of(configuration: Configuration) -> float:
    """A rate that differs between all configurations of the grid."""
    return 1e6 * 1.01 ** grid().index(configuration)


def test_the_grid_has_all_types() -> None:
    assert len(set(grid())) == len(grid()) >= 24
    assert {each.leaf for each in grid()} == set(LEAVES)


def test_without_trials_the_best_prediction_is_chosen() -> None:
    found = plan(profile(), model=MODEL)
    found.verify()
    rates = [each.predicted_per_s for each in found.candidates]
    assert rates == sorted(rates, reverse=True)
    assert len(found.candidates) == len(grid())
    assert not any(each.trials for each in found.candidates)
    assert found.profile_digest == profile().digest
    assert found.settings["model"] == MODEL.digest
    assert plan(profile(), model=MODEL).digest == found.digest


@SAMPLED
def test_the_best_in_trials_is_chosen() -> None:
    """Whatever the model predicts: this one's weights are random."""
    trials = FakeTrials(rate_of, seconds=1e-3)
    found = plan(profile(), model=MODEL, trial=trials)
    found.verify()
    assert set(trials.asked) == {each.configuration for each in found.candidates if each.trials}
    assert rate_of(found.configuration) > 0.98 * max(map(rate_of, grid()))
    assert found.chosen.trial_per_s == pytest.approx(rate_of(found.configuration), rel=0.02)
    assert found.chosen.leaves == (0, 0, 7, 0)
    few = FakeTrials(rate_of)
    assert (
        sum(each.trials > 0 for each in plan(profile(), model=MODEL, trial=few, top=5).candidates)
        == 5
    )


def test_candidates_that_fall_behind_are_not_tried_again() -> None:
    rates = iter([1.0] * 3 + [0.96, 0.86, 0.7])
    steady: dict[Configuration, float] = {}

    def rate(configuration: Configuration) -> float:
        if configuration not in steady:
            steady[configuration] = 1e6 * next(rates)
        return steady[configuration]

    hashed = [each for each in grid() if each.leaf == "hashed"]
    trials = FakeTrials(rate, seconds=1e-3)
    found = plan(profile(), model=MODEL, trial=trials, configurations=hashed, top=6)
    tries = {steady[each.configuration]: each.trials for each in found.candidates if each.trials}
    assert steady[found.configuration] == 1e6
    assert max(tries.values()) <= ROUNDS
    assert tries[0.7e6] <= tries[0.86e6] <= 2
    assert tries[0.96e6] <= 3


def test_slow_moments_do_not_decide() -> None:
    calls: Counter[Configuration] = Counter()

    def disturbed(configuration: Configuration) -> float:
        calls[configuration] += 1
        return rate_of(configuration) * (0.9 if calls[configuration] % 3 == 1 else 1)

    found = plan(profile(), model=MODEL, trial=FakeTrials(disturbed))
    assert rate_of(found.configuration) > 0.97 * max(map(rate_of, calls))


def test_one_trial_is_no_evidence_against_many() -> None:
    """A configuration of one lucky trial was chosen over one of 21."""
    hashed = [each for each in grid() if each.leaf == "hashed"][:4]
    calls: Counter[Configuration] = Counter()
    lucky: list[Configuration] = []

    def rate(configuration: Configuration) -> float:
        calls[configuration] += 1
        if not lucky and len(calls) == 4:
            lucky.append(configuration)
        if configuration in lucky:
            return 1.15e6 if calls[configuration] == 1 else 0.8e6
        return 1e6

    trials = FakeTrials(rate, seconds=0.02)
    found = plan(profile(), model=MODEL, trial=trials, configurations=hashed, top=4)
    assert found.configuration not in lucky
    assert len(lucky) == 1


@SAMPLED
@pytest.mark.parametrize("seed", range(20))
def test_a_choice_from_noisy_trials_is_near_the_best(seed: int) -> None:
    """Each has noise, and the machine is slower for some seconds, then faster again."""
    random = np.random.default_rng(seed)
    hashed = [each for each in grid() if each.leaf == "hashed"]
    rates = {each: 1e6 * 1.05 ** (place % 7) for place, each in enumerate(hashed)}

    def noisy(configuration: Configuration) -> float:
        slow = 0.6 if len(trials.asked) // 10 % 2 else 1.0
        return rates[configuration] * slow * random.normal(1.0, 0.05)

    trials = FakeTrials(noisy, seconds=0.2)
    found = plan(profile(), model=MODEL, trial=trials, configurations=hashed)
    found.verify()
    assert rates[found.configuration] > 0.85 * max(rates.values())


def test_candidates_have_the_spread_of_their_trials() -> None:
    rates = iter([1e6, 1.2e6] * 1000)
    trials = FakeTrials(lambda _: next(rates))
    found = plan(profile(), model=MODEL, trial=trials)
    for each in found.candidates:
        assert (each.trial_spread is None) == (each.trials < 2)
    spreads = [each.trial_spread for each in found.candidates if each.trial_spread is not None]
    assert spreads
    assert all(0 <= spread <= 0.2 for spread in spreads)
    again = IndexPlan.from_artifact(found.to_artifact())
    assert [each.trial_spread for each in again.candidates] == [
        each.trial_spread for each in found.candidates
    ]
    assert again.digest == found.digest


def test_trials_end_with_their_time() -> None:
    trials = FakeTrials(rate_of, seconds=3.0)
    found = plan(profile(), model=MODEL, trial=trials, most_s=8.0)
    assert len(trials.asked) == TOGETHER
    assert found.configuration == max(trials.asked, key=rate_of)


def test_other_types_than_those_predicted_best_are_tried() -> None:
    """A type whose best is predicted within a factor of two may be the fastest."""
    trials = FakeTrials(rate_of)
    found = plan(profile(), model=MODEL, trial=trials)
    best = max(each.predicted_per_s for each in found.candidates)
    near = {each.configuration.leaf for each in found.candidates if each.predicted_per_s * 2 > best}
    assert near <= {each.leaf for each in trials.asked}


@SAMPLED
def test_trials_correct_what_is_expected_of_their_type() -> None:
    known = plan(profile(), model=MODEL).candidates
    predicted = {each.configuration: each.predicted_per_s for each in known}
    slow = known[0].configuration.leaf
    trials = FakeTrials(
        lambda each: predicted[each] * (0.01 if each.leaf == slow else 1.0), seconds=1e-3
    )
    found = plan(profile(), model=MODEL, trial=trials)
    first = {each.configuration for each in known[:3]}
    assert {each for each in trials.asked if each.leaf == slow} <= first
    best = max(predicted[each] for each in predicted if each.leaf != slow)
    assert predicted[found.configuration] > 0.98 * best


def test_short_trials_rank_what_the_model_ranks_otherwise() -> None:
    """On a machine that reverses the model's order only the fastest have whole trials."""
    long = profile(operations=20_000, inserts=0.1)
    known = plan(long, model=MODEL).candidates
    places = {each.configuration: place for place, each in enumerate(known)}
    trials = FakeTrials(lambda each: 1e6 * 1.03 ** places[each])

    whole: set[Configuration] = set()

    def short_ones_are_short(
        configurations: Sequence[Configuration], trace: Trace
    ) -> list[ConfigurationTrial]:
        seconds = 0.1 * len(trace) / len(long.sample)
        if len(trace) == len(long.sample):
            whole.update(configurations)
        return [replace(found, seconds=seconds) for found in trials(configurations, trace)]

    found = plan(long, model=MODEL, trial=short_ones_are_short)
    assert places[found.configuration] >= len(known) - 2
    assert 3 <= len(whole) <= 12
    for trace in trials.traces:
        assert np.array_equal(trace.loaded, long.sample.loaded)
        assert np.array_equal(trace.keys, long.sample.keys[: len(trace)])


def test_short_trials_keep_to_the_cap_and_leave_time() -> None:
    long = profile(operations=20_000, inserts=0.1)
    known = plan(long, model=MODEL).candidates
    sizes = {each.configuration: each.predicted_bytes_per_key for each in known}
    cap = sorted(sizes.values())[4]
    trials = FakeTrials(rate_of, lambda _: 0.9 * cap)
    plan(long, model=MODEL, trial=trials, most_bytes_per_key=cap)
    assert set(trials.asked) <= {each for each in sizes if sizes[each] <= 1.15 * cap}
    slow = FakeTrials(rate_of, seconds=1.0)
    assert plan(long, model=MODEL, trial=slow, most_s=8.0).chosen.trials
    whole = [trace for trace in slow.traces if len(trace) == len(long.sample)]
    assert len(slow.traces) - len(whole) == 1  # by turns of four; then 0.4 of the time is over
    assert len(whole) >= 1
    with pytest.raises(CapError, match="no configuration is within it"):
        plan(long, model=MODEL, trial=FakeTrials(rate_of), most_bytes_per_key=1e-3)


def test_a_trend_along_a_parameter_is_followed() -> None:
    """Larger leaves are faster than predicted, so the largest is expected to be, too."""
    sizes = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    known = [Configuration(leaf="gapped", leaf_keys=keys) for keys in sizes]
    trials = FakeTrials(lambda each: 1e6 * each.leaf_keys)
    found = plan(profile(), model=MODEL, trial=trials, configurations=known, top=5)
    assert found.configuration.leaf_keys == sizes[-1]


def test_the_cap_holds_by_trials() -> None:
    def bytes_of(configuration: Configuration) -> float:
        return 18.0 if configuration.leaf == "log" else 30.0

    cap = 1e9  # of the predictions, which are random
    trials = FakeTrials(rate_of, bytes_of)
    assert plan(profile(), model=MODEL, trial=trials, most_bytes_per_key=cap).chosen.trials
    trials = FakeTrials(rate_of, bytes_of)
    known = [Configuration(leaf="hashed"), Configuration(leaf="log"), Configuration(leaf="gapped")]
    found = plan(
        profile(),
        model=MODEL,
        trial=FakeTrials(lambda _: 1e6, bytes_of),
        configurations=known,
        most_bytes_per_key=20.0,
    )
    assert found.configuration.leaf == "log"
    found.verify()
    with pytest.raises(CapError, match="the cap is 10 bytes per key, .* the least is 18"):
        plan(
            profile(),
            model=MODEL,
            trial=FakeTrials(lambda _: 1e6, bytes_of),
            configurations=known,
            most_bytes_per_key=10.0,
        )


def test_the_cap_holds_by_predictions() -> None:
    free = plan(profile(), model=MODEL)
    sizes = sorted(each.predicted_bytes_per_key for each in free.candidates)
    cap = sizes[len(sizes) // 2]
    found = plan(profile(), model=MODEL, most_bytes_per_key=cap)
    assert found.chosen.predicted_bytes_per_key <= cap
    within = [each for each in free.candidates if each.predicted_bytes_per_key <= cap]
    assert found.chosen == max(within, key=lambda each: each.predicted_per_s)
    with pytest.raises(CapError, match="inf bytes per key, needs a finite number"):
        plan(profile(), most_bytes_per_key=float("inf"))
    with pytest.raises(CapError, match="no configuration is within it"):
        plan(profile(), model=MODEL, most_bytes_per_key=sizes[0] / 2)


def test_the_frontier_is_measured_on_request() -> None:
    trials = FakeTrials(lambda _: 4e6)
    found = plan(profile(inserts=0.3), model=MODEL, trial=trials, frontier=True)
    assert {each.read_ns for each in found.candidates} == {250.0}
    assert found.settings["frontier"] == "measured"
    kinds = [set(trace.operations.tolist()) for trace in trials.traces]
    assert kinds.count({FIND}) == kinds.count({INSERT}) == len(grid())
