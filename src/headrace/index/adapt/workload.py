"""The workload of an index in one period: its mix of operations, and where its keys are."""

import numpy as np

from headrace.facades import public_value
from headrace.index.trace import OPERATIONS, SCAN

_CONFIDENT = 1.63
"""Coefficient of the two-sample Kolmogorov-Smirnov test at a level of 1%."""


@public_value("headrace.index", eq=False)
class SeenWorkload:
    """Operations of one period.

    Attributes
    ----------
    counts : operations by kind, in the order of `trace.OPERATIONS`.
    cost_ns : mean time of an operation by kind, in the index; NaN where none was timed.
    sample : codes (uint64) of a random sample of them, ascending.
    batched : how many of the operations came in batches of some length, about.
    """

    counts: tuple[int, ...]
    cost_ns: tuple[float, ...]
    sample: np.ndarray
    batched: int = 0

    @property
    def operations(self) -> int:
        """Number of operations."""
        return sum(self.counts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each kind of operation; all 0 without operations."""
        return tuple(count / max(self.operations, 1) for count in self.counts)

    @property
    def in_batches(self) -> bool:
        """True if most operations, of those that there are batches of, came in one."""
        return 2 * self.batched > self.operations - self.counts[SCAN]

    def cost_of(self, shares: tuple[float, ...]) -> float | None:
        """Return the mean time of operations of such shares, in ns; None if a part is not known."""
        used = [(share, cost) for share, cost in zip(shares, self.cost_ns, strict=True) if share]
        total = sum(share * cost for share, cost in used)
        return total if used and not np.isnan(total) else None


NONE = SeenWorkload(
    counts=(0,) * len(OPERATIONS),
    cost_ns=(float("nan"),) * len(OPERATIONS),
    sample=np.empty(0, np.uint64),
)
"""No operations."""


def mix_distance(first: SeenWorkload, second: SeenWorkload) -> float:
    """Return the total variation distance of two mixes: the share of operations that differ."""
    pairs = zip(first.shares, second.shares, strict=True)
    return sum(abs(first_share - second_share) for first_share, second_share in pairs) / 2


def key_distance(first: SeenWorkload, second: SeenWorkload) -> float:
    """Return how far the keys' distributions differ beyond chance, 0 to 1.

    The Kolmogorov-Smirnov statistic of the two samples, less what samples of one distribution
    differ by in one case of 100.
    """
    sizes = len(first.sample), len(second.sample)
    if not all(sizes):
        return 0.0
    both = np.concatenate([first.sample, second.sample])
    shares = [
        np.searchsorted(workload.sample, both, side="right") / len(workload.sample)
        for workload in (first, second)
    ]
    chance = _CONFIDENT * np.sqrt((sizes[0] + sizes[1]) / (sizes[0] * sizes[1]))
    return max(0.0, float(np.abs(shares[0] - shares[1]).max() - chance))


def merged_workload(first: SeenWorkload, second: SeenWorkload) -> SeenWorkload:
    """Return the workload of two periods together; costs are weighted by operations."""
    counts = tuple(a + b for a, b in zip(first.counts, second.counts, strict=True))
    cost_ns = tuple(
        _mean(*pair)
        for pair in zip(first.counts, first.cost_ns, second.counts, second.cost_ns, strict=True)
    )
    sample = np.sort(np.concatenate([first.sample, second.sample]))
    batched = first.batched + second.batched
    return SeenWorkload(counts=counts, cost_ns=cost_ns, sample=sample, batched=batched)


def _mean(count: int, cost: float, second_count: int, second_cost: float) -> float:
    if not count or np.isnan(cost):
        return second_cost
    if not second_count or np.isnan(second_cost):
        return cost
    return (count * cost + second_count * second_cost) / (count + second_count)
