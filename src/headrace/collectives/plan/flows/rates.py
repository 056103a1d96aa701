"""The largest rates at which ranks can send to each other at once, each with its certificate.

Every rate is the optimum of a linear program over the rates on the links, subject to the links'
and the shared capacities. Of the solution only its *prices* (duals) are kept, one for every link
and shared capacity. They certify the rate by themselves: a byte on a link is charged the prices of
the link and of its shared capacities; then bytes from s to t cost at least the cheapest path
d(s, t), and in time T all resources together earn at most T times ``sum(price * capacity)``. So any
schedule that moves x MB from s to t, for each of the given pairs, takes

    T >= x * sum over pairs of d(s, t) / sum(price * capacity).

This holds for any prices (weak duality), so the solver need not be exact.

Alpha adds to it. A resource cannot carry bytes of these pairs before the alpha on the way to it has
passed, nor in the alpha on the way from it before T: its window is T - D, D being the sum of both.
The earnings are at most ``sum(price * capacity * (T - D))``, so the smallest D of a resource with a
price is added. (The mean of D is not valid: the window of a slow detour may be empty.)

The same holds for *trees*. A byte that must get from s to several ranks crosses sends that contain
a tree from s to all of them, so it costs at least the cheapest such tree: a spanning arborescence
where all ranks want it. That is stronger than flows to one rank at a time, and its best prices
are those of a tree packing (`packing`). A byte that is combined on its way to t crosses a tree
towards t.

Switches are taken to forward every message to one port: one that multicasts would copy for free,
which no program can express today, and which these bounds do not cover.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import dijkstra

from headrace.collectives.plan.bound.around import limits
from headrace.collectives.plan.flows import PackSettings, pack
from headrace.collectives.plan.flows.arborescence import cheapest_arborescence
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.errors import TopologyError
from headrace.solver import LinearProgram
from headrace.topology import Topology, transposed

_NO_PRICE = 1e-9  # solver noise; a price so small changes no rate
_PACKED = PackSettings(gap=1e-4, iterations=80, depth_rounds=0, spare=0, limit_s=30.0)
_BY_PATHS = 10_000
"""With more unknowns (commodities x links) the prices come from a path packing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Certified rate: x MB take at least ``x * us_per_mb + alpha_us``."""

    us_per_mb: float
    alpha_us: float


class Flows:
    """The rates of one topology, each solved for on first use."""

    def __init__(self, topology: Topology) -> None:
        links, n = topology.links, topology.ranks
        self._topology = topology
        self._src, self._dst = topology.columns.src, topology.columns.dst
        self._alpha = topology.columns.alpha_us
        # Resources: every link, then every shared capacity.
        betas = [link.beta_us_per_mb for link in links]
        members = [np.array([index]) for index in range(len(links))]
        for shared in topology.shared:
            if shared.links:
                members.append(np.array(sorted(set(shared.links))))
                betas.append(shared.beta_us_per_mb)
        self._shares = len(betas) > len(links)
        self._unit = 1.0 / min(betas, default=1.0)  # scales the program to numbers near 1
        self._capacity = 1.0 / np.array(betas) / self._unit
        rows = np.repeat(np.arange(len(betas)), [len(links) for links in members])
        columns = np.concatenate([np.empty(0, dtype=np.int64), *members])
        self._uses = sparse.csr_array(
            (np.ones(len(rows)), (rows, columns)), shape=(len(betas), len(links))
        )
        index, ones = np.arange(len(links)), np.ones(len(links))
        ends = np.concatenate((self._src, self._dst))
        self._balance = sparse.csr_array(
            (np.concatenate((ones, -ones)), (ends, np.concatenate((index, index)))),
            shape=(n, len(links)),
        )
        self.distance_us = self._distances(self._alpha)
        """(ranks, ranks): shortest paths in alpha; infinite where there is none."""
        self.struck = False
        """A time limit ended a packing: the bounds hold, but another run may find better ones."""
        self._known: dict[tuple[tuple[tuple[int, int], ...], tuple[float, ...] | None], Rate] = {}

    def require(self, pairs: Sequence[tuple[int, int]], what: str) -> None:
        """Raise TopologyError unless s reaches t for every (s, t)."""
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        lost = np.flatnonzero(~np.isfinite(self.distance_us[ends[:, 0], ends[:, 1]]))
        if len(lost):
            s, t = ends[lost[0]].tolist()
            raise TopologyError(
                f"topology '{self._topology.name}': rank {s} cannot reach rank {t} over its "
                f"links, which {what} needs; add a link"
            )

    def rate(
        self, pairs: Sequence[tuple[int, int]], weights: Sequence[float] | None = None
    ) -> Rate:
        """The rate that every (s, t) of `pairs` can have at once; all must be reachable.

        One commodity a source, so one (or several) destinations of the same source, or several
        sources of one destination, make a small program.

        Parameters
        ----------
        weights : of every pair, its rate as a multiple of the returned one; 1 by default.
        """
        key = (tuple(pairs), None if weights is None else tuple(weights))
        if key not in self._known:
            ratio = np.ones(len(pairs)) if weights is None else np.array(weights, dtype=float)
            sources, sinks = (np.array(ends) for ends in zip(*key[0], strict=True))
            names = 1 if len(set(sinks.tolist())) == 1 else len(set(sources.tolist()))
            if names * len(self._src) > _BY_PATHS:
                prices = self._packed(sources, sinks, ratio)
            else:
                prices = self._flow_prices(key[0], ratio)
            start = self.distance_us[sources].min(axis=0)
            finish = self.distance_us[:, sinks].min(axis=1)
            rates: list[Rate] = []
            for row in self._with_few(prices):
                far = self._between(self._uses.T @ row, sources, sinks)
                rates.append(self._certified(row, float(far @ ratio), start, finish))
            self._known[key] = _with_alpha(*rates)
        return self._known[key]

    def trees(
        self,
        deliveries: Deliveries,
        weights: np.ndarray,
        *,
        combining: bool = False,
        symmetry: np.ndarray | None = None,
    ) -> Rate:
        """The rate at which all chunks of `deliveries` can go down trees at once.

        A chunk for some ranks only costs at least the cheapest path to the dearest of them.

        Parameters
        ----------
        deliveries : of all chunks; with `combining`, chunks are combined from their targets to
            their origin instead.
        weights : (chunks,), the size of each.
        symmetry : a group that maps topology, deliveries and weights to themselves, for speed.
        """
        prices = self._tree_prices(deliveries, weights, combining, symmetry)
        everyone = self._topology.ranks - 1
        origins = deliveries.origin.astype(np.int64)
        rates: list[Rate] = []
        for row in self._with_few(prices):
            costs = self._matrix(self._uses.T @ row)
            costs = costs.T if combining else costs
            far = self._distances(self._uses.T @ row)
            far = far.T if combining else far
            trees: dict[int, float] = {}
            paid = 0.0
            for origin, targets, weight in zip(
                origins.tolist(), deliveries.targets, weights.tolist(), strict=True
            ):
                if targets.sum() == everyone:
                    if origin not in trees:
                        trees[origin] = _cost(costs, origin)
                    paid += weight * trees[origin]
                elif targets.any():
                    paid += weight * float(far[origin, targets].max())
            delivered = deliveries.targets.any(axis=1)
            near, reached = np.unique(origins[delivered]), deliveries.targets.any(axis=0)
            if combining:
                near, reached = np.flatnonzero(reached), np.isin(np.arange(everyone + 1), near)
            start = self.distance_us[near].min(axis=0)
            finish = self.distance_us[:, reached].min(axis=1)
            rates.append(self._certified(row, paid, start, finish))
        return _with_alpha(*rates)

    def _with_few(self, prices: np.ndarray) -> list[np.ndarray]:
        """Without the small prices of a packing, where there are any, and with them.

        Where there are fewer, there is more alpha.
        """
        paid = prices * self._capacity
        few = np.where(paid > 2e-3 * paid.max(), prices, 0.0)
        return [prices] if np.array_equal(few, prices) else [few, prices]

    def _tree_prices(
        self,
        deliveries: Deliveries,
        weights: np.ndarray,
        combining: bool = False,
        symmetry: np.ndarray | None = None,
    ) -> np.ndarray:
        """The prices of the packing of these trees, each of its chunk's weight."""
        topology = transposed(self._topology) if combining else self._topology
        packing = pack(
            topology, deliveries, 1.0, weights=weights, symmetry=symmetry, settings=_PACKED
        )
        self.struck |= packing.stopped == "time"
        # A packing's price is per us of a resource, here per MB; empty capacities are left out.
        used = [
            shared
            for shared in range(len(self._topology.shared))
            if self._topology.shared[shared].links
        ]
        places = [*range(len(self._src)), *(len(self._src) + shared for shared in used)]
        return packing.prices[places] / self._capacity

    def egress(self, label: np.ndarray | None = None) -> Rate:
        """The rate of all links together: the largest feasible sum.

        Parameters
        ----------
        label : (ranks,), the group of every rank: only links between groups count.
        """
        counts = np.ones(len(self._src), dtype=bool)
        if label is not None:
            counts = label[self._src] != label[self._dst]
        prices = self._solve(-counts.astype(float), self._uses)
        cheapest = float((self._uses.T @ prices)[counts].min())
        at_once = np.zeros(self._topology.ranks)
        return self._certified(prices, cheapest, at_once, at_once)

    def _packed(self, sources: np.ndarray, sinks: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        targets = np.arange(self._topology.ranks) == sinks[:, None]
        deliveries = Deliveries(
            ranks=self._topology.ranks, origin=sources.astype(np.int32), targets=targets
        )
        return self._tree_prices(deliveries, ratio)

    def _flow_prices(self, pairs: tuple[tuple[int, int], ...], ratio: np.ndarray) -> np.ndarray:
        """Maximise x: every source emits x for each of its sinks, every sink takes x of each."""
        n = self._topology.ranks
        one_sink = len({t for _, t in pairs}) == 1
        commodities = [0] * len(pairs) if one_sink else [s for s, _ in pairs]
        names = sorted(set(commodities))
        supply = np.zeros((len(names), n))
        for commodity, (s, t), weight in zip(commodities, pairs, ratio, strict=True):
            supply[names.index(commodity), s] += weight
            supply[names.index(commodity), t] -= weight
        if len(names) == 1 and not self._shares:
            # Towards one sink, or backwards to one source.
            ends = (self._src, self._dst) if one_sink else (self._dst, self._src)
            rank = pairs[0][1] if one_sink else pairs[0][0]
            weight = np.where(np.arange(n) == rank, 0.0, np.abs(supply[0]))
            if limits(*ends, self._capacity, rank, weight):
                return np.where(ends[1] == rank, 1.0, 0.0)
        # Unknowns: for every commodity the rate on every link; then x.
        balance = sparse.block_diag([self._balance] * len(names))
        balance = sparse.hstack([balance, -supply.reshape(-1, 1)])
        x = sparse.csr_array((len(self._capacity), 1))
        uses = sparse.hstack([self._uses] * len(names) + [x])
        objective = np.append(np.zeros(len(names) * len(self._src)), -1.0)
        return self._solve(objective, sparse.csr_array(uses), sparse.csr_array(balance))

    def _solve(
        self,
        objective: np.ndarray,
        uses: sparse.csr_array,
        balance: sparse.csr_array | None = None,
    ) -> np.ndarray:
        """Minimise `objective` within the capacities; return their prices."""
        program = LinearProgram()
        program.add_columns(np.empty((0, len(objective))), cost=objective)
        program.add_rows("capacity", -np.inf, self._capacity, uses)
        if balance is not None:
            program.add_rows("balance", 0.0, 0.0, balance)
        solution = program.solve()
        assert solution.optimal, "a bounded feasible linear program failed"
        prices = -solution.duals["capacity"]
        return np.where(prices > _NO_PRICE * prices.max(), prices, 0.0)

    def _certified(
        self, prices: np.ndarray, paid: float, start: np.ndarray, finish: np.ndarray
    ) -> Rate:
        """The rate that `prices` certify if every MB costs at least `paid`."""
        before, behind = start[self._src], self._alpha + finish[self._dst]
        first, member = self._uses.indptr[:-1], self._uses.indices
        delay = np.minimum.reduceat(before[member], first)
        delay += np.minimum.reduceat(behind[member], first)
        # A resource that cannot be reached or left (infinite) carries nothing, whatever its window.
        served = delay[(prices > 0) & np.isfinite(delay)]
        alpha_us = float(served.min()) if len(served) else 0.0
        earned = float(prices @ self._capacity) * self._unit
        return Rate(us_per_mb=paid / earned, alpha_us=alpha_us)

    def _matrix(self, costs: np.ndarray) -> np.ndarray:
        """(ranks, ranks), the links' costs; infinite where there is none."""
        matrix = np.full((self._topology.ranks, self._topology.ranks), np.inf)
        matrix[self._src, self._dst] = costs
        return matrix

    def _distances(self, cost: np.ndarray) -> np.ndarray:
        return np.asarray(dijkstra(self._graph(cost)))

    def _between(self, cost: np.ndarray, sources: np.ndarray, sinks: np.ndarray) -> np.ndarray:
        """Of every pair its shortest path; searched for from the side that has fewer ranks."""
        ends = (np.unique(sources, return_inverse=True), np.unique(sinks, return_inverse=True))
        (near, of), graph, far = ends[0], self._graph(cost), sinks
        if len(ends[1][0]) < len(near):
            (near, of), graph, far = ends[1], graph.T, sources
        return np.asarray(dijkstra(graph, indices=near))[of, far]

    def _graph(self, cost: np.ndarray) -> sparse.csr_array:
        n = self._topology.ranks
        return sparse.csr_array((cost, (self._src, self._dst)), shape=(n, n))


def _with_alpha(few: Rate, full: Rate | None = None) -> Rate:
    return few if full is None or few.us_per_mb >= full.us_per_mb * (1 - 1e-3) else full


def _cost(costs: np.ndarray, root: int) -> float:
    """Of the cheapest tree from `root`."""
    parents = cheapest_arborescence(costs, root)
    others = np.flatnonzero(parents >= 0)
    return float(costs[parents[others], others].sum())
