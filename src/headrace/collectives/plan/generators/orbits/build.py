"""Plan a collective on a topology in which all ranks are alike."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.limits import check_size, per_rank
from headrace.collectives.plan.generators.orbits.assemble import (
    allgather_plan,
    allreduce_plan,
    reduce_scatter_plan,
)
from headrace.collectives.plan.generators.orbits.bound import OrbitBound, orbit_bound
from headrace.collectives.plan.generators.orbits.classes import LinkClasses, link_classes
from headrace.collectives.plan.generators.orbits.costs import OrbitCosts
from headrace.collectives.plan.generators.orbits.exchange import exchange_plans
from headrace.collectives.plan.generators.orbits.expand import expand
from headrace.collectives.plan.generators.orbits.group import RegularGroup, group_of
from headrace.collectives.plan.generators.orbits.grow import Growth, grow
from headrace.collectives.plan.generators.orbits.levels import Level, levels_of
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.collectives.plan.generators.orbits.simulate import OrbitSimulation, simulate_orbits
from headrace.collectives.plan.generators.orbits.verify import OrbitProof, verify_orbits
from headrace.collectives.plan.ir.chunks import realize
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
        growth = grow(classes, levels_of(classes, group), chunks=1, chunk_mb=block_mb)
        few = np.unique(growth.link_class)
        yield from exchange_plans(group, classes, block_mb, chunks, few)
        return
    if collective is Collective.ALLGATHER:
        for growth, count in _best(group, classes, block_mb, chunks):
            yield allgather_plan(group, classes, growth, count)
        return
    back = link_classes(transposed(topology), group)
    backwards = _best(group, back, block_mb, chunks)
    if collective is Collective.REDUCE_SCATTER:
        for growth, count in backwards:
            yield reduce_scatter_plan(group, back, growth, count)
        return
    if collective is not Collective.ALLREDUCE:
        raise ProgramError(f"{collective} has a rank that differs from the others: no orbit plan")
    for growth, count in _best(group, classes, block_mb, chunks):
        for other, other_count in backwards:
            if other_count == count:
                yield allreduce_plan(group, classes, growth, back, other, count)


def _best(
    group: RegularGroup, classes: LinkClasses, block_mb: float, chunks: tuple[int, ...]
) -> list[tuple[Growth, int]]:
    """The best growths, each with its chunks a block; equal chunks for equal costs."""
    levels = levels_of(classes, group)
    fits = [c for c in chunks if c == min(chunks) or c * group.ranks <= _MAX_ITEMS]
    made: list[tuple[float, int, Growth, int]] = []

    def attempt(count: int, share: float, step: float) -> float:
        growth = grow(
            classes,
            levels,
            chunks=count,
            chunk_mb=block_mb / count,
            batch_share=share,
            step=step,
        )
        made.append((growth.total_us, len(made), growth, count))
        return growth.total_us

    probe = min(fits, key=lambda c: (abs(c - _PROBE_CHUNKS), c))
    settings = _settings(levels)
    if len(settings) > len(_STEPS):
        settings = sorted(settings, key=lambda some: attempt(probe, *some))[:_KEPT_SHARES]
        fits = [c for c in fits if c != probe]
    for count in fits:
        for share, step in settings:
            attempt(count, share, step)
    made.sort(key=lambda row: row[:2])
    return [(growth, count) for _, _, growth, count in made[:_FINALISTS]]


def _settings(levels: tuple[Level, ...]) -> list[tuple[float, float]]:
    """(batch_share, step) to try."""
    rates = np.array([some.rate for some in levels[-1].groups])
    if len(levels) == 1 and rates.max() <= rates.min() * 1.01:
        return [(1.0, step) for step in _STEPS]
    return [(1.0, step) for step in _STEPS[:-1]] + [(share, _STEPS[-1]) for share in _SHARES]


def orbit_schedules(request: Request) -> Iterator[Schedule]:
    """Plans invariant under a group that is transitive on the ranks: `orbits`."""
    method = request.method
    if request.collective in ROOTED:
        raise ProgramError(f"{request.collective} has a root: ranks are not equivalent")
    check_size(request)
    for aim in request.aims:
        if method.chunks is None:
            found = plan_orbits(request.topology, request.collective, max(aim, 1))
        else:
            counts = (per_rank(request),)
            found = plan_orbits(request.topology, request.collective, max(aim, 1), chunks=counts)
        request.report(f"{found.predicted_us:.4g} us")
        yield realize(found.plan.demand, expand(found.plan, found.simulation))
