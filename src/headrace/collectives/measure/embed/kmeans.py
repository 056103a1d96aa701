"""Constrained k-means: limits on the sizes of groups (Bradley, Bennett and Demiriz, 2000).

Lloyd's algorithm, except that hosts are not assigned to the nearest centre each by itself but all
at once: the assignment of least total squared distance within the limits is a minimum-cost flow
from hosts through groups. Starts are k-means++'s.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.collectives.measure.racks.partition import Grouping, diversity, groups_of
from headrace.errors import InputError

_PRECISION = 1_000_000  # costs of the flow are integers: the largest squared distance becomes this
_AS_COHESIVE = 1.05  # clusterings within this factor of the least inertia are equally good
_MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """Groups and the sum of squared distances of their members to their means (`inertia`)."""

    groups: Grouping
    inertia: float


def size_limits(hosts: int, count: int, elasticity: float) -> tuple[int, int]:
    """Return the least and the greatest size of `count` groups (PLink 4.1.3).

    An `elasticity` of 1 is perfect balance; with 2 a group may have half of its even share (of
    sqrt(n) hosts, for sqrt(n) groups). Rounded down, or hosts might not suffice. The paper bounds
    sizes from below only; by the same factor from above, 1 is perfect balance for any number.

    Raises
    ------
    InputError : for an elasticity outside 1 to 2, or a count that hosts cannot fill.
    """
    if not 1.0 <= elasticity <= 2.0:
        raise InputError(f"elasticity is {elasticity}, needs 1.0 to 2.0")
    if not 1 <= count <= hosts:
        raise InputError(f"count is {count}, needs 1 to {hosts}, the number of hosts")
    share = hosts / count
    return max(1, math.floor(share / elasticity)), min(hosts, math.ceil(share * elasticity))


def constrained_kmeans(
    points: np.ndarray,
    count: int,
    *,
    least: int = 1,
    most: int | None = None,
    starts: int = 8,
    seed: int = 0,
) -> tuple[Clustering, ...]:
    """Return the distinct clusterings that the starts converge to, the most cohesive first.

    Parameters
    ----------
    points : (n, dimensions), as `Embedding.coordinates`.
    count : of groups.
    least, most : sizes that a group may have (`most` None: any).
    starts : number of starts by k-means++, besides one from Ward's tree.
    seed : of the starts. Equal arguments give equal results.

    Raises
    ------
    InputError : if points are no finite table, or the limits are infeasible.
    """
    points = _checked(points)
    n = len(points)
    most = n if most is None else most
    if count < 1 or least < 1 or not least * count <= n <= most * count:
        raise InputError(
            f"{count} groups of {least} to {most} hosts do not make {n}; needs count * least <= "
            f"hosts <= count * most"
        )
    if starts < 1:
        raise InputError(f"starts is {starts}, needs at least 1")
    from sklearn.cluster import kmeans_plusplus

    every = list(_by_ward(points, count))
    for start in range(starts):
        centres, _ = kmeans_plusplus(points, count, random_state=(seed + 7919 * start) % 2**32)
        every.append(np.asarray(centres))
    inertias: dict[Grouping, float] = {}
    for centres in every:
        clustering = _lloyd(points, centres, least, most)
        inertias[clustering.groups] = clustering.inertia
    clusterings = [
        Clustering(groups=groups, inertia=inertia) for groups, inertia in inertias.items()
    ]
    return tuple(
        sorted(clusterings, key=lambda clustering: (clustering.inertia, clustering.groups))
    )


def pick(clusterings: Sequence[Clustering], seed: int = 0) -> Clustering:
    """Return the clustering of most even sizes among those of about the least inertia.

    By size diversity, then by inertia; `seed` decides only between ties in both (PLink 4.1.2).
    """
    limit = min(clustering.inertia for clustering in clusterings) * _AS_COHESIVE
    good = [clustering for clustering in clusterings if clustering.inertia <= limit]
    best = min(_rank(clustering) for clustering in good)
    ties = [clustering for clustering in good if _rank(clustering) == best]
    return ties[int(np.random.default_rng(seed).integers(len(ties)))]


def _rank(clustering: Clustering) -> tuple[int, float]:
    # inertia to nine digits: the last ones depend on the order of hosts
    return diversity(clustering.groups), float(f"{clustering.inertia:.9g}")


def _checked(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=float)
    if points.ndim != 2 or not points.size:
        raise InputError(f"points has shape {points.shape}, needs (hosts, dimensions)")
    wrong = np.argwhere(~np.isfinite(points))
    if len(wrong):
        i, j = wrong[0].tolist()
        raise InputError(f"points[{i}, {j}] is {points[i, j]}, needs a finite number")
    return points


def _by_ward(points: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield the centres of Ward's tree cut into `count` groups, if the tree has such a cut."""
    if not 1 < count < len(points):
        return
    from scipy.cluster.hierarchy import fcluster, linkage

    labels = fcluster(linkage(points, method="ward"), count, criterion="maxclust") - 1
    if labels.max() + 1 == count:
        yield _means(points, labels, count)


def _means(points: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    members = labels[:, None] == np.arange(count)
    return (members.T @ points) / members.sum(axis=0)[:, None]


def _lloyd(points: np.ndarray, centres: np.ndarray, least: int, most: int) -> Clustering:
    labels = np.full(len(points), -1)
    for _ in range(_MAX_ROUNDS):
        square = ((points[:, None, :] - centres) ** 2).sum(axis=2)
        before, labels = labels, _assign(square, least, most)
        if (labels == before).all():
            break
        centres = _means(points, labels, len(centres))
    inertia = float(((points - centres[labels]) ** 2).sum())
    return Clustering(groups=groups_of(labels), inertia=inertia)


def _assign(square: np.ndarray, least: int, most: int) -> np.ndarray:
    """Return every host's group: the least sum of `square` (hosts, groups) within the limits."""
    labels = square.argmin(axis=1)
    sizes = np.bincount(labels, minlength=square.shape[1])
    if sizes.min() >= least and sizes.max() <= most:
        return labels  # the nearest centres are feasible, so optimal
    from ortools.graph.python.min_cost_flow import SimpleMinCostFlow

    hosts, groups = square.shape
    host, group = np.arange(hosts), np.arange(hosts, hosts + groups)
    sink = hosts + groups
    flow: Any = SimpleMinCostFlow()  # its stubs take arrays for scalars
    cost = np.rint(square / (square.max() or 1.0) * _PRECISION).astype(np.int64)
    arcs = flow.add_arcs_with_capacity_and_unit_cost(
        np.repeat(host, groups), np.tile(group, hosts), np.ones(hosts * groups, int), cost.ravel()
    )
    # every group keeps `least`, the rest flows to the sink
    flow.add_arcs_with_capacity_and_unit_cost(
        group, np.full(groups, sink), np.full(groups, most - least), np.zeros(groups, int)
    )
    supply = np.r_[np.ones(hosts, int), np.full(groups, -least), groups * least - hosts]
    flow.set_nodes_supplies(np.arange(sink + 1), supply)
    status = flow.solve()
    assert status == flow.OPTIMAL, f"the limits were checked, yet the flow is {status}"
    return flow.flows(arcs).reshape(hosts, groups).argmax(axis=1)
