"""Posterior of configurations' rates: what predictions and trials tell of them together.

The logarithms of all rates, of the effects of a trial's length, and of the machine's drift are one
Gaussian vector. A trial is then evidence of its configuration, of the others of its type, and of
the machine's speed at its time, each as far as they vary together.
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

_NOISES, _DRIFTS = (0.02, 0.05, 0.1, 0.2), (0.0, 0.1, 0.2)
"""Standard deviations of a trial by itself, and of the machine's speed, of which the trials tell
the likeliest pair: a quiet machine has some percent, one whose caches are shared ten times that."""

_DRIFT_S = 5.0
"""Time in which the machine's speed changes: other work comes and goes by seconds."""


@dataclass(frozen=True, slots=True)
class _Observation:
    place: int
    log_per_s: float
    short: bool
    at_s: float


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

    def observe(self, place: int, per_s: float, *, short: bool, at_s: float) -> None:
        """Take a trial into account.

        Parameters
        ----------
        per_s : operations per second; 0 counts as 1 a second.
        short : whether it ran the first of the operations only.
        at_s : time at which it began.
        """
        log_per_s = math.log(max(per_s, 1.0))
        self._observations.append(_Observation(place, log_per_s, short, at_s))
        self._solve()

    def per_s(self) -> np.ndarray:
        """Return the expected rate of each configuration, float64."""
        return np.exp(self._mean)

    def deviation(self, place: int) -> float:
        """Return the standard deviation of the logarithm of a configuration's rate."""
        return math.sqrt(max(self._covariance[place, place], 0.0))

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
        below = np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in ratio.tolist()])
        return deviation * density + ahead * below

    def _solve(self) -> None:
        """Condition on all trials, with the noise and drift that make them likeliest."""
        places = np.array([each.place for each in self._observations])
        short = np.array([each.short for each in self._observations], dtype=np.float64)
        at_s = np.array([each.at_s for each in self._observations])
        residuals = np.array([each.log_per_s for each in self._observations]) - self._prior[places]
        pairs = np.ix_(places, places)
        of_rates = self._whole[pairs] + self._short[pairs] * np.outer(short, short)
        of_drift = np.exp(-np.abs(at_s[:, None] - at_s) / _DRIFT_S)
        fits = [
            _fit(of_rates + drift**2 * of_drift + noise**2 * np.eye(len(places)), residuals)
            for noise, drift in product(_NOISES, _DRIFTS)
        ]
        _, factor, scaled = max(fits, key=lambda fit: fit[0])
        known = np.linalg.solve(factor, self._whole[places])
        self._mean = self._prior + known.T @ scaled
        self._covariance = self._whole - known.T @ known


def _fit(covariance: np.ndarray, residuals: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the logarithm of the residuals' likelihood, but for a constant.

    And the covariance's lower factor, and the residuals in its terms.
    """
    factor = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(factor, residuals)
    likelihood = -0.5 * float(scaled @ scaled) - float(np.log(np.diag(factor)).sum())
    return likelihood, factor, scaled
