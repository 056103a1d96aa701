"""Whole chunks down the trees of a packing, and those trees in the search engine's form.

A packing gives every tree a weight; a collective cut into a few chunks needs whole numbers of
them. `rounded` starts from the largest remainders, moves single chunks to where the busiest
resource is relieved, and, where the integer program is small, lets HiGHS finish.
"""

import logging

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import Routes
from headrace.collectives.plan.flows import Packing
from headrace.collectives.plan.flows.commodities import Loads, commodities
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.solver import LinearModel, Parameters, Stop, solve
from headrace.topology import Topology

_EXACT_COLUMNS = 2500
"""Up to so many trees the integer program is tried."""

_EXACT_NODES = 200
"""Nodes of its branch and bound."""

_EXACT_SECONDS = 20.0
"""A safety net; its effect depends on the machine, and is logged."""

_LOG = logging.getLogger(__name__)


def rounded(
    topology: Topology,
    packing: Packing,
    deliveries: Deliveries,
    *,
    exact: bool = True,
) -> np.ndarray:
    """Return for every chunk the index of its tree in ``packing.columns``; -1 if it has no targets.

    Minimises the load of the busiest resource; a commodity's first chunks get its deepest trees,
    because chunks with a long way should leave early.

    Parameters
    ----------
    deliveries : as it was packed, or with other chunk counts for the same blocks.
    exact : try the integer program where it is small.

    Raises
    ------
    ProgramError : if `deliveries` has other commodities than `packing`.
    """
    demands, of = commodities(deliveries, 1.0)
    if [(k.origin, k.targets) for k in demands] != [
        (k.origin, k.targets) for k in packing.commodities
    ]:
        raise ProgramError(
            f"deliveries has {len(demands)} commodities (origin and targets), which are not the "
            f"packing's {len(packing.commodities)}: pack the same collective"
        )
    if not demands:
        return of
    problem = _Rounding(topology, packing, np.bincount(of[of >= 0]))
    counts = problem.improved(problem.largest_remainders())
    if exact and len(counts) <= _EXACT_COLUMNS:
        counts = problem.solved(counts)
    counts = problem.shallower(counts)
    tree = np.full(deliveries.chunks, -1, dtype=np.int64)
    for k in range(len(demands)):
        tree[of == k] = problem.trees(k, counts)
    return tree


class _Rounding:
    """Number of chunks on each tree that minimises the load of the busiest resource."""

    def __init__(self, topology: Topology, packing: Packing, chunks: np.ndarray) -> None:
        loads, columns = Loads(topology), packing.columns
        mb = np.array([commodity.mb for commodity in packing.commodities])
        self._of = np.array([column.commodity for column in columns])
        self._chunks = chunks
        self._share = np.array([column.mb for column in columns]) / mb[self._of]
        chunk_size_mb = (mb / chunks)[self._of]  # MB of a chunk
        self._load = chunk_size_mb[:, None] * np.array(
            [loads.of(column.links) for column in columns]
        )
        """(trees, resources), us of one chunk."""
        self._depth = np.array([column.depth_us for column in columns])
        self._least = packing.bound_us

    def trees(self, commodity: int, counts: np.ndarray) -> np.ndarray:
        """The columns of a commodity's chunks, the deepest first."""
        mine = np.flatnonzero(self._of == commodity)
        mine = mine[np.argsort(-self._depth[mine], kind="stable")]
        return np.repeat(mine, counts[mine])

    def largest_remainders(self) -> np.ndarray:
        """Every tree its whole chunks; the rest by remainder, ties by load."""
        ideal = self._share * self._chunks[self._of]
        counts = np.floor(ideal + 1e-6).astype(np.int64)
        left = self._chunks - np.bincount(self._of, weights=counts).astype(np.int64)
        load = counts @ self._load
        for column in np.lexsort((np.arange(len(ideal)), counts - ideal)).tolist():
            k = int(self._of[column])
            if left[k] <= 0:
                continue
            mine = np.flatnonzero(self._of == k)
            remainders = (ideal - counts)[mine]
            top = (load + self._load[mine]).max(axis=1)
            best = int(mine[np.lexsort((-remainders, np.round(top, 9)))[0]])
            counts[best] += 1
            load += self._load[best]
            left[k] -= 1
        for k in np.flatnonzero(left > 0).tolist():  # fewer trees than chunks left over
            mine = np.flatnonzero(self._of == k)
            for _ in range(int(left[k])):
                best = int(mine[(load + self._load[mine]).max(axis=1).argmin()])
                counts[best] += 1
                load += self._load[best]
        return counts

    def improved(self, counts: np.ndarray, rounds: int = 400) -> np.ndarray:
        """Move one chunk at a time from the busiest resource to the tree that adds least load."""
        counts = counts.copy()
        load = counts @ self._load
        for _ in range(rounds):
            top = load.max()
            busiest = int(load.argmax())
            best, move = float(_weights(load[None])[0]), None
            for source in np.flatnonzero((counts > 0) & (self._load[:, busiest] > 0)).tolist():
                mine = np.flatnonzero(self._of == self._of[source])
                after = load - self._load[source] + self._load[mine]
                tops = after.max(axis=1)
                places = np.flatnonzero(tops <= top * (1 + 1e-12))
                weights = _weights(after[places]).tolist()
                for place, weight in zip(places.tolist(), weights, strict=True):
                    if weight < best * (1 - 1e-9):
                        best, move = weight, (source, int(mine[place]))
            if move is None:
                break
            counts[move[0]] -= 1
            counts[move[1]] += 1
            load = load - self._load[move[0]] + self._load[move[1]]
        return counts

    def shallower(self, counts: np.ndarray) -> np.ndarray:
        """Move chunks to shallower trees as long as the largest load does not grow."""
        counts = counts.copy()
        load = counts @ self._load
        top = load.max() * (1 + 1e-9)
        for source in np.argsort(-self._depth, kind="stable").tolist():
            mine = np.flatnonzero(
                (self._of == self._of[source]) & (self._depth < self._depth[source])
            )
            mine = mine[np.argsort(self._depth[mine], kind="stable")]
            for place in mine.tolist():
                while counts[source]:
                    after = load - self._load[source] + self._load[place]
                    if after.max() > top:
                        break
                    counts[source] -= 1
                    counts[place] += 1
                    load = after
        return counts

    def solved(self, counts: np.ndarray) -> np.ndarray:
        """Return the integer program's solution, started from `counts`, within `_EXACT_NODES`."""
        top = float((counts @ self._load).max())
        if top <= self._least * (1 + 1e-3):
            return counts
        columns = len(counts)
        model = LinearModel()
        time = model.add_variables(1, lower=self._least / top, upper=1.0, cost=1.0)
        most = self._chunks[self._of].astype(float)
        trees = model.add_variables(columns, upper=most, integer=True)
        model.add_rows(self._of, trees, 1.0, lower=self._chunks, upper=self._chunks)
        tree, used = np.nonzero(self._load)
        every = np.arange(self._load.shape[1])
        model.add_rows(
            np.concatenate((every, used)),
            np.concatenate((np.repeat(time, len(every)), trees[tree])),
            np.concatenate((-np.ones(len(every)), self._load[tree, used] / top)),
            upper=np.zeros(len(every)),
        )
        limits = Parameters(
            nodes=_EXACT_NODES, gap=1e-4, limit_s=_EXACT_SECONDS, start=np.append(1.0, counts)
        )
        result = solve(model, limits)
        if result.stop is Stop.TIME:
            _LOG.warning(
                "rounding %d trees took longer than %.0f s: the best so far is used, and another "
                "run may find another",
                columns,
                _EXACT_SECONDS,
            )
        if result.values is None:
            return counts
        rounded_counts = np.rint(result.values[1:]).astype(np.int64)
        if (np.bincount(self._of, weights=rounded_counts) != self._chunks).any():
            return counts
        return rounded_counts if (rounded_counts @ self._load).max() < top * (1 - 1e-9) else counts


def _weights(loads: np.ndarray) -> np.ndarray:
    """Objective of a move, row by row: the highest loads dominate."""
    top = loads.max(axis=1)
    share = loads / np.where(top > 0, top, 1.0)[:, None]
    return top * (share**24).sum(axis=1) ** (1 / 24)


def tree_routes(packing: Packing, tree: np.ndarray) -> Routes:
    """Return the links of every chunk's tree, in the engine's form; `tree` is from `rounded`."""
    links = [packing.columns[k].links if k >= 0 else np.empty(0, np.int32) for k in tree.tolist()]
    return Routes(
        first=np.cumsum([0, *map(len, links)], dtype=np.int64),
        link=np.concatenate([np.empty(0, np.int32), *links]).astype(np.int32),
    )
