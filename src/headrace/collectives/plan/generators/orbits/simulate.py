"""Predict how long an orbit plan takes under the full cost model, from a few ranks' messages.

If no two links of an orbit share a capacity, all ranks do the same at the same time, and rank 0's
messages represent all. Where they do (two GPUs at one NIC) messages have to be ordered: then one
rank represents each orbit of a subgroup under which no two links share one. At worst that is the
trivial subgroup: every rank represents itself.

The rules are those of `simulate` under `FULL` for the plan that `expand` makes of these times, with
the ranks in the order of `OrbitSimulation.order`; the two agree to rounding.
"""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import Collective
from headrace.collectives.plan.cost.events import EventLoop
from headrace.collectives.plan.generators.orbits.costs import OrbitCosts, Representatives
from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.errors import InputError
from headrace.topology import BYTES_PER_MB, Topology


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrbitSimulation:
    """Predicted times of an orbit plan.

    Attributes
    ----------
    total_us : arrival of the last message.
    start_us, finish_us : (messages, representatives), of every message of every representative.
    ranks : the representatives, rank 0 first.
    label : (ranks,) int64, the position in `ranks` of each rank's representative.
    order : (ranks,), the order among messages of one number that is assumed.
    """

    total_us: float
    start_us: np.ndarray
    finish_us: np.ndarray
    ranks: tuple[int, ...]
    label: np.ndarray
    order: np.ndarray


def simulate_orbits(
    plan: OrbitPlan, topology: Topology, total_bytes: int, *, costs: OrbitCosts | None = None
) -> OrbitSimulation:
    """Simulate `plan` moving `total_bytes` (see `Demand.chunk_bytes`) under the full cost model.

    Parameters
    ----------
    costs : of `topology` and the plan's group, if there are some already.

    Raises
    ------
    InputError : for a negative size.
    SymmetryError : if the plan's group is not one of automorphisms of `topology`.
    TopologyError : if rank 0 lacks a link that the plan uses.
    """
    if total_bytes < 0:
        raise InputError(f"total_bytes is {total_bytes}, needs at least 0")
    if costs is None or not np.array_equal(costs.group.generators, plan.generators):
        costs = OrbitCosts(topology=topology, group=RegularGroup(generators=plan.generators))
    chosen = costs.representatives(np.unique(plan.sends["dst"]).tolist())
    run = _event_loop(plan, costs, chosen, plan.demand.chunk_bytes(total_bytes) / BYTES_PER_MB)
    run.until_done()
    count = len(chosen.ranks)
    return OrbitSimulation(
        total_us=max(run.end, default=0.0),
        start_us=np.array(run.begin).reshape(-1, count),
        finish_us=np.array(run.end).reshape(-1, count),
        ranks=chosen.ranks,
        label=chosen.label,
        order=chosen.order,
    )


def _event_loop(
    plan: OrbitPlan, costs: OrbitCosts, chosen: Representatives, chunk_mb: float
) -> EventLoop:
    """Return the loop over nodes: message m of representative r is node m * count + r."""
    count = len(chosen.ranks)
    first = np.searchsorted(plan.sends["message"], np.arange(plan.messages + 1))
    targets: list[int] = plan.sends["dst"][first[:-1]].tolist()
    links = _Links(costs, chosen)
    holds: list[list[tuple[int, float]]] = []
    for to, mb in zip(targets, (np.diff(first) * chunk_mb).tolist(), strict=True):
        for rank in chosen.ranks:
            alpha, route = links.of(rank, to)
            holds.append([(r, alpha + beta * mb) for r, beta in route])
    waits, unlocks = _dependencies(plan, costs.group, chosen)
    behind = [-1] * len(holds)
    last: dict[tuple[int, int], int] = {}
    for node in range(len(holds)):
        lane = (targets[node // count], node % count)
        if lane in last:
            behind[last[lane]] = node
        last[lane] = node
    return EventLoop(holds, links.resources, behind=behind, waits=waits, unlocks=unlocks)


class _Links:
    """Costs of the representatives' links, and the resources they hold: one for each orbit."""

    def __init__(self, costs: OrbitCosts, chosen: Representatives) -> None:
        self._costs, self._chosen = costs, chosen
        self._element = {rank: costs.group.element(rank) for rank in chosen.ranks}
        self._number: dict[tuple[str, int], int] = {}
        self._known: dict[tuple[int, int], tuple[float, list[tuple[int, float]]]] = {}

    @property
    def resources(self) -> int:
        return len(self._number)

    def of(self, rank: int, to: int) -> tuple[float, list[tuple[int, float]]]:
        """Return alpha and (resource, beta) of the link of `rank` that is rank 0's to `to`."""
        if (rank, to) not in self._known:
            topology, chosen = self._costs.topology, self._chosen
            link = self._costs.link(rank, int(self._element[rank][to]))
            beta = float(topology.columns.beta_us_per_mb[link])
            route = [(self._resource("link", int(chosen.link[link])), beta)]
            for shared in self._costs.route(link):
                number = self._resource("shared", int(chosen.capacity[shared]))
                route.append((number, topology.shared[shared].beta_us_per_mb))
            self._known[rank, to] = (float(topology.columns.alpha_us[link]), route)
        return self._known[rank, to]

    def _resource(self, kind: str, orbit: int) -> int:
        return self._number.setdefault((kind, orbit), len(self._number))


def _dependencies(
    plan: OrbitPlan, group: RegularGroup, chosen: Representatives
) -> tuple[list[int], list[list[int]]]:
    """For every node the number of nodes that it waits for, and the nodes that wait for it.

    The hazards of `lower`: a send waits for the writes of what it sends; an overwriting message
    waits for the sends of the old content, or for its writes. Combining is free and in any order:
    it waits for sends of the old content, never for other contributions. A slot has its holder's
    name, so the record of one rank's slots holds for all.
    """
    columns = {name: column.tolist() for name, column in plan.sends.items()}
    moves = plan.demand.collective is Collective.ALL_TO_ALL
    count = len(chosen.ranks)
    waits_for: list[set[int]] = [set() for _ in range(plan.messages * count)]
    views = _Views(plan, group, chosen)
    writers: dict[tuple[int, int, int], list[int]] = {}
    readers: dict[tuple[int, int, int], list[int]] = {}

    def wait(message: int, before: int, like: list[int]) -> None:
        for c, other in enumerate(like):
            waits_for[message * count + c].add(before * count + other)

    for row, message in enumerate(columns["message"]):
        to, chunk = columns["dst"][row], columns["chunk"][row]
        block, origin = columns["block"][row], columns["origin"][row]
        mine = (origin, block, chunk)
        inverse = views.inverse[to]
        theirs = (int(inverse[origin]) if moves else 0, int(inverse[block]), chunk)
        for before in writers.get(mine, ()):
            wait(message, before, views.senders(None, views.to[before]))
        readers.setdefault(mine, []).append(message)
        sent = readers.pop(theirs, [])
        for before in sent:
            wait(message, before, views.receivers(to))
        if columns["reduce"][row] and not sent:
            writers.setdefault(theirs, []).append(message)
            continue
        for before in () if sent else writers.get(theirs, ()):
            wait(message, before, views.senders(to, views.to[before]))
        writers[theirs] = [message]
    unlocks: list[list[int]] = [[] for _ in waits_for]
    for node, before in enumerate(waits_for):
        before.discard(node)
        for other in sorted(before):
            unlocks[other].append(node)
    return [len(before) for before in waits_for], unlocks


class _Views:
    """Representatives of the neighbours of each representative."""

    def __init__(self, plan: OrbitPlan, group: RegularGroup, chosen: Representatives) -> None:
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
        """For every representative x: sender over the class of `to` into x, or into x's `at`."""
        if (at, to) not in self._known:
            there = int(self.inverse[to][0])
            if at is not None:
                there = int(self._elements[at][there])
            self._known[at, to] = [int(self._label[own[there]]) for own in self._own]
        return self._known[at, to]

    def receivers(self, to: int) -> list[int]:
        """For every representative: the receiver of its link of the class of `to`."""
        if (to, None) not in self._known:
            self._known[to, None] = [int(self._label[own[to]]) for own in self._own]
        return self._known[to, None]
