"""The posterior of rates: what is alike shares evidence; gains are those of samples."""

import numpy as np
import pytest

from headrace.index.configuration import Configuration
from headrace.index.plan.posterior import RatePosterior

HASHED = [Configuration(leaf="hashed", fragment_keys=keys) for keys in (256, 1024)]
LOG = Configuration(leaf="log", fragment_keys=256)
KNOWN = [*HASHED, LOG]
PREDICTED = [1e6, 2e6, 3e6]


def posterior(*runs: dict[int, float], short: bool = False) -> RatePosterior:
    """Return the posterior of runs: rates by places."""
    found = RatePosterior(KNOWN, PREDICTED)
    for run in runs:
        found.observe(list(run), list(run.values()), short=short)
    return found


def test_without_trials_it_is_the_prediction() -> None:
    assert posterior().per_s() == pytest.approx(PREDICTED)


def test_a_trial_tells_most_of_its_own_then_of_its_type() -> None:
    """On a machine of half the predicted speed all are slower, its own configuration surely so."""
    found = posterior({0: 0.5e6})
    own, alike, other = found.per_s() / PREDICTED
    assert 0.5 < own < alike < other < 0.6
    deviations = [float(found.ahead(0)[1][place]) for place in range(3)]
    assert deviations == sorted(deviations)


def test_many_trials_outweigh_the_prediction() -> None:
    found = posterior(*[{0: 3e6, 1: 2e6, 2: 1e6}] * 20)
    assert found.per_s() == pytest.approx([3e6, 2e6, 1e6], rel=0.05)


def test_short_trials_tell_of_the_order_not_of_the_rate() -> None:
    """Short ones of all are twice as fast: whole ones need not be."""
    rates = {place: 2 * rate for place, rate in enumerate(PREDICTED)}
    short, whole = posterior(rates, short=True), posterior(rates)
    assert short.per_s()[2] / short.per_s()[0] == pytest.approx(3.0, rel=0.05)
    assert short.per_s()[0] < 0.9 * whole.per_s()[0]


def test_a_slow_run_is_not_its_configurations() -> None:
    """The second one had a run at half the machine's speed more than the first."""
    fast, slow = {0: 1e6, 1: 2e6}, {0: 0.5e6, 1: 1e6}
    found = posterior(fast, slow, fast, slow, {1: 1e6, 2: 1.5e6}, {1: 1e6, 2: 1.5e6})
    rates = found.per_s()
    assert rates[1] / rates[0] == pytest.approx(2.0, rel=0.03)
    assert rates[2] / rates[1] == pytest.approx(1.5, rel=0.03)


def test_the_expected_gain_is_that_of_samples() -> None:
    found = posterior({0: 1.0e6, 1: 1.3e6}, {1: 1.2e6})
    ahead, deviation = found.ahead(1)
    draws = np.random.default_rng(0).normal(size=200_000)
    sampled = [
        float((mean + sd * draws).clip(0).mean()) for mean, sd in zip(ahead, deviation, strict=True)
    ]
    gains = found.expected_gain(1)
    assert gains == pytest.approx(sampled, abs=2e-3)
    assert gains[1] == pytest.approx(0.0, abs=1e-5)


def test_an_index_that_runs_nothing_has_a_rate() -> None:
    assert np.isfinite(posterior({0: 0.0}).per_s()).all()
