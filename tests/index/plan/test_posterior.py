"""The posterior of rates: what is alike shares evidence; gains are those of samples."""

import numpy as np
import pytest

from headrace.index.configuration import Configuration
from headrace.index.plan.posterior import RatePosterior

HASHED = [Configuration(leaf="hashed", fragment_keys=keys) for keys in (256, 1024)]
LOG = Configuration(leaf="log", fragment_keys=256)
KNOWN = [*HASHED, LOG]
PREDICTED = [1e6, 2e6, 3e6]


def posterior(*trials: tuple[int, float, bool, float]) -> RatePosterior:
    found = RatePosterior(KNOWN, PREDICTED)
    for place, per_s, short, at_s in trials:
        found.observe(place, per_s, short=short, at_s=at_s)
    return found


def test_without_trials_it_is_the_prediction() -> None:
    assert posterior().per_s() == pytest.approx(PREDICTED)


def test_a_trial_tells_most_of_its_own_then_of_its_type() -> None:
    """On a machine of half the predicted speed all are slower, its own configuration surely so."""
    own, alike, other = posterior((0, 0.5e6, False, 0.0)).per_s() / PREDICTED
    assert 0.5 < own < alike < other < 0.6
    deviations = [posterior((0, 0.5e6, False, 0.0)).deviation(place) for place in range(3)]
    assert deviations == sorted(deviations)
    assert deviations[0] < 0.3


def test_many_trials_outweigh_the_prediction() -> None:
    found = posterior(
        *((place, rate, False, 0.0) for place, rate in enumerate((3e6, 2e6, 1e6))),
        *(
            (place, rate, False, float(turn))
            for turn in range(20)
            for place, rate in enumerate((3e6, 2e6, 1e6))
        ),
    )
    assert found.per_s() == pytest.approx([3e6, 2e6, 1e6], rel=0.03)


def test_short_trials_tell_of_the_order_not_of_the_rate() -> None:
    """Short ones of all are twice as fast: whole ones need not be."""
    short = posterior(*((place, 2 * rate, True, 0.0) for place, rate in enumerate(PREDICTED)))
    whole = posterior(*((place, 2 * rate, False, 0.0) for place, rate in enumerate(PREDICTED)))
    assert short.per_s()[2] / short.per_s()[0] == pytest.approx(3.0, rel=0.05)
    assert short.deviation(0) > 2 * whole.deviation(0)


def test_a_slow_moment_is_not_one_configurations() -> None:
    """The second half of the trials is on a machine of half the speed, and has one of the two."""
    rates = [(0, 1e6), (1, 2e6)] * 4 + [(0, 0.5e6), (1, 1e6)] * 2 + [(1, 1e6)] * 4
    trials = [(place, rate, False, 2.0 * turn) for turn, (place, rate) in enumerate(rates)]
    ahead, _ = posterior(*trials).ahead(0)
    mean_of_each = np.log(np.mean([r for p, r in rates if p == 1]))
    without_time = mean_of_each - np.log(np.mean([r for p, r in rates if p == 0]))
    assert abs(ahead[1] - np.log(2)) < 0.5 * abs(without_time - np.log(2))


def test_the_expected_gain_is_that_of_samples() -> None:
    found = posterior((0, 1.0e6, False, 0.0), (1, 1.3e6, False, 1.0), (2, 1.2e6, True, 2.0))
    ahead, deviation = found.ahead(1)
    draws = np.random.default_rng(0).normal(size=200_000)
    sampled = [
        float((mean + sd * draws).clip(0).mean()) for mean, sd in zip(ahead, deviation, strict=True)
    ]
    gains = found.expected_gain(1)
    assert gains == pytest.approx(sampled, abs=2e-3)
    assert gains[1] == pytest.approx(0.0, abs=1e-5)


def test_an_index_that_runs_nothing_has_a_rate() -> None:
    assert np.isfinite(posterior((0, 0.0, False, 0.0)).per_s()).all()
