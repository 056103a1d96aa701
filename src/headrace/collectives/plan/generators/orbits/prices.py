"""Distances between ranks with priced links, and balancing prices: for all-to-all."""

from collections.abc import Iterator

import numpy as np

from headrace.collectives.plan.generators.orbits.classes import LinkClasses

_ROUNDS = 32
_TIGHT = 1.0 + 1e-9


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


def priced_us(classes: LinkClasses, cost: np.ndarray) -> float:
    """Least cost of 1 MB from every rank to rank 0, at these prices."""
    return float(priced_distances(classes.held, cost).sum())


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
