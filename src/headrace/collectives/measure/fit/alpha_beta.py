"""Alpha and beta of a link from timed probes (TACCL 5.3), by robust weighted least squares.

With c the fixed cost of a call, n chunks of s bytes take

- one after another, each acknowledged: ``c + n * (2 * alpha + beta * s)``
- all at once, acknowledged together: ``c + 2 * alpha + beta * n * s``

An acknowledgement costs one alpha, hence the 2. Shapers and switches may let a first burst pass at
line speed, which lowers the time of every bulk transfer by the same amount; so probes of bulk
chunks have an intercept of their own (`lead_us`), with a prior near zero.

Noise is one-sided: a busy machine only ever delays. Of the repeats of one probe the lower quartile
counts, which is robust to stalls and to a single lucky run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.collectives.measure.probes.probe import Manner
from headrace.errors import InputError
from headrace.topology import BYTES_PER_MB

BULK_CHUNK_BYTES = 2048
"""Chunks of at least this many bytes have the bulk intercept."""

_RELATIVE_NOISE = 0.05
_ABSOLUTE_NOISE_US = 5.0
_HUBER = 1.5
_ROUNDS = 8
_LEAD_SHARE = 0.03
_MAD = 0.6745  # median absolute deviation of a normal distribution, in standard deviations
_SANE_ALPHA = (0.5, 1.0)  # of the longest echo's time per message
_SANE_BETA = (0.5, 2.0)  # of the largest transfer's time per MB


class Sample(NamedTuple):
    """One timed probe of one link."""

    manner: Manner
    chunks: int
    chunk_bytes: int
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """Costs of one link, fitted to its samples.

    Attributes
    ----------
    alpha_us, beta_us_per_mb : the link's cost.
    alpha_variance, beta_variance : of those estimates, in squared units.
    call_us : fixed cost of one call.
    lead_us : by how much bulk transfers are early, as where a burst passes freely; at most 0.
    residual : median relative misfit of the samples.
    """

    alpha_us: float
    beta_us_per_mb: float
    alpha_variance: float
    beta_variance: float
    call_us: float
    lead_us: float
    residual: float

    def at_once_us(self, total_bytes: float) -> float:
        """Return the predicted us of a bulk transfer of `total_bytes`, acknowledged once."""
        mb = total_bytes / BYTES_PER_MB
        return self.call_us + 2 * self.alpha_us + self.lead_us + self.beta_us_per_mb * mb


def fit_link(samples: Sequence[Sample]) -> LinkFit:
    """Fit one link.

    Raises
    ------
    InputError : if the samples hold fewer than two different amounts of bytes.
    """
    if len({sample.chunks * sample.chunk_bytes for sample in samples}) < 2:
        raise InputError(
            f"{len(samples)} samples of fewer than two sizes cannot tell alpha from beta; "
            "probe at least two sizes"
        )
    points = _typical(samples)
    design = np.array([_row(point) for point in points])
    times = np.array([point.time_us for point in points])
    sigma = _RELATIVE_NOISE * times + _ABSOLUTE_NOISE_US
    # a prior, as one more row: lead = 0 within a share of the longest time
    design = np.vstack([design, (0.0, 0.0, 0.0, 1.0)])
    sigma = np.append(sigma, _LEAD_SHARE * times.max())
    times = np.append(times, 0.0)
    free = _free_columns(design)
    solution, weights = _huber(design[:, free], times, sigma)
    if free[-1] == 3 and solution[-1] > 0:
        # no shaper slows the start of bulk transfers: a small one was disturbed
        free = free[:-1]
        solution, weights = _huber(design[:, free], times, sigma)
    call, alpha, beta, lead = _spread(solution, free)
    precise = design[:, free] * np.sqrt(weights)[:, None] / sigma[:, None]
    covariance = np.diag(np.linalg.pinv(precise.T @ precise))
    measured = np.array([sample.time_us for sample in samples])
    expected = np.array([_row(sample) for sample in samples])[:, free] @ solution
    misfit = (expected - measured) / (_RELATIVE_NOISE * measured + _ABSOLUTE_NOISE_US)
    variance = _spread(covariance * float(np.median(np.abs(misfit)) / _MAD) ** 2, free)
    relative = (expected - measured) / np.maximum(measured, 1e-9)
    return LinkFit(
        alpha_us=_sane_alpha(alpha, points),
        beta_us_per_mb=_sane_beta(beta, points),
        alpha_variance=variance[1],
        beta_variance=variance[2],
        call_us=call,
        lead_us=lead,
        residual=float(np.median(np.abs(relative))),
    )


def _typical(samples: Sequence[Sample]) -> list[Sample]:
    """Return one sample for each kind of probe: the lower quartile of its repeats."""
    kinds: dict[tuple[Manner, int, int], list[float]] = {}
    for manner, chunks, chunk_bytes, time_us in samples:
        kinds.setdefault((manner, chunks, chunk_bytes), []).append(time_us)
    return [Sample(*kind, sorted(times)[(len(times) - 1) // 4]) for kind, times in kinds.items()]


def _sane_alpha(alpha: float, points: Sequence[Sample]) -> float:
    """Clamp alpha around the time of a message of the longest echo, where noise hides the slope."""
    echoes = [p for p in points if p.manner is Manner.ONE_AFTER_ANOTHER and not _is_bulk(p)]
    if not echoes:
        return max(0.0, alpha)
    longest = max(echoes, key=lambda point: point.chunks)
    return _within(alpha, longest.time_us / (2 * longest.chunks), _SANE_ALPHA)


def _sane_beta(beta: float, points: Sequence[Sample]) -> float:
    """Clamp beta around the rate of the largest transfer, where noise hides the slope."""
    largest = max(points, key=lambda point: point.chunks * point.chunk_bytes)
    per_mb = largest.time_us / (largest.chunks * largest.chunk_bytes) * BYTES_PER_MB
    return _within(beta, per_mb, _SANE_BETA)


def _within(value: float, reference: float, factors: tuple[float, float]) -> float:
    low, high = factors
    return min(max(value, low * reference), high * reference)


def _is_bulk(sample: Sample) -> bool:
    return sample.chunk_bytes >= BULK_CHUNK_BYTES


def _row(sample: Sample) -> tuple[float, float, float, float]:
    mb = sample.chunks * sample.chunk_bytes / BYTES_PER_MB
    bulk = float(_is_bulk(sample))
    hops = 2.0 * (sample.chunks if sample.manner is Manner.ONE_AFTER_ANOTHER else 1)
    return 1.0, hops, mb, bulk


def _free_columns(design: np.ndarray) -> list[int]:
    """Leave out the intercepts (lead, then call) that these samples cannot tell apart."""
    free = [0, 1, 2, 3]
    for column in (3, 0):
        if np.linalg.matrix_rank(design[:, free]) < len(free):
            free.remove(column)
    return free


def _spread(values: np.ndarray, free: list[int]) -> tuple[float, float, float, float]:
    coefficients = np.zeros(4)
    coefficients[free] = values
    call, alpha, beta, lead = coefficients.tolist()
    return call, alpha, beta, lead


def _huber(
    design: np.ndarray, times: np.ndarray, sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve by Huber's loss: samples far off (in sigmas) count linearly, not squared."""
    weights = np.ones(len(times))
    solution = np.zeros(design.shape[1])
    # columns differ by orders of magnitude (microseconds against megabytes)
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    for _ in range(_ROUNDS):
        root = np.sqrt(weights) / sigma
        solution = np.linalg.lstsq(design / scale * root[:, None], times * root, rcond=None)[0]
        misfit = np.abs(design / scale @ solution - times) / sigma
        weights = np.minimum(1.0, _HUBER / np.maximum(misfit, 1e-9))
    return solution / scale, weights
