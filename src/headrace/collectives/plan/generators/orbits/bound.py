"""Lower bounds where all ranks are alike, in a time that does not grow with the ranks.

Let H be the ranks that some link classes A join. A schedule and its images under the group,
averaged, load every link of a class alike, so a class carries x_s MB out of every rank. What
crosses between the N/H parts must go over the classes not in A, whose sum of x_s is at most T
times the largest sum of rates within the capacities.

- Allgather of blocks of b MB: every part takes in the (N - H) blocks of the others.
  ``T >= (N - H) b / (H rate)``. Reduce_scatter likewise, out of every part.
- Allreduce of M = N b MB: combining the contributions of N/H parts takes N/H - 1 crossings of
  every byte before a first part has the total, and each other part takes it in once more:
  ``T >= 2 (N/H - 1) M / (N rate)``, twice the allgather's.
- All-to-all of M MB a rank: the (N - H)/N of everything that is for other parts leaves its own,
  and every MB of it crosses at least its distance in classes not in A. Priced with any prices on
  capacities, ``T >= sum over ranks of (M/N) distance(rank)``, the distance with every class
  charged what it takes of prices that sum to 1.

Every capacity in use also spends one alpha at least: the smallest alpha of the classes that cross
is added. The longest shortest path in alpha is a bound by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.orbits.group import (
    LinkClasses,
    RegularGroup,
    link_classes,
)
from headrace.collectives.plan.generators.orbits.levels import levels_of
from headrace.topology import BYTES_PER_MB, Topology, transposed

_ROUNDS = 32
_TIGHT = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class OrbitBound:
    """No schedule takes less than `total_us` on the topology with this digest.

    Attributes
    ----------
    total_us : the larger of bandwidth plus one alpha, and latency.
    bandwidth_us : bytes that have to cross over the rate across.
    latency_us : the longest shortest path in alpha.
    formula : the terms computed, in words.
    """

    total_us: float
    bandwidth_us: float
    latency_us: float
    formula: str
    topology_digest: str


def orbit_bound(
    topology: Topology, group: RegularGroup, demand: Demand, total_bytes: int
) -> OrbitBound:
    """Return the bound; `group` must be of automorphisms of `topology`."""
    total_mb = total_bytes / BYTES_PER_MB
    block_mb = total_mb / topology.ranks
    backwards = demand.collective is Collective.REDUCE_SCATTER
    classes = link_classes(transposed(topology) if backwards else topology, group)
    latency = float(priced_distances(classes.held, classes.alpha_us).max())
    if demand.collective is Collective.ALL_TO_ALL:
        bandwidth = _exchange(classes, block_mb)
        alpha, formula = float(classes.alpha_us.min()), "sum over ranks of M/N x priced distance"
    else:
        level = levels_of(classes, group)[0]
        members = np.concatenate([some.classes for some in level.groups])
        alpha = float(classes.alpha_us[members].min())
        bandwidth = level.us_per_mb * block_mb
        formula = "max over parts H of (N - H) M/N / (H rate across)"
        if demand.collective is Collective.ALLREDUCE:
            bandwidth, formula = 2 * bandwidth, "2 x " + formula
    return OrbitBound(
        total_us=max(bandwidth + alpha, latency),
        bandwidth_us=bandwidth,
        latency_us=latency,
        formula=f"{formula} + alpha; largest distance in alpha",
        topology_digest=topology.digest,
    )


def _exchange(classes: LinkClasses, block_mb: float) -> float:
    """The best of a few prices: each resource alone, and those of multiplicative weights."""
    used = classes.uses[classes.uses.any(axis=1)]
    costs = [*used, *(prices @ used for prices in price_rounds(classes))]
    return block_mb * max(float(priced_distances(classes.held, cost).sum()) for cost in costs)


def priced_distances(names: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """(ranks,): cost of the cheapest path from each name to name 0.

    A step of class s costs ``cost[s]`` and turns name e into ``names[s, e]``. With a class's
    `held` that follows a block back to its source; with the inverses, on to its destination.
    """
    far = np.full(names.shape[1], np.inf)
    far[0] = 0.0
    while True:
        nearer = np.minimum(far, (far[names] + cost[:, None]).min(axis=0))
        if np.array_equal(nearer, far):
            return far
        far = nearer


def price_rounds(classes: LinkClasses) -> Iterator[np.ndarray]:
    """Prices of the capacities (rows of `uses` that are used), each round nearer to a balance.

    Multiplicative weights: the capacities that the cheapest paths load most get dearer.
    """
    used = classes.uses[classes.uses.any(axis=1)]
    weight = np.ones(len(used))
    for turn in range(1, _ROUNDS + 1):
        weight = weight / weight.sum()
        yield weight
        load = used @ _cheapest_flow(classes.held, weight @ used)
        weight = weight * np.exp(0.5 / np.sqrt(turn) * load / load.max())


def _cheapest_flow(names: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Uses of each class on cheapest paths from all names to 0, ties split evenly."""
    far = priced_distances(names, cost)
    through = np.ones(len(far))
    flow = np.zeros(len(names))
    for rank in np.argsort(-far, kind="stable").tolist():
        if rank == 0:
            continue
        tight = np.flatnonzero(far[names[:, rank]] + cost <= far[rank] * _TIGHT)
        flow[tight] += through[rank] / len(tight)
        np.add.at(through, names[tight, rank], through[rank] / len(tight))
    return flow
