"""Predict how long an orbit plan takes under the full cost model, from a few ranks' messages.

If no two links of an orbit meet at a shared capacity, all ranks do the same at the same time, and
rank 0's messages tell all. Where they meet (two GPUs at one NIC) somebody must be first: then a
subgroup is used under whose elements no two meet, and one rank of each of its orbits. At worst
that is the trivial subgroup: every rank for itself.

The rules are those of `simulate` under `FULL` for the expanded plan with the ranks in the order
of `Representatives.order`; the two agree to rounding.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from headrace.collectives.plan.orbits.classes import (
    capacity_orbits,
    link_orbits,
    require_symmetry,
)
from headrace.collectives.plan.orbits.group import Group
from headrace.collectives.plan.orbits.plan import OrbitPlan
from headrace.errors import InputError, TopologyError
from headrace.topology import BYTES_PER_MB, Topology
from headrace.topology.symmetry import orbits

__all__ = ["OrbitSimulation", "Representatives", "representatives", "simulate_orbits"]

_SAME_MOMENT = 1.0 + 1e-9
_MAX_SUBGROUPS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrbitSimulation:
    """What the simulator foresees.

    Attributes
    ----------
    total_us : when the last message arrives.
    start_us, finish_us : (messages, representatives), of every message of every representative.
    ranks : the representatives, rank 0 first.
    order : (ranks,), the order among messages of one number that this holds for: `expand` takes it.
    """

    total_us: float
    start_us: np.ndarray
    finish_us: np.ndarray
    ranks: tuple[int, ...]
    order: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Representatives:
    """One rank of each orbit of a subgroup under which no two ranks get into each other's way.

    Attributes
    ----------
    ranks : the representatives.
    label : (ranks,) int64, the position in `ranks` of each rank's representative.
    perms : what generates the subgroup.
    """

    ranks: tuple[int, ...]
    label: np.ndarray
    perms: tuple[np.ndarray, ...]

    @property
    def order(self) -> np.ndarray:
        """Who comes first among messages of one number: the first representative and its like."""
        n = len(self.label)
        made = np.empty(n, dtype=np.int64)
        made[np.lexsort((np.arange(n), self.label))] = np.arange(n)
        return made


def simulate_orbits(plan: OrbitPlan, topology: Topology, total_bytes: int) -> OrbitSimulation:
    """Simulate `plan` moving `total_bytes` (see `Demand.chunk_bytes`) under the full cost model.

    Raises
    ------
    InputError : for a negative size.
    SymmetryError : if the plan's group is not one of automorphisms of `topology`.
    TopologyError : if rank 0 lacks a link that the plan uses.
    """
    if total_bytes < 0:
        raise InputError(f"total_bytes is {total_bytes}, needs at least 0")
    require_symmetry(topology, plan.generators)
    group = Group(generators=plan.generators)
    used = np.unique(plan.sends["dst"]).tolist()
    chosen = representatives(topology, group, used)
    mb = plan.demand.chunk_bytes(total_bytes) / BYTES_PER_MB
    run = _Run(plan, topology, group, chosen, mb)
    run.until_done()
    count = len(chosen.ranks)
    return OrbitSimulation(
        total_us=max(run.end, default=0.0),
        start_us=np.array(run.begin).reshape(-1, count),
        finish_us=np.array(run.end).reshape(-1, count),
        ranks=chosen.ranks,
        order=chosen.order,
    )


def representatives(topology: Topology, group: Group, used: list[int]) -> Representatives:
    """Return representatives for the links from every rank to the likes of `used` (of rank 0)."""
    n = group.ranks
    elements = {to: group.element(to) for to in used}
    for powers in itertools.islice(_subgroups(group), _MAX_SUBGROUPS):
        if _apart(topology, group, powers, elements):
            rank_label = orbits(n, powers)
            first, label = np.unique(rank_label, return_inverse=True)
            return Representatives(
                ranks=tuple(first.tolist()), label=label.ravel(), perms=tuple(powers)
            )
    return Representatives(ranks=tuple(range(n)), label=np.arange(n), perms=())


def _subgroups(group: Group) -> Iterator[list[np.ndarray]]:
    """Subgroups that powers of the generators generate, the largest first; last the trivial one."""
    powers: list[list[tuple[int, np.ndarray | None]]] = []
    for perm in group.generators:
        order, cycle = 1, perm
        cycles = [perm]
        while not np.array_equal(cycle, np.arange(group.ranks)):
            cycle = perm[cycle]
            order += 1
            cycles.append(cycle)
        options = [(k, cycles[k - 1]) for k in range(1, order) if order % k == 0]
        powers.append([*options, (order, None)])
    for choice in sorted(
        itertools.product(*powers), key=lambda some: int(np.prod([float(k) for k, _ in some]))
    ):
        yield [perm for _, perm in choice if perm is not None]


def _apart(
    topology: Topology, group: Group, perms: list[np.ndarray], elements: dict[int, np.ndarray]
) -> bool:
    """Whether no capacity has two used links that `perms` take to each other."""
    if not topology.shared:
        return True
    label = link_orbits(topology, perms)
    used = _used_links(topology, group, elements)
    for shared in topology.shared:
        links = np.array(shared.links, dtype=np.int64)
        marks = label[links[used[links]]]
        if len(np.unique(marks)) < len(marks):
            return False
    return True


def _used_links(
    topology: Topology, group: Group, elements: dict[int, np.ndarray]
) -> np.ndarray:
    whole = link_orbits(topology, group.generators)
    wanted = [whole[topology.link_index[0, to]] for to in elements if (0, to) in topology.link_index]
    return np.isin(whole, wanted)


class _Run:
    """The event loop over nodes: message m of representative r is node m * count + r."""

    def __init__(
        self,
        plan: OrbitPlan,
        topology: Topology,
        group: Group,
        chosen: Representatives,
        chunk_mb: float,
    ) -> None:
        self._count = len(chosen.ranks)
        nodes = plan.messages * self._count
        first = np.searchsorted(plan.sends["message"], np.arange(plan.messages + 1))
        self._to = plan.sends["dst"][first[:-1]].tolist()
        mb = np.diff(first) * chunk_mb
        links = _Links(topology, group, chosen)
        self._holds: list[list[tuple[int, float]]] = []
        for message, to in enumerate(self._to):
            for rank in chosen.ranks:
                alpha, route = links.of(rank, to)
                self._holds.append([(r, alpha + beta * mb[message]) for r, beta in route])
        self._takes = [max(us for _, us in held) for held in self._holds]
        self._free = [0.0] * links.resources
        self._waits, self._unlocks = _dependencies(plan, group, chosen)
        self._lanes: dict[tuple[int, int], list[int]] = {}
        for node in range(nodes):
            self._lanes.setdefault((self._to[node // self._count], node % self._count), []).append(
                node
            )
        self.begin, self.end = [-1.0] * nodes, [-1.0] * nodes

    def until_done(self) -> None:
        heads = {lane[0]: lane for lane in self._lanes.values()}
        place = dict.fromkeys(heads, 0)
        ready = sorted(node for node in heads if not self._waits[node])
        events: list[tuple[float, int]] = [(0.0, -1)]
        while events:
            now = events[0][0]
            limit = now * _SAME_MOMENT
            while events and events[0][0] <= limit:
                now, node = heappop(events)
                if node < 0:
                    continue
                self.end[node] = now
                for later in self._unlocks[node]:
                    self._waits[later] -= 1
                    if not self._waits[later] and later in heads:
                        ready.append(later)
            ready.sort()
            limit = now * _SAME_MOMENT
            left: list[int] = []
            for node in ready:
                held = self._holds[node]
                if any(self._free[resource] > limit for resource, _ in held):
                    left.append(node)
                    continue
                self.begin[node] = now
                for resource, us in held:
                    self._free[resource] = now + us
                    heappush(events, (now + us, -1))
                heappush(events, (now + self._takes[node], node))
                lane, at = heads.pop(node), place.pop(node) + 1
                if at < len(lane):
                    heads[lane[at]], place[lane[at]] = lane, at
                    if not self._waits[lane[at]]:
                        left.append(lane[at])
            ready = left


class _Links:
    """Costs of the representatives' links, and the resources they hold: one for each orbit."""

    def __init__(self, topology: Topology, group: Group, chosen: Representatives) -> None:
        self._topology = topology
        self._element = {rank: group.element(rank) for rank in chosen.ranks}
        self._link = link_orbits(topology, chosen.perms)
        self._capacity = capacity_orbits(topology, chosen.perms)
        self._shared = _containing(topology)
        self._number: dict[tuple[str, int], int] = {}
        self._known: dict[tuple[int, int], tuple[float, list[tuple[int, float]]]] = {}

    @property
    def resources(self) -> int:
        return len(self._number)

    def of(self, rank: int, to: int) -> tuple[float, list[tuple[int, float]]]:
        """Return alpha and (resource, beta) of the link of `rank` that is rank 0's to `to`."""
        if (rank, to) not in self._known:
            end = int(self._element[rank][to])
            link = self._topology.link_index.get((rank, end))
            if link is None:
                raise TopologyError(
                    f"topology '{self._topology.name}' has no link {rank} -> {end}, which the "
                    "plan uses"
                )
            columns = self._topology.columns
            beta = float(columns.beta_us_per_mb[link])
            route = [(self._resource("link", int(self._link[link])), beta)]
            for shared in self._shared.get(link, ()):
                number = self._resource("shared", int(self._capacity[shared]))
                route.append((number, self._topology.shared[shared].beta_us_per_mb))
            self._known[rank, to] = (float(columns.alpha_us[link]), route)
        return self._known[rank, to]

    def _resource(self, kind: str, orbit: int) -> int:
        return self._number.setdefault((kind, orbit), len(self._number))


def _containing(topology: Topology) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, shared in enumerate(topology.shared):
        for link in shared.links:
            found.setdefault(link, []).append(index)
    return found


def _dependencies(
    plan: OrbitPlan, group: Group, chosen: Representatives
) -> tuple[list[int], list[list[int]]]:
    """For every node how many it waits for, and who waits for it.

    The hazards that `lower` keeps: a send waits for the last write of what it sends; a write for
    the sends of what was there since the last write, or for that write. A slot is named as its
    holder sees it, so what is remembered of one rank's slots holds for all.
    """
    columns = {name: column.tolist() for name, column in plan.sends.items()}
    count, nodes = len(chosen.ranks), plan.messages * len(chosen.ranks)
    waits_for: list[set[int]] = [set() for _ in range(nodes)]
    views = _Views(plan, group, chosen)
    writer: dict[tuple[int, int, int], int] = {}
    readers: dict[tuple[int, int, int], list[int]] = {}
    for row, message in enumerate(columns["message"]):
        to, chunk = columns["dst"][row], columns["chunk"][row]
        block, origin = columns["block"][row], columns["origin"][row]
        mine = (origin, block, chunk)
        inverse = views.inverse[to]
        theirs = (int(inverse[origin]), int(inverse[block]), chunk)
        if mine in writer:
            before = writer[mine]
            for c, who in enumerate(views.senders(None, views.to[before])):
                waits_for[message * count + c].add(before * count + who)
        readers.setdefault(mine, []).append(message)
        for before in readers.pop(theirs, ()):
            for c, who in enumerate(views.receivers(to)):
                waits_for[message * count + c].add(before * count + who)
        if theirs in writer:
            before = writer[theirs]
            for c, who in enumerate(views.senders(to, views.to[before])):
                waits_for[message * count + c].add(before * count + who)
        writer[theirs] = message
    unlocks: list[list[int]] = [[] for _ in range(nodes)]
    for node, before in enumerate(waits_for):
        before.discard(node)
        for other in before:
            unlocks[other].append(node)
    return [len(before) for before in waits_for], unlocks


class _Views:
    """Which representative acts like the ranks around each representative."""

    def __init__(self, plan: OrbitPlan, group: Group, chosen: Representatives) -> None:
        self.to = plan.sends["dst"][
            np.searchsorted(plan.sends["message"], np.arange(plan.messages))
        ].tolist()
        elements = {to: group.element(to) for to in set(self.to)}
        self.inverse = {to: np.argsort(element) for to, element in elements.items()}
        self._elements = elements
        self._own = [group.element(rank) for rank in chosen.ranks]
        self._label = chosen.label
        self._known: dict[tuple[int | None, int | None], list[int]] = {}

    def senders(self, at: int | None, to: int) -> list[int]:
        """For every representative x: who sends over the class of `to` into x, or into x's `at`."""
        if (at, to) not in self._known:
            there = int(self.inverse[to][0])
            if at is not None:
                there = int(self._elements[at][there])
            self._known[at, to] = [int(self._label[own[there]]) for own in self._own]
        return self._known[at, to]

    def receivers(self, to: int) -> list[int]:
        """For every representative: who is at the end of its link of the class of `to`."""
        if (to, None) not in self._known:
            self._known[to, None] = [int(self._label[own[to]]) for own in self._own]
        return self._known[to, None]
