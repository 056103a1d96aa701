"""Greedy routing: start of the exact model, and the fallback where that finds no solution.

Two routers, both symmetric by construction (one tree an orbit of chunks, moved by the group):

- `priced_trees` grows each chunk's tree over links priced by their load, and reroutes while that
  helps. It applies to every demand.
- `matched_trees` goes forward in time and matches every free link with a chunk wanted beyond it.
  It applies to demands in which every rank on the way wants the chunk (allgather, broadcast).
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from headrace.collectives.plan.generators.taccl.routing import RouteProblem

_STEEPNESS = 6.0
_REACH = (1.0, 0.5, 0.2)  # weights of a chunk's path so far when its tree grows


def lower_time(problem: RouteProblem, trees: np.ndarray) -> float:
    """The routing objective of `trees` (5.2, 5.6 to 5.8): the larger of congestion and dilation."""
    resource, link, us = problem.costs.holds()
    counts = np.bincount(trees[trees >= 0], minlength=len(problem.costs.src))
    load = np.bincount(resource, weights=us * counts[link], minlength=problem.costs.resources)
    return max(float(load.max(initial=0.0)), float(arrivals(problem, trees).max(initial=0.0)))


def least_time(problem: RouteProblem) -> float:
    """Lower bound of all routes, one chunk a message, in us: ranks' inbound load, and distance.

    A rank's links are grouped by the slowest resource that they share; in time t a resource held
    for h by each message admits t / h of them, rounded down.
    """
    costs, deliveries = problem.costs, problem.deliveries
    resource, link, us = costs.holds()
    hold = np.full(costs.resources, np.inf)
    np.minimum.at(hold, resource, us)
    members = np.bincount(resource, minlength=costs.resources)
    slowest = np.full(len(costs.src), -1)
    for at in np.lexsort((members[resource], us)).tolist():
        slowest[link[at]] = resource[at]
    usable = problem.allowed.any(axis=0)
    least = float(earliest_arrivals(problem)[deliveries.targets].max(initial=0.0))
    for rank in range(deliveries.ranks):
        mine = np.unique(slowest[(costs.dst == rank) & usable])
        chunks_due = int(deliveries.targets[:, rank].sum())
        if not chunks_due or not len(mine) or hold[mine].min() <= 0.0:
            continue
        times = np.unique(np.round(np.outer(hold[mine], np.arange(1, chunks_due + 1)).ravel(), 9))
        taken = np.floor(times[:, None] / hold[mine][None, :] + 1e-9).sum(axis=1)
        least = max(least, float(times[int(np.argmax(taken >= chunks_due))]))
    return least


def earliest_arrivals(problem: RouteProblem) -> np.ndarray:
    """(chunks, ranks): earliest arrival of chunks over the links allowed to them, in us."""
    costs, deliveries = problem.costs, problem.deliveries
    time = np.full((deliveries.chunks, deliveries.ranks), np.inf)
    time[np.arange(deliveries.chunks), deliveries.origin] = 0.0
    rows, links = np.nonzero(problem.allowed)
    for _ in range(deliveries.ranks):
        reach = time[rows, costs.src[links]] + costs.lat[links]
        arrivals = time.copy()
        np.minimum.at(arrivals, (rows, costs.dst[links]), reach)
        if np.array_equal(arrivals, time):
            break
        time = arrivals
    return time


def arrivals(problem: RouteProblem, trees: np.ndarray) -> np.ndarray:
    """(chunks, ranks): arrival of chunks on unloaded links, in us; -inf where they do not come."""
    costs = problem.costs
    chunks = np.arange(problem.deliveries.chunks)
    time = np.full(trees.shape, -np.inf)
    time[chunks, problem.deliveries.origin] = 0.0
    rows, ranks = np.nonzero(trees >= 0)
    links = trees[rows, ranks]
    for _ in range(trees.shape[1]):
        reach = time[rows, costs.src[links]] + costs.lat[links]
        if np.array_equal(time[rows, ranks], reach):
            return time
        time[rows, ranks] = reach
    return time


def priced_trees(
    problem: RouteProblem,
    *,
    rounds: int = 3,
    interrupt: Callable[[], bool] | None = None,
) -> list[np.ndarray]:
    """Return trees by price, best by `lower_time` first, one for each way to grow them."""
    priced: list[tuple[float, int, np.ndarray]] = []
    for number, reach in enumerate(_REACH if problem.broadcasting else _REACH[:1]):
        trees, value = _Pricing(problem, reach).route(rounds, interrupt)
        priced.append((value, number, trees))
        if interrupt is not None and interrupt():
            break
    return [trees for _, _, trees in sorted(priced, key=lambda row: row[:2])]


class _Pricing:
    def __init__(self, problem: RouteProblem, reach: float) -> None:
        self._problem, self._reach = problem, reach
        costs = problem.costs
        self._resource, self._link, self._us = costs.holds()
        self._trees = np.full((problem.deliveries.chunks, problem.deliveries.ranks), -1, np.int32)
        self._counts = np.zeros(len(costs.src))
        self._adjacent: dict[bytes, list[list[tuple[int, int]]]] = {}

    def route(self, rounds: int, interrupt: Callable[[], bool] | None) -> tuple[np.ndarray, float]:
        best, best_value = self._trees, float("inf")
        for _ in range(rounds + 1):
            for chunk in self._problem.orbits:
                self._reroute(chunk)
            value = lower_time(self._problem, self._trees)
            if value < best_value - 1e-9:
                best, best_value = self._trees.copy(), value
            if interrupt is not None and interrupt():
                break
        return best, best_value

    def _reroute(self, chunk: int) -> None:
        problem = self._problem
        orbit = [image for image, _ in problem.orbits[chunk]]
        old = self._trees[orbit]
        self._counts -= np.bincount(old[old >= 0], minlength=len(self._counts))
        tree = self._grow(chunk, self._prices())
        problem.spread(chunk, tree, self._trees)
        new = self._trees[orbit]
        self._counts += np.bincount(new[new >= 0], minlength=len(self._counts))

    def _prices(self) -> list[float]:
        """Return each link's price: its own time, and that of its resources weighted by load."""
        costs = self._problem.costs
        link_load_us = self._us * self._counts[self._link]
        load = np.bincount(self._resource, weights=link_load_us, minlength=costs.resources)
        price = np.exp(_STEEPNESS * load / max(float(load.max(initial=0.0)), 1e-12)) - 1.0
        paid = np.bincount(
            self._link, weights=self._us * price[self._resource], minlength=len(costs.src)
        )
        return (costs.lat + paid).tolist()

    def _grow(self, chunk: int, price: list[float]) -> np.ndarray:
        """Grow a tree from where the chunk is: cheapest next target first.

        A target that joins is a new root, whose path so far is weighted by `reach`.
        """
        problem, lat = self._problem, self._problem.costs.lat
        adjacent = self._links_of(problem.allowed[chunk])
        is_target = problem.deliveries.targets[chunk].tolist()
        missing = sum(is_target)
        n = len(is_target)
        arriving_link = [-1] * n
        src = problem.costs.src
        tree = np.full(n, -1, np.int32)
        joined = [False] * n
        settled = [False] * n
        origin = int(problem.deliveries.origin[chunk])
        heap: list[tuple[float, int, int, float]] = [(0.0, origin, -1, 0.0)]
        while heap and missing:
            cost, rank, by, depth = heappop(heap)
            if settled[rank]:
                continue
            settled[rank], arriving_link[rank] = True, by
            if is_target[rank]:
                at = rank
                while arriving_link[at] >= 0 and not joined[at]:
                    joined[at], tree[at] = True, arriving_link[at]
                    at = int(src[arriving_link[at]])
                missing -= 1
                cost = self._reach * depth
            for link, neighbour in adjacent[rank]:
                if not settled[neighbour]:
                    heappush(heap, (cost + price[link], neighbour, link, depth + float(lat[link])))
        return tree

    def _links_of(self, allowed: np.ndarray) -> list[list[tuple[int, int]]]:
        key = allowed.tobytes()
        if key not in self._adjacent:
            costs = self._problem.costs
            rows: list[list[tuple[int, int]]] = [[] for _ in range(self._problem.deliveries.ranks)]
            for link in np.flatnonzero(allowed).tolist():
                rows[int(costs.src[link])].append((link, int(costs.dst[link])))
            self._adjacent[key] = rows
        return self._adjacent[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingWeights:
    """Weights by which `matched_trees` chooses; all but `arrival` only break ties.

    Attributes
    ----------
    arrival : of a link's own time, beside its earliest start.
    rare : of the share of ranks that have the chunk: rare chunks go first.
    noise : of a random term.
    fresh : of links used before: avoided (1) or preferred (-1).
    needy : of the chunks that the receiver still misses: ranks that miss most go first.
    """

    arrival: float = 0.0
    rare: float = 1.0
    noise: float = 0.1
    fresh: float = 0.0
    needy: float = 0.0


def matched_trees(
    problem: RouteProblem, *, seed: int, weights: MatchingWeights
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return trees, the start time of each link of them, and the end of all (us).

    Raises
    ------
    ValueError : if the problem is not `broadcasting`.
    """
    if not problem.broadcasting:
        raise ValueError("a chunk passes a rank that does not want it: use priced_trees")
    return _Matching(problem, seed, weights).run()


class _Matching:
    def __init__(self, problem: RouteProblem, seed: int, weights: MatchingWeights) -> None:
        self._problem, self._weights = problem, weights
        self._random = np.random.default_rng(seed)
        costs, deliveries = problem.costs, problem.deliveries
        self._trees = np.full((deliveries.chunks, deliveries.ranks), -1, np.int32)
        self._used = np.full((deliveries.chunks, deliveries.ranks), np.inf)
        self._there = np.full((deliveries.chunks, deliveries.ranks), np.inf)
        self._there[np.arange(deliveries.chunks), deliveries.origin] = 0.0
        self._free = [0.0] * costs.resources
        self._link_free = np.zeros(len(costs.src))
        self._sharing: list[list[int]] = [[] for _ in range(costs.resources)]
        for link, row in enumerate(costs.route):
            for resource, _ in row:
                self._sharing[resource].append(link)
        self._busy = np.zeros(len(costs.src), bool)
        firsts = np.array(list(problem.orbits))
        rows, self._link = np.nonzero(problem.allowed[firsts])
        self._chunk = firsts[rows]
        self._src, self._dst = costs.src[self._link], costs.dst[self._link]
        host = np.array(problem.logical.topology.rank_host)
        self._crosses = host[self._src] != host[self._dst]
        # Ranks that a chunk reaches inside the hosts that hold it, over links that it may use.
        self._inside = problem.reach_inside
        self._covered = np.stack(
            [reach[rank] for reach, rank in zip(self._inside, deliveries.origin, strict=True)]
        )
        self._holders = np.ones(deliveries.chunks)
        self._missing = deliveries.targets.sum(axis=0).astype(float)

    def run(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Schedule one link a turn, until no open link leads to a rank without the chunk.

        Each turn delivers a chunk to one more rank, so there are no more turns than deliveries.
        Where a chunk has not been everywhere yet, one of its holders has an open link: a closed
        link into a host stands for a path inside that host, and the path has an open link.
        """
        problem, weights = self._problem, self._weights
        lat = problem.costs.lat[self._link]
        noise = self._random.random(len(self._link)) * weights.noise
        total = 0.0
        while True:
            open_now = np.isinf(self._there[self._chunk, self._dst])
            # One copy into a host is enough for the ranks that it reaches inside, where links are
            # faster; a host that is not connected inside needs a copy for each of its parts.
            open_now &= ~(self._crosses & self._covered[self._chunk, self._dst])
            keep = np.flatnonzero(open_now)
            if len(keep) < len(open_now):
                self._link, self._chunk = self._link[keep], self._chunk[keep]
                self._src, self._dst = self._src[keep], self._dst[keep]
                self._crosses, lat, noise = self._crosses[keep], lat[keep], noise[keep]
            if not len(self._link):
                return self._trees, self._used, total
            start = np.maximum(self._there[self._chunk, self._src], self._link_free[self._link])
            score = start + weights.arrival * lat
            least = float(score.min())
            if np.isinf(least):  # the rest cannot be reached over the links allowed
                return self._trees, self._used, total
            near = np.flatnonzero(score <= least + 1e-9)
            cost = (
                noise[near]
                + weights.rare * self._holders[self._chunk[near]] / problem.deliveries.ranks
                + weights.fresh * self._busy[self._link[near]]
                - 2.0 * self._crosses[near]
                - weights.needy * self._missing[self._dst[near]] / problem.deliveries.ranks
            )
            total = max(total, self._place(int(near[int(np.argmin(cost))])))

    def _place(self, at: int) -> float:
        costs, links = self._problem.costs, self._problem.group.links
        chunk, link = int(self._chunk[at]), int(self._link[at])
        last = 0.0
        for chunk_image, element in self._problem.orbits[chunk]:
            image = int(links[element, link])
            src, dst = int(costs.src[image]), int(costs.dst[image])
            begin = float(self._there[chunk_image, src])
            for resource, _ in costs.route[image]:
                begin = max(begin, self._free[resource])
            alpha = float(costs.alpha[image])
            for resource, us in costs.route[image]:
                self._free[resource] = begin + alpha + us
                for sharing in self._sharing[resource]:
                    self._link_free[sharing] = max(self._link_free[sharing], self._free[resource])
            end = begin + alpha + float(costs.beta[image])
            self._trees[chunk_image, dst], self._used[chunk_image, dst] = image, begin
            self._there[chunk_image, dst] = end
            self._covered[chunk_image] |= self._inside[chunk_image][dst]
            self._holders[chunk_image] += 1
            self._missing[dst] -= 1
            self._busy[image] = True
            last = max(last, end)
        return last
