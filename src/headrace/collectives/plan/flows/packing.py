"""Throughput-optimal routes: the share of every chunk's data on each tree or path.

With latency left out, a resource (link or shared capacity) that carries x MB is busy for
``beta * x``, and a collective takes as long as its busiest resource. The least T is a linear
program with one variable for every tree:

    min T   s.t.   sum over trees of k of weight = MB of k            for every commodity k
                   beta_r * sum over trees of weight * uses of r <= T     for every resource r

A *commodity* is all data with the same origin and the same targets. There are far too many trees
to enumerate; *column generation* (Dantzig and Wolfe 1960) starts with a few and finds, at the
prices p (duals) of the resources in the linear program, the cheapest tree of every commodity: a
spanning arborescence if all ranks are targets (Edmonds 1967), a shortest path if one is. If none
is cheaper than those in use, the optimum is found. Any prices that
sum to 1 prove

    T >= sum over k of MB of k * cost of its cheapest tree,

so the search can stop anywhere with its gap known (Farley's bound). Edmonds' theorem on disjoint
branchings says that with a single source T is the min-cut bound; with several it may be above the
flows in `bound`, and is a lower bound of all schedules that send bytes down trees.

Combining collectives are packed on the transposed topology.
"""

import time
from dataclasses import replace

import numpy as np

from headrace.collectives.plan.flows.commodities import (
    Commodity,
    Loads,
    TreeColumn,
    commodities,
    commodity_orbits,
)
from headrace.collectives.plan.flows.pricing import Master, Pricing
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.collectives.plan.ir.permutations import link_images
from headrace.facades import public_value
from headrace.topology import Topology

_FLOOR = 1e-4
"""Share of the prices that is spread over all resources, so that detours cost more: a tie-break."""

_SMOOTHING = 0.6
"""Weight of the best prices so far when pricing (Wentges 1997), as the master's oscillate."""


@public_value("headrace.collectives.plan.flows", eq=False)
class Packing:
    """Result of `pack`.

    Attributes
    ----------
    commodities : all of the deliveries'. With a group of permutations only the first of each orbit
        has columns.
    columns : trees and paths, by commodity; the weights of a commodity's add up to its MB. Those
        without weight are spare: hardly dearer at the prices, for rounding to whole chunks.
    throughput_us : load of the busiest resource.
    bound_us : lower bound of all sets of trees; `prices` certify it.
    prices : (links + shared capacities,), the resources' prices, with sum 1.
    stopped : "gap", "iterations" or "time".
    """

    commodities: tuple[Commodity, ...]
    columns: tuple[TreeColumn, ...]
    throughput_us: float
    bound_us: float
    prices: np.ndarray
    stopped: str

    @property
    def gap(self) -> float:
        """Relative gap between `throughput_us` and `bound_us`."""
        return (
            (self.throughput_us - self.bound_us) / self.throughput_us if self.throughput_us else 0.0
        )


@public_value("headrace.collectives.plan.flows")
class PackSettings:
    """Search limits.

    Attributes
    ----------
    gap : relative gap at which to stop.
    iterations : of column generation.
    spread_rounds : passes of the greedy heuristic that generates the first trees.
    depth_slack : relative throughput that may be given up for shallow trees.
    depth_rounds : rounds of column generation for shallow trees.
    spare : number of trees without weight to keep for a commodity.
    limit_s : a safety net.
    """

    gap: float = 1e-3
    iterations: int = 150
    spread_rounds: int = 6
    depth_slack: float = 1e-6
    depth_rounds: int = 8
    spare: int = 24
    limit_s: float = 60.0


_DEFAULTS = PackSettings()


def pack(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    *,
    weights: np.ndarray | None = None,
    symmetry: np.ndarray | None = None,
    settings: PackSettings = _DEFAULTS,
) -> Packing:
    """Return trees and paths that carry `deliveries` with (nearly) the least load.

    Only a commodity's volume matters, not how many chunks it is cut into; of trees that are as
    good, those are preferred down which a chunk of `chunk_mb` travels fastest.

    Parameters
    ----------
    chunk_mb : size of every chunk in MB; above 0.
    weights : (chunks,), sizes of chunks that differ, as multiples of `chunk_mb`; above 0.
    symmetry : (elements, ranks) int32, a group of permutations of the ranks, automorphisms of
        topology and deliveries: only one commodity of each orbit is packed, as the images of its
        trees are the others'. No throughput is lost.

    Raises
    ------
    TopologyError : if a chunk cannot reach a target, or `symmetry` is none of the topology.
    ProgramError : if `symmetry` does not map the deliveries to themselves.
    """
    demands, of = commodities(deliveries, chunk_mb)
    if weights is not None:
        mb = chunk_mb * np.bincount(of[of >= 0], weights[of >= 0], minlength=len(demands))
        demands = tuple(replace(k, mb=float(size)) for k, size in zip(demands, mb, strict=True))
    if not demands:
        count = len(topology.links) + len(topology.shared)
        return Packing(
            commodities=(),
            columns=(),
            throughput_us=0.0,
            bound_us=0.0,
            prices=np.zeros(count),
            stopped="gap",
        )
    orbits = commodity_orbits(deliveries, of, symmetry)
    images = [link_images(topology, perm) for perm in ([] if symmetry is None else symmetry)]
    return _Packer(topology, demands, orbits, images, chunk_mb, settings).run()


class _Packer:
    def __init__(
        self,
        topology: Topology,
        commodities: tuple[Commodity, ...],
        orbits: tuple[np.ndarray, np.ndarray],
        images: list[np.ndarray],
        chunk_mb: float,
        settings: PackSettings,
    ) -> None:
        self._topology, self._commodities, self._settings = topology, commodities, settings
        self._first, sizes = orbits
        self._wanted = tuple(commodities[k] for k in self._first)
        self._loads = Loads(topology, images)
        self._pricing = Pricing(topology, self._wanted, chunk_mb)
        # MB of all of an orbit.
        self._mb = np.array([commodity.mb for commodity in self._wanted]) * sizes
        self._seen: set[tuple[int, bytes]] = set()
        self._columns: list[tuple[int, np.ndarray, float]] = []
        self._load: list[np.ndarray] = []  # of every column's commodity going down it entirely
        self._ends = time.monotonic() + settings.limit_s

    def run(self) -> Packing:
        settings = self._settings
        scale = self._spread()
        master = Master(len(self._wanted), len(self._loads.betas), scale)
        best = np.full(len(self._loads.betas), 1.0 / len(self._loads.betas))
        bound, top, stopped = 0.0, np.inf, "iterations"
        columns_told, smoothing = 0, 0.0
        for _ in range(settings.iterations):
            columns_told = self._tell(master, columns_told)
            top, prices = master.solve()
            if top - bound <= settings.gap * top:
                stopped = "gap"
                break
            if time.monotonic() > self._ends:
                stopped = "time"
                break
            while True:
                tried = smoothing * best + (1 - smoothing) * prices
                tried = (1 - _FLOOR) * tried + _FLOOR * self._even
                value = self._price(tried)
                if value > bound:
                    bound, best = value, tried
                if len(self._columns) > columns_told or not smoothing:
                    break
                smoothing = 0.0
            if len(self._columns) == columns_told:
                stopped = "gap"  # only the floor of the prices is left
                break
            smoothing = _SMOOTHING
        else:
            self._tell(master, columns_told)
        weights = self._shallow(master, top)
        weights = np.append(weights, np.zeros(self._vary(best)))
        return self._packing(weights, bound, best, stopped)

    def _tell(self, master: Master, first: int) -> int:
        """Give the master the columns from `first` on; return how many there are."""
        columns = zip(self._columns[first:], self._load[first:], strict=True)
        master.add([(k, load) for (k, _, _), load in columns])
        return len(self._columns)

    def _shallow(self, master: Master, top: float) -> np.ndarray:
        """The weights of the least mean depth at (nearly) the least load.

        More columns are generated for it, by a heuristic: cheap at the prices of that linear
        program and short. `top` stays valid in any case.
        """
        depths = [depth for _, _, depth in self._columns]
        scale = max(depths)
        master.cap(top * (1 + self._settings.depth_slack))
        master.cost(0, [depth / scale for depth in depths])
        weights, mean = master.weights(), np.inf
        for _ in range(self._settings.depth_rounds):
            objective, values, prices = master.duals()
            if not objective < mean * (1 - 1e-3):
                break
            weights, mean = master.weights(), objective
            paid = self._loads.link_costs(prices)
            first = len(self._columns)
            for share in (0.02, 0.2):
                costs = paid * self._mb.max() + share / scale * self._pricing.length_us
                every = range(len(self._wanted))
                for k, (links, _, depth) in enumerate(self._pricing.cheapest(costs, every)):
                    load = self._mb[k] * self._loads.of(links)
                    if depth / scale + float(prices @ load) < values[k] - 1e-6:
                        self._add(k, links, depth)
            if len(self._columns) == first:
                break
            self._tell(master, first)
            master.cost(first, [depth / scale for _, _, depth in self._columns[first:]])
        else:
            objective, _, _ = master.duals()
            weights = master.weights() if objective < mean else weights
        return np.append(weights, np.zeros(len(self._columns) - len(weights)))

    def _spread(self) -> float:
        """Route all data greedily, a share at a time by load; return the largest load."""
        resources = len(self._loads.betas)
        load = np.zeros(resources)
        used = np.zeros(resources)
        rounds = max(1, self._settings.spread_rounds)
        groups: dict[int, list[int]] = {}
        for k, commodity in enumerate(self._wanted):
            groups.setdefault(commodity.origin, []).append(k)
        for done in range(rounds):
            for group in groups.values():
                top = load.max()
                prices = np.exp(8.0 * (load / top - 1.0)) if top > 0 else np.ones(resources)
                costs = self._loads.link_costs(prices / prices.sum())
                for k, (links, _, depth) in zip(
                    group, self._pricing.cheapest(costs, group), strict=True
                ):
                    load += self._mb[k] * self._loads.of(links) / rounds
                    self._add(k, links, depth)
            if done == 0:
                used = load > 0
        self._even = used / used.sum()
        return float(load.max())

    def _add(self, k: int, links: np.ndarray, depth: float) -> None:
        """Add a column unless it is known."""
        key = (k, np.sort(links).tobytes())
        if key not in self._seen:
            self._seen.add(key)
            self._columns.append((k, links, depth))
            self._load.append(self._mb[k] * self._loads.of(links))

    def _price(self, prices: np.ndarray) -> float:
        """Add the cheapest columns at `prices`; return the bound that these certify."""
        costs = self._loads.link_costs(prices)
        value = 0.0
        for k, (links, least, depth) in enumerate(
            self._pricing.cheapest(costs, range(len(self._wanted)))
        ):
            value += self._mb[k] * least
            self._add(k, links, depth)
        return value / float(prices.sum())

    def _packing(
        self, weights: np.ndarray, bound: float, prices: np.ndarray, stopped: str
    ) -> Packing:
        of = np.array([k for k, _, _ in self._columns])
        weights = np.where(weights > 1e-7, weights, 0.0)
        weights /= np.bincount(of, weights=weights, minlength=len(self._wanted))[of]
        load = sum(share * self._load[j] for j, share in enumerate(weights.tolist()) if share > 0.0)
        named = np.zeros(len(self._topology.links) + len(self._topology.shared))
        shared = np.bincount(self._loads.stands)
        named[self._loads.names] = (prices / shared)[self._loads.stands] / prices.sum()
        columns: list[TreeColumn] = []
        for j in self._kept(of, weights, prices):
            k, links, depth_us = self._columns[j]
            mb = self._wanted[k].mb * float(weights[j])
            first = int(self._first[k])
            columns.append(TreeColumn(commodity=first, links=links, mb=mb, depth_us=depth_us))
        return Packing(
            commodities=self._commodities,
            columns=tuple(columns),
            throughput_us=float(np.max(load)),
            bound_us=bound,
            prices=named,
            stopped=stopped,
        )

    def _vary(self, prices: np.ndarray) -> int:
        """Add trees that are cheapest at prices close to `prices`; return how many."""
        count = len(self._columns)
        shape = len(self._topology.links)
        for turn in range(self._settings.spare // 4):
            random = np.random.default_rng(turn)
            costs = self._loads.link_costs(prices) * (1 + 0.05 * random.random(shape))
            for k, (links, _, depth) in enumerate(
                self._pricing.cheapest(costs, range(len(self._wanted)))
            ):
                self._add(k, links, depth)
        return len(self._columns) - count

    def _kept(self, of: np.ndarray, weights: np.ndarray, prices: np.ndarray) -> list[int]:
        """The columns with weight, and of every commodity the shallowest spare ones."""
        paid = np.array([float(prices @ load) for load in self._load])
        depth = np.array([depth for _, _, depth in self._columns])
        least = np.full(len(self._wanted), np.inf)
        np.minimum.at(least, of, paid)
        retained: list[int] = []
        spare: dict[int, int] = {}
        for j in np.lexsort((np.arange(len(of)), depth, weights <= 0.0, of)).tolist():
            k = int(of[j])
            if weights[j] <= 0.0:
                if paid[j] > least[k] * 1.02 or spare.get(k, 0) >= self._settings.spare:
                    continue
                spare[k] = spare.get(k, 0) + 1
            retained.append(j)
        return retained
