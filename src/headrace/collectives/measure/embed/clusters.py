"""Candidate groups for two-level aggregation, ranked by a predicted cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.collectives.measure.embed.distances import pair_distances
from headrace.collectives.measure.embed.embedding import embed
from headrace.collectives.measure.embed.kmeans import constrained_kmeans, pick, size_limits
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.collectives.measure.racks.partition import Grouping, diversity
from headrace.errors import InputError

_AS_CHEAP = 1.02  # costs within this factor are equal: the precision of measured bandwidths
_ALL_COUNTS_UP_TO = 16  # hosts
_STEPS = 3
_STARTS, _FEW_STARTS, _LARGE = 8, 3, 256  # starts of k-means, few for more hosts than that
ELASTICITY = 2.0
"""Allowed imbalance of sizes; 1 is perfect balance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGrouping:
    """A grouping with its cost and the name of its method (`made_by`)."""

    made_by: str
    groups: Grouping
    cost: float


def candidate_groups(
    bandwidth: np.ndarray,
    cost: Callable[[Grouping], float],
    *,
    points: np.ndarray | None = None,
    seed: int = 0,
) -> tuple[RankedGrouping, ...]:
    """Return candidates for two-level aggregation, the best first.

    They are one group of all, the racks that bandwidth shows, and constrained k-means of the
    points, perfectly balanced and with `ELASTICITY`: for every number of groups where hosts are
    few, else for those at which a tree of the points has its longest steps and for halvings and
    doublings of sqrt(n). Costs within two per cent of the least count as equal; of those the most
    even sizes are best, then the number nearest to sqrt(n).

    Parameters
    ----------
    bandwidth : (n, n) bytes/s above 0, measured from row to column.
    cost : predicted time of an aggregation over groups, in any unit.
    points : (n, dimensions) (default: the embedding of `bandwidth`).
    seed : of the embedding, of the starts of k-means, and of ties.

    Raises
    ------
    InputError : for measurements that make no sense, or points of other hosts.
    """
    bandwidth = np.asarray(bandwidth, dtype=float)
    distances, _ = pair_distances(bandwidth=bandwidth)
    n = len(distances)
    if points is None:
        points = embed(distances, seed=seed).coordinates
    elif len(points) != n:
        raise InputError(f"points has {len(points)} rows, needs {n} as bandwidth has")
    origins: dict[Grouping, str] = {(tuple(range(n)),): "one group"}
    racks = group_hosts(bandwidth)
    origins.setdefault(racks, "racks")
    for count in _counts(np.asarray(points), len(racks)):
        for elasticity in (1.0, ELASTICITY):
            groups = clustered(points, count, elasticity, seed)
            origins.setdefault(groups, f"k-means, {count} groups, elasticity {elasticity:g}")
    groupings = [RankedGrouping(made_by=how, groups=g, cost=cost(g)) for g, how in origins.items()]
    return _ranked(groupings, square_root(n), seed)


def square_root(hosts: int) -> int:
    """Return the number of groups nearest to sqrt(n)."""
    return max(1, round(math.sqrt(hosts)))


def _ranked(
    groupings: Sequence[RankedGrouping], root: int, seed: int
) -> tuple[RankedGrouping, ...]:
    limit = min(grouping.cost for grouping in groupings) * _AS_CHEAP
    random = np.random.default_rng(seed).random(len(groupings))  # decides between ties only

    def key(index: int) -> tuple[float, int, int, float]:
        grouping = groupings[index]
        return (
            max(grouping.cost, limit),
            diversity(grouping.groups),
            abs(len(grouping.groups) - root),
            float(random[index]),
        )

    return tuple(groupings[index] for index in sorted(range(len(groupings)), key=key))


def clustered(points: np.ndarray, count: int, elasticity: float, seed: int) -> Grouping:
    """Return the pick of constrained k-means into `count` groups.

    Parameters
    ----------
    points : (n, dimensions), as `Embedding.coordinates`.
    elasticity : allowed imbalance of sizes, 1.0 (perfectly balanced) to 2.0.
    seed : of the starts, and of ties.

    Raises
    ------
    InputError : for points or an elasticity that make no sense.
    """
    least, most = size_limits(len(points), count, elasticity)
    starts = _FEW_STARTS if len(points) > _LARGE else _STARTS
    clusterings = constrained_kmeans(
        points, count, least=least, most=most, starts=starts, seed=seed
    )
    return pick(clusterings, seed).groups


def _counts(points: np.ndarray, racks: int) -> tuple[int, ...]:
    """Return the numbers of groups to try."""
    hosts = len(points)
    if hosts <= _ALL_COUNTS_UP_TO:
        return tuple(range(2, hosts))
    from scipy.cluster.hierarchy import linkage

    root = square_root(hosts)
    counts = {racks, *(round(root * factor) for factor in (0.25, 0.5, 1, 2, 4))}
    # the longest steps in height of a tree of the points, as above natural clusters
    height = np.maximum(linkage(points, method="ward")[:, 2], 1e-12)
    steps = np.log(height[1:] / height[:-1])
    steps[: hosts // 2] = 0.0  # groups of less than two hosts
    counts |= set((hosts - 1 - np.argsort(steps)[::-1][:_STEPS]).tolist())
    return tuple(sorted(count for count in counts if 1 < count < hosts))
