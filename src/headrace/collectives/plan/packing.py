"""Throughput-optimal routes: how much of every chunk's data goes down which tree or path.

With latency left out, a resource (link or shared capacity) that carries x MB is busy for
``beta * x``, and a collective takes as long as its busiest resource. The least T is a linear
program with one variable for every tree:

    min T   s.t.   sum over trees of k of weight = MB of k            for every commodity k
                   beta_r * sum over trees of weight * uses of r <= T     for every resource r

A *commodity* is what starts at the same rank and has the same targets. There are far too many
trees to write down; *column generation* (Dantzig and Wolfe 1960) starts with a few and asks, at
the prices p of the resources that the linear program returns, for the cheapest tree of every
commodity: a spanning arborescence where everybody is a target (Edmonds 1967), a shortest path
where there is one. If none is cheaper than those in use, the optimum is found. Any prices that
sum to 1 prove

    T >= sum over k of MB of k * cost of its cheapest tree,

so the search can stop anywhere with its gap known (Farley's bound). Edmonds' theorem on disjoint
branchings says that with a single source T is the min-cut bound; with several it may be above the
flows in `bound`, and is what no schedule can beat that sends bytes down trees.

Combining collectives are packed on the transposed topology.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from headrace.collectives.plan.arborescence import cheapest_arborescence, shallower
from headrace.collectives.plan.chunks import Carriage
from headrace.collectives.plan.resources import routes as resource_routes
from headrace.errors import TopologyError
from headrace.topology import Topology

__all__ = ["Column", "Commodity", "Loads", "PackSettings", "Packing", "commodities", "pack"]

_FLOOR = 1e-4
"""Share of the prices that is spread over all resources: among equals, detours cost more."""

_SMOOTHING = 0.6
"""Weight of the best prices so far when pricing (Wentges 1997): the master's own jump about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commodity:
    """Data that starts at `origin` and has to reach all `targets`, `mb` of it."""

    origin: int
    targets: tuple[int, ...]
    mb: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A tree (or path) of a commodity and the MB that go down it.

    Attributes
    ----------
    commodity : index into `Packing.commodities`.
    links : (links,) int32, indices into ``topology.links``; a link comes after the one that
        leads to it.
    mb : its weight.
    depth_us : what a chunk takes to the farthest target with the network to itself.
    """

    commodity: int
    links: np.ndarray
    mb: float
    depth_us: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """The answer of `pack`.

    Attributes
    ----------
    commodities : what was asked for.
    columns : trees and paths, by commodity; the weights of a commodity's add up to its MB. Those
        without weight are spare: hardly dearer at the prices, of use for whole chunks.
    throughput_us : when the busiest resource is done.
    bound_us : no set of trees does better; `prices` prove it.
    prices : (links + shared capacities,), the resources' prices, with sum 1.
    iterations : of column generation.
    stopped : "gap", "iterations" or "time".
    """

    commodities: tuple[Commodity, ...]
    columns: tuple[Column, ...]
    throughput_us: float
    bound_us: float
    prices: np.ndarray
    iterations: int
    stopped: str

    @property
    def gap(self) -> float:
        """Relative gap between `throughput_us` and `bound_us`."""
        return (
            (self.throughput_us - self.bound_us) / self.throughput_us if self.throughput_us else 0.0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """How long to search.

    Attributes
    ----------
    gap : relative gap at which it is good enough.
    iterations : of column generation.
    spread_rounds : how often all data is spread over the network first, to begin with good trees.
    depth_slack : throughput that may be given up for trees that are shallow.
    depth_rounds : rounds of looking for shallow trees.
    spare : so many trees without weight are kept for a commodity.
    limit_s : a safety net.
    """

    gap: float = 1e-3
    iterations: int = 150
    spread_rounds: int = 6
    depth_slack: float = 1e-6
    depth_rounds: int = 8
    spare: int = 24
    limit_s: float = 60.0


def commodities(carriage: Carriage, chunk_mb: float) -> tuple[tuple[Commodity, ...], np.ndarray]:
    """Return the commodities of `carriage`, and for every chunk its commodity's index or -1.

    Chunks that nobody wants have none. Commodities are in the order of their first chunks.
    """
    index: dict[tuple[int, bytes], int] = {}
    of = np.full(carriage.chunks, -1, dtype=np.int64)
    for chunk, (origin, targets) in enumerate(
        zip(carriage.origin.tolist(), carriage.targets, strict=True)
    ):
        if targets.any():
            of[chunk] = index.setdefault((origin, targets.tobytes()), len(index))
    counts = np.bincount(of[of >= 0], minlength=len(index))
    first = {commodity: chunk for chunk, commodity in reversed(list(enumerate(of.tolist())))}
    made = tuple(
        Commodity(
            origin=origin,
            targets=tuple(np.flatnonzero(carriage.targets[first[k]]).tolist()),
            mb=float(counts[k]) * chunk_mb,
        )
        for (origin, _), k in index.items()
    )
    return made, of


class Loads:
    """What the links load: their own capacity and those they share, without superfluous ones.

    Attributes
    ----------
    betas : (resources,) us/MB of every resource that can be the busiest.
    names : (resources,) int64, their places among links and then shared capacities.
    """

    def __init__(self, topology: Topology) -> None:
        count = len(topology.links)
        by_link, total = resource_routes(topology, range(count))
        used = sorted({resource for route in by_link.values() for resource, _ in route})
        place = {resource: k for k, resource in enumerate(used)}
        self.names = np.array(used, dtype=np.int64)
        self.betas = np.zeros(len(used))
        self.rows: list[np.ndarray] = []
        for link in range(count):
            row = np.array([place[resource] for resource, _ in by_link[link]], dtype=np.int64)
            self.betas[row] = [beta for _, beta in by_link[link]]
            self.rows.append(row)
        self.links, self.resources = count, total
        self._flat = np.concatenate([np.empty(0, dtype=np.int64), *self.rows])
        self._first = np.cumsum([0, *map(len, self.rows)])

    def of(self, links: np.ndarray) -> np.ndarray:
        """(resources,): what 1 MB on each of `links` keeps busy, in us."""
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(self.rows[k] for k in links)])
        return np.bincount(rows, minlength=len(self.betas)) * self.betas

    def link_costs(self, prices: np.ndarray) -> np.ndarray:
        """(links,): what 1 MB on each link pays at the resources' prices."""
        paid = np.append(0.0, np.cumsum((prices * self.betas)[self._flat]))
        return paid[self._first[1:]] - paid[self._first[:-1]]


def pack(
    topology: Topology,
    carriage: Carriage,
    chunk_mb: float,
    *,
    weights: np.ndarray | None = None,
    settings: PackSettings = PackSettings(),
    progress: Callable[[int, float, float], None] | None = None,
) -> Packing:
    """Return trees and paths that carry `carriage` with (nearly) the least load.

    Only a commodity's volume matters, not how many chunks it is cut into; of trees that are as
    good, those are preferred down which a chunk of `chunk_mb` travels fastest.

    Parameters
    ----------
    chunk_mb : size of every chunk in MB; above 0.
    weights : (chunks,), sizes of chunks that differ, as multiples of `chunk_mb`; above 0.
    progress : called with (iteration, throughput_us, bound_us).

    Raises
    ------
    TopologyError : if a chunk cannot reach a target.
    """
    wanted, of = commodities(carriage, chunk_mb)
    if weights is not None:
        mb = chunk_mb * np.bincount(of[of >= 0], weights[of >= 0], minlength=len(wanted))
        wanted = tuple(replace(k, mb=float(size)) for k, size in zip(wanted, mb, strict=True))
    if not wanted:
        count = len(topology.links) + len(topology.shared)
        return Packing(
            commodities=(),
            columns=(),
            throughput_us=0.0,
            bound_us=0.0,
            prices=np.zeros(count),
            iterations=0,
            stopped="gap",
        )
    return _Packer(topology, wanted, chunk_mb, settings).run(progress)


class _Pricing:
    """The cheapest trees of all commodities at given costs of the links."""

    def __init__(self, topology: Topology, wanted: tuple[Commodity, ...], chunk_mb: float) -> None:
        n = topology.ranks
        self._n, self._wanted = n, wanted
        self._src = np.array([link.src for link in topology.links], dtype=np.int64)
        self._dst = np.array([link.dst for link in topology.links], dtype=np.int64)
        self._link = np.full((n, n), -1, dtype=np.int32)
        self._link[self._src, self._dst] = np.arange(len(self._src))
        self._length = np.full((n, n), np.inf)
        self.length_us = np.array(
            [link.alpha_us + link.beta_us_per_mb * chunk_mb for link in topology.links]
        )
        """(links,): what a chunk takes."""
        self._length[self._src, self._dst] = self.length_us

    def cheapest(
        self, costs: np.ndarray, which: "list[int] | range"
    ) -> list[tuple[np.ndarray, float, float]]:
        """For every commodity of `which`: links, cost per MB that is the least, and depth in us."""
        matrix = np.full((self._n, self._n), np.inf)
        matrix[self._src, self._dst] = costs
        spanning = {k for k in which if len(self._wanted[k].targets) == self._n - 1 > 1}
        paths = self._paths(
            matrix, sorted({self._wanted[k].origin for k in which if k not in spanning})
        )
        trees: dict[int, np.ndarray] = {}
        made: list[tuple[np.ndarray, float, float]] = []
        for k in which:
            origin, targets = self._wanted[k].origin, self._wanted[k].targets
            if k not in spanning:
                parents, far = paths[origin]
                if not np.isfinite(far[list(targets)]).all():
                    lost = next(t for t in targets if not np.isfinite(far[t]))
                    raise TopologyError(
                        f"rank {origin} cannot reach rank {lost} over its links; add a link"
                    )
                links = self._walk(parents, origin, targets)
                least = float(far[list(targets)].max())
            else:
                if origin not in trees:
                    parents = cheapest_arborescence(matrix, origin)
                    trees[origin] = shallower(parents, matrix, self._length)
                links = self._walk(trees[origin], origin, targets)
                least = float(costs[links].sum()) * (1 - 1e-7)  # what `shallower` may add
            made.append((links, least, self.depth_us(links, origin)))
        return made

    def _paths(
        self, matrix: np.ndarray, origins: list[int]
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        if not origins:
            return {}
        graph = csr_array((matrix[self._src, self._dst], (self._src, self._dst)), matrix.shape)
        far, parents = shortest_path(graph, method="D", indices=origins, return_predecessors=True)
        return {origin: (parents[i], far[i]) for i, origin in enumerate(origins)}

    def _walk(self, parents: np.ndarray, origin: int, targets: tuple[int, ...]) -> np.ndarray:
        """The links to the targets, each after the one that leads to it."""
        links: list[int] = []
        known = {origin}
        for target in targets:
            chain: list[int] = []
            at = target
            while at not in known:
                known.add(at)
                chain.append(int(self._link[parents[at], at]))
                at = int(parents[at])
            links.extend(reversed(chain))
        return np.array(links, dtype=np.int32)

    def depth_us(self, links: np.ndarray, origin: int) -> float:
        far = {origin: 0.0}
        for link in links.tolist():
            u, v = int(self._src[link]), int(self._dst[link])
            far[v] = far[u] + float(self._length[u, v])
        return max(far.values())


class _Packer:
    def __init__(
        self,
        topology: Topology,
        wanted: tuple[Commodity, ...],
        chunk_mb: float,
        settings: PackSettings,
    ) -> None:
        self._topology, self._wanted, self._settings = topology, wanted, settings
        self._loads = Loads(topology)
        self._pricing = _Pricing(topology, wanted, chunk_mb)
        self._mb = np.array([k.mb for k in wanted])
        self._seen: set[tuple[int, bytes]] = set()
        self._columns: list[tuple[int, np.ndarray, float]] = []
        self._load: list[np.ndarray] = []  # of every column's commodity going down it entirely
        self._ends = time.monotonic() + settings.limit_s

    def run(self, progress: Callable[[int, float, float], None] | None) -> Packing:
        settings = self._settings
        scale = self._spread()
        master = _Master(len(self._wanted), len(self._loads.betas), scale)
        new = list(range(len(self._columns)))
        best = np.full(len(self._loads.betas), 1.0 / len(self._loads.betas))
        bound, top, iteration, stopped = 0.0, np.inf, 0, "iterations"
        smoothing = 0.0
        for iteration in range(1, settings.iterations + 1):
            master.add([(self._columns[k][0], self._load[k]) for k in new])
            top, prices = master.solve()
            if progress is not None:
                progress(iteration, top, bound)
            if top - bound <= settings.gap * top:
                stopped = "gap"
                break
            if time.monotonic() > self._ends:
                stopped = "time"
                break
            while True:
                asked = smoothing * best + (1 - smoothing) * prices
                asked = (1 - _FLOOR) * asked + _FLOOR * self._even
                value, new = self._price(asked)
                if value > bound:
                    bound, best = value, asked
                if new or not smoothing:
                    break
                smoothing = 0.0
            if not new:
                stopped = "gap"  # the floor of the prices is all that is left
                break
            smoothing = _SMOOTHING
        weights = self._shallow(master, top)
        weights = np.append(weights, np.zeros(self._vary(best)))
        return self._packing(weights, bound, best, iteration, stopped)

    def _shallow(self, master: "_Master", top: float) -> np.ndarray:
        """The weights of the least mean depth at (nearly) the least load.

        More columns are generated for it, by a heuristic: cheap at the prices of that linear
        program and short. `top` stays valid whatever it finds.
        """
        depths = [depth for _, _, depth in self._columns]
        scale = max(depths)
        master.cap(top * (1 + self._settings.depth_slack))
        master.cost(0, [depth / scale for depth in depths])
        weights, mean = master.weights(), np.inf
        for _ in range(self._settings.depth_rounds):
            found, values, prices = master.duals()
            if not found < mean * (1 - 1e-3):
                break
            weights, mean = master.weights(), found
            paid = self._loads.link_costs(prices)
            first = len(self._columns)
            for share in (0.02, 0.2):
                costs = paid * self._mb.max() + share / scale * self._pricing.length_us
                every = range(len(self._wanted))
                for k, (links, _, depth) in enumerate(self._pricing.cheapest(costs, every)):
                    load = self._mb[k] * self._loads.of(links)
                    if depth / scale + float(prices @ load) < values[k] - 1e-6:
                        self._add(k, links, depth, load)
            new = self._columns[first:]
            if not new:
                break
            master.add([(k, load) for (k, _, _), load in zip(new, self._load[first:], strict=True)])
            master.cost(first, [depth / scale for _, _, depth in new])
        else:
            found, _, _ = master.duals()
            weights = master.weights() if found < mean else weights
        return np.append(weights, np.zeros(len(self._columns) - len(weights)))

    def _spread(self) -> float:
        """Send everything a share at a time where there is least load; return the busiest's."""
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
                    added = self._mb[k] * self._loads.of(links)
                    load += added / rounds
                    self._add(k, links, depth, added)
            if done == 0:
                used = load > 0
        self._even = used / used.sum()
        return float(load.max())

    def _add(self, k: int, links: np.ndarray, depth: float, load: np.ndarray) -> bool:
        key = (k, np.sort(links).tobytes())
        if key in self._seen:
            return False
        self._seen.add(key)
        self._columns.append((k, links, depth))
        self._load.append(load)
        return True

    def _price(self, prices: np.ndarray) -> tuple[float, list[int]]:
        """The bound that `prices` prove, and the new columns."""
        costs = self._loads.link_costs(prices)
        found = self._pricing.cheapest(costs, range(len(self._wanted)))
        value, first = 0.0, len(self._columns)
        for k, (links, least, depth) in enumerate(found):
            value += self._mb[k] * least
            self._add(k, links, depth, self._mb[k] * self._loads.of(links))
        return value / float(prices.sum()), list(range(first, len(self._columns)))

    def _packing(
        self, weights: np.ndarray, bound: float, prices: np.ndarray, iterations: int, stopped: str
    ) -> Packing:
        of = np.array([k for k, _, _ in self._columns])
        weights = np.where(weights > 1e-7, weights, 0.0)
        weights /= np.bincount(of, weights=weights, minlength=len(self._wanted))[of]
        load = sum(share * self._load[j] for j, share in enumerate(weights.tolist()) if share > 0.0)
        named = np.zeros(len(self._topology.links) + len(self._topology.shared))
        named[self._loads.names] = prices / prices.sum()
        return Packing(
            commodities=self._wanted,
            columns=tuple(
                Column(
                    commodity=self._columns[j][0],
                    links=self._columns[j][1],
                    mb=float(weights[j] * self._mb[self._columns[j][0]]),
                    depth_us=self._columns[j][2],
                )
                for j in self._kept(of, weights, prices)
            ),
            throughput_us=float(np.max(load)),
            bound_us=bound,
            prices=named,
            iterations=iterations,
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
                self._add(k, links, depth, self._mb[k] * self._loads.of(links))
        return len(self._columns) - count

    def _kept(self, of: np.ndarray, weights: np.ndarray, prices: np.ndarray) -> list[int]:
        """The columns with weight, and of every commodity the shallowest spare ones."""
        paid = np.array([float(prices @ load) for load in self._load])
        depth = np.array([depth for _, _, depth in self._columns])
        least = np.full(len(self._wanted), np.inf)
        np.minimum.at(least, of, paid)
        kept: list[int] = []
        spare: dict[int, int] = {}
        for j in np.lexsort((np.arange(len(of)), depth, weights <= 0.0, of)).tolist():
            k = int(of[j])
            if weights[j] <= 0.0:
                if paid[j] > least[k] * 1.02 or spare.get(k, 0) >= self._settings.spare:
                    continue
                spare[k] = spare.get(k, 0) + 1
            kept.append(j)
        return kept

    @cached_property
    def _even(self) -> np.ndarray:
        return np.full(len(self._loads.betas), 1.0 / len(self._loads.betas))


class _Master:
    """The linear program over the columns known: x is the share of its commodity, T in `scale`."""

    def __init__(self, commodities: int, resources: int, scale: float) -> None:
        import highspy

        self._commodities, self._resources, self._scale = commodities, resources, scale
        self._columns = 0
        model = highspy.Highs()
        model.setOptionValue("output_flag", False)
        model.setOptionValue("threads", 1)
        model.setOptionValue("random_seed", 0)
        self._infinity = highspy.kHighsInf
        nothing = np.empty(0)
        empty = np.empty(0, dtype=np.int32)
        first = np.zeros(commodities + resources, dtype=np.int32)
        lower = np.append(np.ones(commodities), np.full(resources, -self._infinity))
        upper = np.append(np.ones(commodities), np.zeros(resources))
        model.addRows(len(lower), lower, upper, 0, first, empty, nothing)
        rows = np.arange(commodities, commodities + resources, dtype=np.int32)
        model.addCol(1.0, 0.0, self._infinity, resources, rows, -np.ones(resources))
        self._model = model

    def add(self, columns: list[tuple[int, np.ndarray]]) -> None:
        """Add columns: (commodity, load in us of all of it)."""
        for commodity, load in columns:
            rows = np.flatnonzero(load)
            index = np.append(commodity, rows + self._commodities).astype(np.int32)
            value = np.append(1.0, load[rows] / self._scale)
            self._model.addCol(0.0, 0.0, self._infinity, len(index), index, value)
        self._columns += len(columns)

    def solve(self) -> tuple[float, np.ndarray]:
        """The least load (us) and the resources' prices, which sum to 1."""
        self._model.run()
        solution = self._model.getSolution()
        prices = -np.asarray(solution.row_dual)[self._commodities :]
        prices = np.maximum(prices, 0.0)
        total = prices.sum()
        prices = prices / total if total > 0 else np.full(self._resources, 1 / self._resources)
        return float(solution.col_value[0]) * self._scale, prices

    def cap(self, top: float) -> None:
        """From now on no resource is loaded for more than `top` us, and T costs nothing."""
        self._model.changeColBounds(0, 0.0, top / self._scale)
        self._model.changeColCost(0, 0.0)

    def cost(self, first: int, costs: list[float]) -> None:
        """Give the columns from `first` on these costs."""
        index = np.arange(first + 1, first + 1 + len(costs), dtype=np.int32)
        self._model.changeColsCost(len(costs), index, np.array(costs))

    def duals(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Solve; return the objective, the commodities' values and the resources' prices a us."""
        self._model.run()
        dual = np.asarray(self._model.getSolution().row_dual)
        prices = np.maximum(-dual[self._commodities :], 0.0) / self._scale
        return self._model.getInfo().objective_function_value, dual[: self._commodities], prices

    def weights(self) -> np.ndarray:
        """The columns' shares in the last solution."""
        return np.asarray(self._model.getSolution().col_value)[1:]
