"""Alpha and beta of a link from timed probes (TACCL 5.3), by robust weighted least squares.

With c the fixed cost of a call, n chunks of s bytes take

- one after another, each acknowledged: ``c + n * (2 * alpha + beta * s)``
- all at once, acknowledged together: ``c + 2 * alpha + beta * n * s``

An acknowledgement costs one alpha, hence the 2. Shapers and switches let a first burst pass at
line speed, which lowers the time of every bulk transfer by the same amount; so probes of bulk
chunks have an intercept of their own (`lead_us`), and beta comes from how time *grows* with size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.collectives.measure.probe import Manner
from headrace.errors import InputError
from headrace.topology import BYTES_PER_MB

BULK_CHUNK_BYTES = 2048
"""Chunks of at least this many bytes have the bulk intercept."""

_RELATIVE_NOISE = 0.05
_ABSOLUTE_NOISE_US = 5.0
_HUBER = 1.5
_ROUNDS = 8
_LEAST_BETA = 1e-3  # 10^15 bytes/s: a cost must be above zero


class Sample(NamedTuple):
    """One timed probe of one link."""

    manner: Manner
    chunks: int
    chunk_bytes: int
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """What the samples of one link say.

    Attributes
    ----------
    alpha_us, beta_us_per_mb : the link's cost.
    alpha_variance, beta_variance : of those estimates, in squared units.
    call_us : fixed cost of one call.
    lead_us : by how much bulk transfers are off the line; negative where a burst passes freely.
    residual : root mean square of the relative misfit.
    """

    alpha_us: float
    beta_us_per_mb: float
    alpha_variance: float
    beta_variance: float
    call_us: float
    lead_us: float
    residual: float

    def at_once_us(self, total_bytes: float) -> float:
        """Predicted time of a bulk transfer of `total_bytes`, acknowledged once."""
        mb = total_bytes / BYTES_PER_MB
        return self.call_us + 2 * self.alpha_us + self.lead_us + self.beta_us_per_mb * mb


def fit_link(samples: Sequence[Sample]) -> LinkFit:
    """Fit one link.

    Raises
    ------
    InputError : if the samples hold fewer than two different amounts of bytes.
    """
    rows = [_row(sample) for sample in samples]
    times = np.array([sample.time_us for sample in samples])
    if len({sample.chunks * sample.chunk_bytes for sample in samples}) < 2:
        raise InputError(
            f"{len(samples)} samples of fewer than two sizes cannot tell alpha from beta; "
            "probe at least two sizes"
        )
    design = np.array(rows)
    sigma = _RELATIVE_NOISE * times + _ABSOLUTE_NOISE_US
    free = _free_columns(design)
    solution, weights = _huber(design[:, free], times, sigma)
    call, alpha, beta, lead = _spread(solution, free)
    misfit = (design[:, free] @ solution - times) / sigma
    spare = max(1, len(times) - len(free))
    precise = design[:, free] * np.sqrt(weights)[:, None] / sigma[:, None]
    inverse = np.linalg.pinv(precise.T @ precise)
    variance = _spread(np.diag(inverse) * float(np.sum(weights * misfit**2)) / spare, free)
    relative = (design[:, free] @ solution - times) / np.maximum(times, 1e-9)
    return LinkFit(
        alpha_us=max(0.0, alpha),
        beta_us_per_mb=max(_LEAST_BETA, beta),
        alpha_variance=variance[1],
        beta_variance=variance[2],
        call_us=call,
        lead_us=lead,
        residual=float(np.sqrt(np.mean(relative**2))),
    )


def _row(sample: Sample) -> tuple[float, float, float, float]:
    mb = sample.chunks * sample.chunk_bytes / BYTES_PER_MB
    bulk = float(sample.chunk_bytes >= BULK_CHUNK_BYTES)
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
    whole = np.zeros(4)
    whole[free] = values
    call, alpha, beta, lead = whole.tolist()
    return call, alpha, beta, lead


def _huber(
    design: np.ndarray, times: np.ndarray, sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Least squares in which a sample far off (in sigmas) counts linearly, not squared."""
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
