"""Plan a collective on a topology in which all ranks are alike."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.limits import check_size, per_rank
from headrace.collectives.plan.generators.orbits.bound import OrbitBound, orbit_bound
from headrace.collectives.plan.generators.orbits.exchange import exchange_plans
from headrace.collectives.plan.generators.orbits.group import (
    LinkClasses,
    RegularGroup,
    group_of,
    link_classes,
)
from headrace.collectives.plan.generators.orbits.grow import Grower, Growth
from headrace.collectives.plan.generators.orbits.levels import Level, levels_of
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.collectives.plan.generators.orbits.simulate import (
    OrbitCosts,
    OrbitSimulation,
    expanded_schedule,
    simulate_orbits,
)
from headrace.collectives.plan.generators.orbits.verify import OrbitProof, verify_orbits
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.topology import BYTES_PER_MB, Topology, transposed

_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_SHARES = (1.0, 0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)
_PROBE_CHUNKS = 4
_KEPT_SHARES = 3
"""Shares are compared at one number of chunks; the best of them are tried at all numbers."""
_STEPS = (1.0, 1.5, float("inf"))
_MAX_ITEMS = 1 << 15
"""More blocks x chunks than this are not tried."""

_FINALISTS = 6
"""Growths that are simulated: their own time is that of the plan unless ranks share capacities."""

_Columns = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrbitFound:
    """A plan with its certificate.

    Attributes
    ----------
    plan : proven (`proof`).
    total_bytes : the size that it is for.
    predicted_us : simulated under the full cost model.
    bound : no schedule takes less.
    tried : number of candidates.
    simulation : source of the prediction; `expand` takes it.
    """

    plan: OrbitPlan
    proof: OrbitProof
    total_bytes: int
    predicted_us: float
    bound: OrbitBound
    tried: int
    simulation: OrbitSimulation

    @property
    def gap(self) -> float:
        """Relative gap of the prediction to the bound: 0.05 is 5%."""
        return self.predicted_us / self.bound.total_us - 1.0 if self.bound.total_us else 0.0


def plan_orbits(
    topology: Topology,
    collective: Collective,
    total_bytes: int,
    *,
    group: RegularGroup | None = None,
    chunks: tuple[int, ...] = _CHUNKS,
) -> OrbitFound:
    """Return the best symmetric plan found, proven, simulated and bounded.

    Parameters
    ----------
    total_bytes : see `Demand.chunk_bytes`.
    group : acts simply transitively on the ranks; found among rotations if None.
    chunks : chunks a block to try.

    Raises
    ------
    SymmetryError : if there is no such group, or `group` is none of automorphisms.
    ProgramError : for a collective with a root, or a single rank.
    """
    collective = Collective(collective)
    if topology.ranks < 2:
        raise ProgramError(f"topology '{topology.name}' has one rank, needs at least 2")
    group = group or group_of(topology)
    costs = OrbitCosts(topology=topology, group=group)
    classes = link_classes(topology, group)
    block_mb = total_bytes / BYTES_PER_MB / topology.ranks
    plans = list(_plans(topology, group, classes, collective, block_mb, chunks))
    simulated = [simulate_orbits(plan, topology, total_bytes, costs=costs) for plan in plans]
    best = min(range(len(plans)), key=lambda index: simulated[index].total_us)
    plan = plans[best]
    demand = Demand(collective=collective, ranks=topology.ranks)
    return OrbitFound(
        plan=plan,
        proof=verify_orbits(plan),
        total_bytes=total_bytes,
        predicted_us=simulated[best].total_us,
        bound=orbit_bound(topology, group, demand, total_bytes),
        tried=len(plans),
        simulation=simulated[best],
    )


def _plans(
    topology: Topology,
    group: RegularGroup,
    classes: LinkClasses,
    collective: Collective,
    block_mb: float,
    chunks: tuple[int, ...],
) -> Iterator[OrbitPlan]:
    if collective is Collective.ALL_TO_ALL:
        levels = levels_of(classes, group)
        growth = Grower(classes, levels, chunks=1, chunk_mb=block_mb).run()
        few = np.unique(growth.link_class)
        yield from exchange_plans(group, classes, block_mb, chunks, few)
        return
    if collective is Collective.ALLGATHER:
        for growth, count in _best(group, classes, block_mb, chunks):
            yield OrbitPlan.of(collective, count, group.generators, _forwards(classes, growth))
        return
    back = link_classes(transposed(topology), group)
    backwards = _best(group, back, block_mb, chunks)
    if collective is Collective.REDUCE_SCATTER:
        for growth, count in backwards:
            yield OrbitPlan.of(collective, count, group.generators, _backwards(back, growth))
        return
    if collective is not Collective.ALLREDUCE:
        raise ProgramError(f"{collective} has a rank that differs from the others: no orbit plan")
    for growth, count in _best(group, classes, block_mb, chunks):
        for growth_back, other_count in backwards:
            if other_count == count:
                both = _in_sequence(_backwards(back, growth_back), _forwards(classes, growth))
                yield OrbitPlan.of(collective, count * group.ranks, group.generators, both)


def _best(
    group: RegularGroup, classes: LinkClasses, block_mb: float, chunks: tuple[int, ...]
) -> list[tuple[Growth, int]]:
    """The best growths, each with its chunks a block; equal chunks for equal costs."""
    levels = levels_of(classes, group)
    fits = [c for c in chunks if c == min(chunks) or c * group.ranks <= _MAX_ITEMS]
    attempts: list[tuple[float, int, Growth, int]] = []

    def attempt(count: int, share: float, step: float) -> float:
        size = block_mb / count
        growth = Grower(
            classes, levels, chunks=count, chunk_mb=size, batch_share=share, step=step
        ).run()
        attempts.append((growth.total_us, len(attempts), growth, count))
        return growth.total_us

    probe = min(fits, key=lambda c: (abs(c - _PROBE_CHUNKS), c))
    settings = _settings(levels)
    if len(settings) > len(_STEPS):
        settings = sorted(settings, key=lambda some: attempt(probe, *some))[:_KEPT_SHARES]
        fits = [c for c in fits if c != probe]
    for count in fits:
        for share, step in settings:
            attempt(count, share, step)
    attempts.sort(key=lambda row: row[:2])
    return [(growth, count) for _, _, growth, count in attempts[:_FINALISTS]]


def _settings(levels: tuple[Level, ...]) -> list[tuple[float, float]]:
    """(batch_share, step) to try."""
    rates = np.array([some.rate for some in levels[-1].groups])
    if len(levels) == 1 and rates.max() <= rates.min() * 1.01:
        return [(1.0, step) for step in _STEPS]
    return [(1.0, step) for step in _STEPS[:-1]] + [(share, _STEPS[-1]) for share in _SHARES]


def _forwards(classes: LinkClasses, growth: Growth) -> _Columns:
    """Return the sends of an allgather."""
    return {
        "dst": classes.dst[growth.link_class],
        "block": growth.block,
        "origin": np.zeros_like(growth.block),
        "chunk": growth.chunk,
        "reduce": np.zeros_like(growth.block),
        "message": growth.message,
    }


def _backwards(transposed: LinkClasses, growth: Growth) -> _Columns:
    """Reverse `growth`, of the transposed topology and its classes (5.7), to a reduce_scatter.

    Rank 0 sends to a neighbour what it received; the last end begins first.
    """
    messages = len(growth.end_us)
    # Stable, and reversed: of those that end together the one that began last goes first.
    order = np.argsort(-growth.end_us[::-1], kind="stable")
    number = np.empty(messages, dtype=np.int64)
    number[messages - 1 - order] = np.arange(messages)
    # The sender backwards is the receiver forwards: names are the receiver's.
    sender = np.argsort(transposed.held, axis=1)
    to = sender[:, 0]
    rows = np.argsort(number[growth.message], kind="stable")
    s = growth.link_class[rows]
    return {
        "dst": to[s],
        "block": sender[s, growth.block[rows]],
        "origin": np.zeros_like(s),
        "chunk": growth.chunk[rows],
        "reduce": np.ones_like(s),
        "message": number[growth.message[rows]],
    }


def _in_sequence(first: _Columns, second: _Columns) -> _Columns:
    """Return the sends of an allreduce: of a reduce_scatter, then of an allgather.

    Only data dependencies separate the halves: an owner spreads complete chunks while others are
    still combined.
    """
    if len(first["message"]):
        second["message"] = second["message"] + first["message"][-1] + 1
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def orbit_schedules(request: Request) -> Iterator[Schedule]:
    """Plans invariant under a group that is transitive on the ranks: `orbits`."""
    if request.collective in ROOTED:
        raise ProgramError(f"{request.collective} has a root: ranks are not equivalent")
    check_size(request)
    chunks = _CHUNKS if request.method.chunks is None else (per_rank(request),)
    for aim in request.aims:
        orbit_plan = plan_orbits(request.topology, request.collective, max(aim, 1), chunks=chunks)
        request.report(f"{orbit_plan.predicted_us:.4g} us")
        yield expanded_schedule(orbit_plan.plan, orbit_plan.simulation)
