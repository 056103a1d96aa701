"""Cuts around ranks, hosts and groups of hosts: bounds in a time linear in the links.

The capacity across a cut is over-estimated, never under: every link across is charged to one of
the resources it needs (itself or a capacity it shares), and the capacities of those charged are
added up. The choice of resource makes the sum small.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components, dijkstra

from headrace.collectives.plan.flows.rates import Rate
from headrace.errors import TopologyError
from headrace.topology import Topology

_FLOW_RANKS, _FLOW_LINKS = 256, 20_000
"""Beyond so many ranks or links no flow is solved."""

_PAIRS_RANKS = 80
"""Beyond so many ranks the flows of all pairs at once are not solved."""

_HOPS = 250_000_000
"""Up to so many ranks times links the hops between all pairs are counted."""

Partition = tuple[str, np.ndarray]
"""A name for the parts, and for every rank its part."""


def is_large(topology: Topology, *, all_pairs: bool = False) -> bool:
    """Return whether bounds come from cuts rather than flows, of all pairs at once or of few."""
    most = _PAIRS_RANKS if all_pairs else _FLOW_RANKS
    return topology.ranks > most or len(topology.links) > _FLOW_LINKS


def partitions(topology: Topology) -> list[Partition]:
    """The topology's groups of ranks: its hosts, and ranks behind one shared capacity.

    Only those with at least two parts, of which one has at least two ranks.
    """
    n = topology.ranks
    hosts = np.unique(np.array(topology.rank_host), return_inverse=True)[1]
    labellings = [("hosts", hosts), *_uplinks(topology)]
    distinct: list[Partition] = []
    for name, label in labellings:
        if 1 < label.max() + 1 < n and all((label != accepted).any() for _, accepted in distinct):
            distinct.append((name, label))
    return distinct


def _uplinks(topology: Topology) -> list[Partition]:
    """Ranks grouped by the largest set behind one shared outbound capacity, and the smallest."""
    ends = [(link.src, link.dst) for link in topology.links]
    ways: dict[int, set[int]] = {}
    for k, (src, _) in enumerate(ends):
        ways.setdefault(src, set()).add(k)
    sets: set[frozenset[int]] = set()
    for shared in topology.shared:
        sources = frozenset(ends[k][0] for k in shared.links)
        size = len(sources)
        if 1 < size <= topology.ranks // 2:
            outward = sum(len(ways[src]) for src in sources)
            if outward - size * (size - 1) > len(shared.links):
                continue  # more outbound links than these, whatever stays inside
            leaving = {k for src in sources for k in ways[src] if ends[k][1] not in sources}
            if leaving == set(shared.links):
                sets.add(sources)
    uplink_cuts: list[Partition] = []
    for sign in (-1, 1):
        label = np.full(topology.ranks, -1, dtype=np.int64)
        count = 0
        for group in sorted(sets, key=lambda group: (sign * len(group), sorted(group))):
            members = sorted(group)
            if (label[members] < 0).all():
                label[members] = count
                count += 1
        alone = np.flatnonzero(label < 0)
        label[alone] = count + np.arange(len(alone))
        uplink_cuts.append(("groups", label))
    return uplink_cuts


class LargeTopology:
    """A topology with too many links for linear programs."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._n = topology.ranks
        links = topology.columns
        self._src, self._dst, self._alpha = links.src, links.dst, links.alpha_us
        betas = np.append(links.beta_us_per_mb, [s.beta_us_per_mb for s in topology.shared])
        self._capacity = 1.0 / betas  # links, then shared capacities, MB/us
        # Every membership is a row: a link is a member of itself and of its shared capacities.
        own = np.arange(len(links.src))
        member = [np.array(shared.links, dtype=np.int64) for shared in topology.shared]
        self._member = np.concatenate([own, *member])
        resources = np.arange(len(own), len(betas))
        self._of = np.concatenate([own, np.repeat(resources, [len(rows) for rows in member])])

    def require(self, what: str) -> None:
        """Raise TopologyError unless every rank reaches every other."""
        parts, label = connected_components(self._graph, directed=True, connection="strong")
        if parts > 1:
            lost = int(np.flatnonzero(label != label[0])[0])
            reach = np.isfinite(dijkstra(self._graph, indices=0)[lost])
            s, t = (lost, 0) if reach else (0, lost)
            raise TopologyError(
                f"topology '{self._topology.name}': rank {s} cannot reach rank {t} over its "
                f"links, which {what} needs; add a link"
            )

    def partitions(self) -> list[Partition]:
        """Single ranks, hosts and groups, and blocks of neighbouring hosts."""
        cuts: list[Partition] = [("ranks", np.arange(self._n)), *partitions(self._topology)]
        hosts = np.array(self._topology.rank_host, dtype=np.int64)
        for parts in (2, 4, 8):
            if parts < hosts.max() + 1:
                cuts.append((f"{parts} blocks of hosts", hosts * parts // (int(hosts.max()) + 1)))
        return cuts

    def cuts(self, label: np.ndarray) -> tuple[list[Rate | None], list[Rate | None]]:
        """The rates into and out of every part; None where nothing gets across."""
        across = label[self._src] != label[self._dst]
        parts = int(label.max()) + 1
        into = self._rates(across, label[self._dst], parts)
        return into, self._rates(across, label[self._src], parts)

    def egress(self, label: np.ndarray | None = None) -> Rate:
        """The rate of all links together, or of all between different parts."""
        if label is None:
            every = np.ones(len(self._src), dtype=bool)
            ways = [self._rates(every, end, self._n) for end in (self._src, self._dst)]
            ways.append(self._rates(every, np.zeros(len(self._src), dtype=np.int64), 1))
        else:
            ways = list(self.cuts(label))
        sums = [_sum(rates) for rates in ways]
        return max(sums, key=lambda rate: rate.us_per_mb)

    def hops(self) -> float | None:
        """Sum over all pairs of the sends from one to the other; None if too many to count."""
        if self._n * len(self._src) > _HOPS:
            return None
        total = 0.0
        for first in range(0, self._n, 256):
            block = np.arange(first, min(self._n, first + 256))
            total += float(dijkstra(self._graph, indices=block, unweighted=True).sum())
        return total

    def latency(self, rank: int, *, inward: bool = False) -> tuple[str, Rate]:
        """The longest of the shortest paths in alpha from (or to) `rank`."""
        graph = self._graph.T if inward else self._graph
        far = dijkstra(graph, indices=rank)
        peer = int(far.argmax())
        s, t = (peer, rank) if inward else (rank, peer)
        return f"latency {s} -> {t}", Rate(us_per_mb=0.0, alpha_us=float(far[peer]))

    @cached_property
    def _graph(self) -> sparse.csr_array:
        return sparse.csr_array((self._alpha, (self._src, self._dst)), shape=(self._n, self._n))

    def _rates(self, counts: np.ndarray, part: np.ndarray, parts: int) -> list[Rate | None]:
        """The rate of the links that count, by their part."""
        rows = counts[self._member]
        member, of = self._member[rows], self._of[rows]
        key = of * parts + part[member]  # a resource restricted to a part
        names, place, served = np.unique(key, return_inverse=True, return_counts=True)
        capacity = self._capacity[names // parts]
        # Charge every link to the resource with the least capacity per link.
        score = (capacity / served)[place]
        order = np.lexsort((place, score, member))
        first = np.append(True, member[order][1:] != member[order][:-1])
        charged = np.unique(place[order][first]) if len(order) else np.empty(0, dtype=np.int64)
        total = np.bincount(names[charged] % parts, capacity[charged], minlength=parts)
        alpha = np.full(parts, np.inf)
        np.minimum.at(alpha, part[counts], self._alpha[counts])
        return [
            Rate(us_per_mb=float(1.0 / rate), alpha_us=float(us)) if rate > 0 else None
            for rate, us in zip(total, alpha, strict=True)
        ]


def _sum(rates: Sequence[Rate | None]) -> Rate:
    there = [rate for rate in rates if rate is not None]
    return Rate(
        us_per_mb=1.0 / sum(1.0 / rate.us_per_mb for rate in there),
        alpha_us=min(rate.alpha_us for rate in there),
    )
