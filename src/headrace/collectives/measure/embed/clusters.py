"""Groups for two-level aggregation: sqrt(n) of them as in the paper, or those of least cost."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.collectives.measure.embed.cost import aggregation_time
from headrace.collectives.measure.embed.distances import pair_distances
from headrace.collectives.measure.embed.embedding import embed
from headrace.collectives.measure.embed.kmeans import (
    constrained_kmeans,
    diversity,
    pick,
    size_limits,
)
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.collectives.measure.racks.partition import Grouping
from headrace.errors import InputError

_AS_CHEAP = 1.02  # costs within this factor are equal: the precision of measured bandwidths
_ALL_COUNTS_UP_TO = 16  # hosts
_STEPS = 3
_LARGE, _FEW_STARTS = 256, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedGrouping:
    """A grouping with its cost and the name of its method (`made_by`)."""

    made_by: str
    groups: Grouping
    cost: float


def square_root_groups(points: np.ndarray, *, elasticity: float = 2.0, seed: int = 0) -> Grouping:
    """Return about sqrt(n) groups: the fewest messages of a global master (PLink, eq. 2).

    Parameters
    ----------
    points : (n, dimensions), as `Embedding.coordinates`.
    elasticity : allowed imbalance of sizes, 1.0 (perfectly balanced) to 2.0.
    seed : of the starts of k-means, and of ties.

    Raises
    ------
    InputError : for points or an elasticity that make no sense.
    """
    return _clustered(points, square_root(len(points)), elasticity, seed)


def balanced_random(hosts: int, seed: int = 0) -> Grouping:
    """Return about sqrt(n) groups of about sqrt(n) hosts at random: PLink's baseline (4.1.3).

    Raises
    ------
    InputError : for no hosts.
    """
    if hosts < 1:
        raise InputError(f"hosts is {hosts}, needs at least 1")
    order = np.random.default_rng(seed).permutation(hosts)
    parts = np.array_split(order, square_root(hosts))
    return tuple(sorted(tuple(sorted(part.tolist())) for part in parts))


def candidate_groups(
    bandwidth: np.ndarray,
    points: np.ndarray | None = None,
    *,
    cost: Callable[[Grouping], float] | None = None,
    elasticity: float = 2.0,
    seed: int = 0,
) -> tuple[RankedGrouping, ...]:
    """Return candidates for two-level aggregation, the best first.

    They are one group of all, the racks that bandwidth shows, and constrained k-means of the
    points, perfectly balanced and with the elasticity: for every number of groups where hosts are
    few, else for those at which a tree of the points has its longest steps and for halvings and
    doublings of sqrt(n). Costs within two per cent of the least count as equal; of those the most
    even sizes are best, then the number nearest to sqrt(n).

    Parameters
    ----------
    bandwidth : (n, n) bytes/s above 0, measured from row to column.
    points : (n, dimensions) (default: the embedding of `bandwidth`).
    cost : predicted time of an aggregation over groups, in any unit (default:
        `aggregation_time` on `bandwidth`); for example a simulation of plans.
    elasticity, seed : as in `square_root_groups`.

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
    found: dict[Grouping, str] = {(tuple(range(n)),): "one group"}
    racks = group_hosts(bandwidth)
    found.setdefault(racks, "racks")
    for count in _counts(np.asarray(points), len(racks)):
        for stretch in sorted({1.0, elasticity}):
            groups = _clustered(points, count, stretch, seed)
            found.setdefault(groups, f"k-means, {count} groups, elasticity {stretch:g}")
    price = cost or (lambda groups: aggregation_time(groups, bandwidth))
    made = [RankedGrouping(made_by=how, groups=g, cost=price(g)) for g, how in found.items()]
    return _ranked(made, square_root(n), seed)


def square_root(hosts: int) -> int:
    """Return the number of groups nearest to sqrt(n)."""
    return max(1, round(math.sqrt(hosts)))


def _ranked(made: Sequence[RankedGrouping], root: int, seed: int) -> tuple[RankedGrouping, ...]:
    limit = min(one.cost for one in made) * _AS_CHEAP
    random = np.random.default_rng(seed).random(len(made))  # decides between ties only

    def key(index: int) -> tuple[float, int, int, float]:
        one = made[index]
        return (
            max(one.cost, limit),
            diversity(one.groups),
            abs(len(one.groups) - root),
            float(random[index]),
        )

    return tuple(made[index] for index in sorted(range(len(made)), key=key))


def _clustered(points: np.ndarray, count: int, elasticity: float, seed: int) -> Grouping:
    least, most = size_limits(len(points), count, elasticity)
    starts = _FEW_STARTS if len(points) > _LARGE else 8
    found = constrained_kmeans(points, count, least=least, most=most, starts=starts, seed=seed)
    return pick(found, seed).groups


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
