"""The routing problem: links that each chunk may use, their costs, and symmetries.

`RouteProblem` is shared by the exact model (`route`), the greedy routers (`router`) and their
tests. Routes are *trees*: an array (chunks, ranks) of the link by which a chunk reaches a rank,
-1 where it does not (or starts there).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.collectives.errors import SketchError
from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.plan.engine import (
    Routes,
    SearchEngine,
    SearchProblem,
    SearchResult,
    SearchSettings,
)
from headrace.collectives.plan.generators.taccl.sketch.logical import LogicalTopology
from headrace.collectives.plan.generators.taccl.sketch.symmetry import mapped_chunks, mapped_links
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.topology import Topology

_MAX_GROUP = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkCosts:
    """Costs of a chunk on a topology's links, and on the capacities that they share.

    Attributes
    ----------
    src, dst : (links,) int64.
    alpha : (links,) us.
    beta : (links,) us that a chunk takes beyond alpha: the slowest of its link and capacities.
    route : for every link the (resource, us a chunk holds it beyond alpha) it must pass.
    resources : number of resources.
    """

    src: np.ndarray
    dst: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    route: tuple[tuple[tuple[int, float], ...], ...]
    resources: int

    @classmethod
    def of(cls, topology: Topology, chunk_mb: float) -> "ChunkCosts":
        """Return the costs of chunks of `chunk_mb` MB."""
        links = topology.links
        routes, count = resource_routes(topology, range(len(links)))
        route = tuple(
            tuple((resource, beta * chunk_mb) for resource, beta in routes[index])
            for index in range(len(links))
        )
        return cls(
            src=np.array([link.src for link in links], np.int64),
            dst=np.array([link.dst for link in links], np.int64),
            alpha=np.array([link.alpha_us for link in links]),
            beta=np.array([max((us for _, us in row), default=0.0) for row in route]),
            route=route,
            resources=count,
        )

    @property
    def lat(self) -> np.ndarray:
        """(links,) us until a chunk sent by itself has arrived."""
        return self.alpha + self.beta

    def holds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(resource, link, us) columns: time for which a chunk sent by itself holds a resource."""
        rows = [
            (resource, link, us + float(self.alpha[link]))
            for link, row in enumerate(self.route)
            for resource, us in row
        ]
        table = np.array(rows, dtype=float).reshape(-1, 3)
        return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AutomorphismGroup:
    """A group of automorphisms, one row an element, the identity first."""

    ranks: np.ndarray
    links: np.ndarray
    chunks: np.ndarray

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.ranks)


@dataclass(frozen=True, kw_only=True, eq=False)
class RouteProblem:
    """The problem of routing `deliveries` over `logical`.

    Attributes
    ----------
    allowed : (chunks, links) bool, the links that each chunk may use.
    """

    logical: LogicalTopology
    deliveries: Deliveries
    chunk_mb: float
    costs: ChunkCosts
    allowed: np.ndarray

    @classmethod
    def of(
        cls, logical: LogicalTopology, deliveries: Deliveries, chunk_mb: float
    ) -> "RouteProblem":
        """Set the problem up.

        Chunks travel only over ranks on shortest paths (by hops or by cost, 5.4.2) from where
        they are to where they must go, and leave a node by the sketch's relay map.

        Raises
        ------
        SketchError : naming a chunk that cannot reach a rank.
        """
        costs = ChunkCosts.of(logical.topology, chunk_mb)
        allowed = _allowed(logical, deliveries, costs)
        return cls(
            logical=logical, deliveries=deliveries, chunk_mb=chunk_mb, costs=costs, allowed=allowed
        )

    @property
    def broadcasting(self) -> bool:
        """Return whether every rank that a chunk may pass wants it."""
        reached = np.zeros_like(self.deliveries.targets)
        rows, links = np.nonzero(self.allowed)
        reached[rows, self.costs.dst[links]] = True
        return bool((reached <= self.deliveries.targets).all())

    @cached_property
    def reach_inside(self) -> list[np.ndarray]:
        """For every chunk (ranks, ranks): whether a rank reaches another inside their host."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        costs, n = self.costs, self.deliveries.ranks
        host = np.array(self.logical.topology.rank_host)
        local = self.allowed & (host[costs.src] == host[costs.dst])
        reach_of: dict[bytes, np.ndarray] = {}
        for row in local:
            if (key := row.tobytes()) not in reach_of:
                graph = csr_array((np.ones(row.sum()), (costs.src[row], costs.dst[row])), (n, n))
                reach_of[key] = np.isfinite(shortest_path(graph, unweighted=True))
        return [reach_of[row.tobytes()] for row in local]

    @cached_property
    def images(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """For every symmetry: images of ranks, links and chunks; links that must follow it."""
        mapped: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for symmetry in self.logical.symmetries:
            links = mapped_links(self.logical.topology, symmetry)
            chunks = mapped_chunks(self.deliveries, symmetry)
            part = symmetry.part
            bound = part[self.costs.src] == part[self.costs.dst]
            missing = self.allowed & ~self.allowed[np.ix_(chunks, links)]
            if missing.any():
                chunk, link = (int(at[0]) for at in np.nonzero(missing))
                raise SketchError(
                    f"{symmetry.name}: chunk {chunk} may use link {self.costs.src[link]} -> "
                    f"{self.costs.dst[link]}, its image may not use the link's image: make the "
                    "relay map symmetric"
                )
            mapped.append((symmetry.image.astype(np.int64), links, chunks, bound))
        return mapped

    @cached_property
    def group(self) -> AutomorphismGroup:
        """The group that the symmetries generate, on ranks, links and chunks (up to a limit)."""
        n, links = self.logical.topology.ranks, len(self.costs.src)
        generators = [
            np.concatenate((ranks, moved + n, items + n + links)).astype(np.int64)
            for ranks, moved, items, _ in self.images
        ]
        elements = [np.arange(n + links + self.deliveries.chunks)]
        seen, at = {elements[0].tobytes()}, 0
        while at < len(elements) and len(elements) < _MAX_GROUP:
            for generator in generators:
                image = generator[elements[at]]
                if image.tobytes() not in seen:
                    seen.add(image.tobytes())
                    elements.append(image)
            at += 1
        table = np.stack(elements)
        return AutomorphismGroup(
            ranks=table[:, :n],
            links=table[:, n : n + links] - n,
            chunks=table[:, n + links :] - n - links,
        )

    @cached_property
    def orbits(self) -> dict[int, list[tuple[int, int]]]:
        """By the first chunk of each orbit: its chunks, and elements that map the first there."""
        orbit_of: dict[int, list[tuple[int, int]]] = {}
        seen: set[int] = set()
        for chunk in range(self.deliveries.chunks):
            if chunk not in seen:
                images = self.group.chunks[:, chunk].tolist()
                orbit_of[chunk] = [(image, images.index(image)) for image in sorted(set(images))]
                seen.update(images)
        return orbit_of

    def spread(self, chunk: int, tree: np.ndarray, trees: np.ndarray) -> None:
        """Copy the tree of an orbit's first chunk to the whole orbit, moved by the symmetry."""
        used = np.flatnonzero(tree >= 0)
        for chunk_image, element in self.orbits[chunk]:
            trees[chunk_image] = -1
            trees[chunk_image, self.group.ranks[element][used]] = self.group.links[element][
                tree[used]
            ]

    def search(self, engine: SearchEngine, settings: SearchSettings) -> SearchResult:
        """Return the best schedule that an engine finds over the links allowed."""
        first = np.concatenate(([0], np.cumsum(self.allowed.sum(axis=1)))).astype(np.int64)
        problem = SearchProblem(
            topology=self.logical.topology,
            deliveries=self.deliveries,
            chunk_mb=self.chunk_mb,
            routes=Routes(first=first, link=np.nonzero(self.allowed)[1].astype(np.int32)),
            symmetry=self.group.ranks.astype(np.int32) if self.group.size > 1 else None,
        )
        return engine.search(problem, settings)


def _allowed(logical: LogicalTopology, deliveries: Deliveries, costs: ChunkCosts) -> np.ndarray:
    n, links = deliveries.ranks, len(costs.src)
    allowed = np.zeros((deliveries.chunks, links), bool)
    measures: dict[bytes, list[np.ndarray]] = {}
    for origin in np.unique(deliveries.origin).tolist():
        usable = logical.usable(origin)
        key = usable.tobytes()
        if key not in measures:
            measures[key] = [
                _distances(n, costs, usable, cost) for cost in (np.ones(links), costs.lat)
            ]
        for chunk in np.flatnonzero(deliveries.origin == origin).tolist():
            on_path = np.zeros(n, bool)
            targets = np.flatnonzero(deliveries.targets[chunk])
            for distance in measures[key]:
                target_distance = distance[origin, targets]
                if not np.isfinite(target_distance).all():
                    lost = int(targets[~np.isfinite(target_distance)][0])
                    raise SketchError(
                        f"chunk {chunk} of rank {origin} cannot reach rank {lost} over the links "
                        "that the sketch leaves it; check internode_conn and the relay map"
                    )
                through = distance[origin][:, None] + distance[:, targets]
                on_path |= (through <= target_distance * (1 + 1e-9) + 1e-9).any(axis=1)
            row = usable & on_path[costs.src] & on_path[costs.dst] & (costs.dst != origin)
            allowed[chunk] = row
    return allowed


def _distances(n: int, costs: ChunkCosts, usable: np.ndarray, cost: np.ndarray) -> np.ndarray:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    weight = np.maximum(cost[usable], 1e-12)  # zeros would be no edges
    graph = csr_array((weight, (costs.src[usable], costs.dst[usable])), shape=(n, n))
    return np.asarray(shortest_path(graph, method="D"))
