"""Commodities of a packing, the columns of its linear program, loads, and orbits of each."""

from collections.abc import Sequence

import numpy as np

from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.collectives.plan.ir.permutations import chunk_images
from headrace.errors import TopologyError
from headrace.facades import public_value
from headrace.topology import Topology
from headrace.topology.symmetry import orbits


@public_value("headrace.collectives.plan.flows")
class Commodity:
    """Data that starts at `origin` and has to reach all `targets`, `mb` of it."""

    origin: int
    targets: tuple[int, ...]
    mb: float


@public_value("headrace.collectives.plan.flows", eq=False)
class TreeColumn:
    """A column of the packing: a tree (or path) of a commodity and the MB that go down it.

    Attributes
    ----------
    commodity : index into `Packing.commodities` (see `packing`).
    links : (links,) int32, indices into ``topology.links``; a link comes after the one that
        leads to it.
    mb : its weight.
    depth_us : time of a chunk to the farthest target on the unloaded network.
    """

    commodity: int
    links: np.ndarray
    mb: float
    depth_us: float


def commodities(
    deliveries: Deliveries, chunk_mb: float
) -> tuple[tuple[Commodity, ...], np.ndarray]:
    """Return the commodities of `deliveries`, and for every chunk its commodity's index or -1.

    Chunks without targets have none. Commodities are in the order of their first chunks.
    """
    index: dict[tuple[int, bytes], int] = {}
    of = np.full(deliveries.chunks, -1, dtype=np.int64)
    for chunk, (origin, targets) in enumerate(
        zip(deliveries.origin.tolist(), deliveries.targets, strict=True)
    ):
        if targets.any():
            of[chunk] = index.setdefault((origin, targets.tobytes()), len(index))
    counts = np.bincount(of[of >= 0], minlength=len(index))
    first = {commodity: chunk for chunk, commodity in reversed(list(enumerate(of.tolist())))}
    unlabelled = tuple(
        Commodity(
            origin=origin,
            targets=tuple(np.flatnonzero(deliveries.targets[first[k]]).tolist()),
            mb=float(counts[k]) * chunk_mb,
        )
        for (origin, _), k in index.items()
    )
    return unlabelled, of


class Loads:
    """Resources that the links load: their own and shared capacities, without redundant ones.

    With a group of permutations one resource represents each orbit, with its mean load: the load of
    each of them once all images of a tree are added up.

    Attributes
    ----------
    betas : (resources,) us/MB of every resource that can be the busiest.
    names : int64, the places among links and then shared capacities of all that are represented.
    stands : int64, the resource that represents each of `names`.
    """

    def __init__(self, topology: Topology, images: Sequence[np.ndarray] = ()) -> None:
        count = len(topology.links)
        by_link, _ = resource_routes(topology, range(count))
        used = sorted({resource for route in by_link.values() for resource, _ in route})
        place = {resource: k for k, resource in enumerate(used)}
        self.names = np.array(used, dtype=np.int64)
        self.betas = np.zeros(len(used))
        self.rows: list[np.ndarray] = []
        for link in range(count):
            row = np.array([place[resource] for resource, _ in by_link[link]], dtype=np.int64)
            self.betas[row] = [beta for _, beta in by_link[link]]
            self.rows.append(row)
        self.stands = np.arange(len(used))
        if images:
            self.stands = _orbits(self.rows, len(used), images)
            self.betas = self.betas[np.unique(self.stands, return_index=True)[1]]
            self.betas /= np.bincount(self.stands)
            self.rows = [self.stands[row] for row in self.rows]
        self._flat = np.concatenate([np.empty(0, dtype=np.int64), *self.rows])
        self._first = np.cumsum([0, *map(len, self.rows)])

    def of(self, links: np.ndarray) -> np.ndarray:
        """(resources,): load of 1 MB on each of `links`, in us."""
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(self.rows[k] for k in links)])
        return np.bincount(rows, minlength=len(self.betas)) * self.betas

    def link_costs(self, prices: np.ndarray) -> np.ndarray:
        """(links,): cost of 1 MB on each link at the resources' prices."""
        paid = np.append(0.0, np.cumsum((prices * self.betas)[self._flat]))
        return paid[self._first[1:]] - paid[self._first[:-1]]


def _orbits(rows: list[np.ndarray], count: int, images: Sequence[np.ndarray]) -> np.ndarray:
    """For every resource its orbit, numbered from 0; a resource is known by its links."""
    users: list[set[int]] = [set() for _ in range(count)]
    for link, row in enumerate(rows):
        for resource in row.tolist():
            users[resource].add(link)
    resource_of = {frozenset(links): resource for resource, links in enumerate(users)}
    moved: list[np.ndarray] = []
    for image in images:
        to = [resource_of.get(frozenset(image[sorted(links)].tolist())) for links in users]
        if None in to:
            raise TopologyError(
                f"the capacity of links {sorted(users[to.index(None)])[:4]} has no image; use "
                "permutations that are automorphisms of the topology"
            )
        moved.append(np.array(to, dtype=np.int64))
    return np.unique(orbits(count, moved), return_inverse=True)[1]


def commodity_orbits(
    deliveries: Deliveries, of: np.ndarray, symmetry: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each orbit of commodities under a group the first one, and how many there are.

    Parameters
    ----------
    of : of every chunk its commodity, or -1 (see `commodities`).
    symmetry : (elements, ranks), the permutations of the ranks; None: each is an orbit by itself.
    """
    chunks = np.flatnonzero(of >= 0)
    chunks = chunks[np.unique(of[chunks], return_index=True)[1]]  # the first of every commodity
    moved = [np.arange(len(chunks))]
    for perm in () if symmetry is None else symmetry:
        moved.append(of[chunk_images(deliveries, perm)[chunks]])
    return np.unique(np.min(moved, axis=0), return_counts=True)
