"""Posterior of configurations' rates: what predictions and trials tell of them together.

The logarithms of all rates, of the effects of a trial's length, and of the machine's speed in each
run are one Gaussian vector. A trial is then evidence of its configuration, of the others of its
type, and of the machine's speed in the run that it is of, each as far as they vary together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from headrace.index.configuration import Configuration
from headrace.index.plan.inputs import configuration_input

_MACHINE = 1.0
"""Standard deviation of the logarithm of this machine's rates over those predicted, for all."""

_TYPE, _SLOPE, _OWN = 0.2, 0.05, 0.1
"""The same of a type of leaves, of each bucket of a parameter within it, and of a configuration by
itself: together a factor of 1.2, the predictions' error for keys of unseen families
(`both_error_log2` of the model's provenance)."""

_SHORT_MACHINE, _SHORT_TYPE, _SHORT_OWN = 0.5, 0.2, 0.1
"""The same of short trials over whole ones, in which maps grow: types differ in what that costs."""

_NOISES, _SPEEDS = (0.01, 0.03, 0.1, 0.2), (0.0, 0.1, 0.3)
"""Standard deviations of a trial by itself, and of the machine's speed in a run, of which the
trials tell the likeliest pair. A run's trials take turns, so their noise is some percent on a
machine whose speed drifts by ten times that, as where its caches are shared."""


@dataclass(frozen=True, slots=True)
class _Observation:
    place: int
    log_per_s: float
    short: bool
    run: int


class RatePosterior:
    """Posterior of the rates of whole trials of some configurations.

    Parameters
    ----------
    configurations : whose rates it is of; places are in this list.
    predicted_per_s : operations per second by the model.
    """

    def __init__(
        self, configurations: Sequence[Configuration], predicted_per_s: Sequence[float]
    ) -> None:
        self._prior = np.log(np.asarray(predicted_per_s, dtype=np.float64))
        leaves = np.array([configuration.leaf for configuration in configurations])
        alike = (leaves[:, None] == leaves).astype(np.float64)
        inputs = configuration_input(configurations).astype(np.float64)
        inputs -= alike @ inputs / alike.sum(axis=1, keepdims=True)  # from the mean of the type
        own = np.eye(len(leaves))
        self._whole = (
            _MACHINE**2 + alike * (_TYPE**2 + _SLOPE**2 * (inputs @ inputs.T)) + _OWN**2 * own
        )
        self._short = _SHORT_MACHINE**2 + _SHORT_TYPE**2 * alike + _SHORT_OWN**2 * own
        self._observations: list[_Observation] = []
        self._mean, self._covariance = self._prior, self._whole

    def observe(self, places: Sequence[int], per_s: Sequence[float], *, short: bool) -> None:
        """Take the trials of one run into account, which took turns.

        Parameters
        ----------
        per_s : operations per second of each place; 0 counts as 1 a second.
        short : whether they ran the first of the operations only.
        """
        run = self._observations[-1].run + 1 if self._observations else 0
        for place, rate in zip(places, per_s, strict=True):
            self._observations.append(_Observation(place, math.log(max(rate, 1.0)), short, run))
        self._solve()

    def per_s(self) -> np.ndarray:
        """Return the expected rate of each configuration, float64."""
        return np.exp(self._mean)

    def ahead(self, leader: int) -> tuple[np.ndarray, np.ndarray]:
        """Return by how much each is ahead of a configuration, and the deviation of that.

        Both are of the logarithms of rates.
        """
        own = self._covariance[leader]
        variance = np.diag(self._covariance) + own[leader] - 2 * own
        return self._mean - self._mean[leader], np.sqrt(variance.clip(1e-12))

    def expected_gain(self, leader: int) -> np.ndarray:
        """Return the expected share that each is faster than a configuration, where it is."""
        ahead, deviation = self.ahead(leader)
        ratio = ahead / deviation
        density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
        probability = np.array([0.5 * (1 + math.erf(z / math.sqrt(2))) for z in ratio.tolist()])
        return deviation * density + ahead * probability

    def _solve(self) -> None:
        """Condition on all trials, with the noise and speeds that make them likeliest."""
        trials = self._observations
        places = np.array([trial.place for trial in trials])
        short = np.array([trial.short for trial in trials], dtype=np.float64)
        runs = np.array([trial.run for trial in trials])
        residuals = np.array([trial.log_per_s for trial in trials]) - self._prior[places]
        pairs = np.ix_(places, places)
        of_rates = self._whole[pairs] + self._short[pairs] * np.outer(short, short)
        of_runs = (runs[:, None] == runs).astype(np.float64)
        fits = [
            _fit(of_rates + speed**2 * of_runs + noise**2 * np.eye(len(places)), residuals)
            for noise, speed in product(_NOISES, _SPEEDS)
        ]
        _, factor, scaled = max(fits, key=lambda fit: fit[0])
        explained = np.linalg.solve(factor, self._whole[places])
        self._mean = self._prior + explained.T @ scaled
        self._covariance = self._whole - explained.T @ explained


def _fit(covariance: np.ndarray, residuals: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the logarithm of the residuals' likelihood, but for a constant.

    And the covariance's lower factor, and the residuals in its terms.
    """
    factor = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(factor, residuals)
    likelihood = -0.5 * float(scaled @ scaled) - float(np.log(np.diag(factor)).sum())
    return likelihood, factor, scaled
