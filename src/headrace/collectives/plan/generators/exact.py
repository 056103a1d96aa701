"""Optimal schedules of small cases, by constraint programming (`bound.exact`)."""

from collections.abc import Iterator

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound.exact import exact_schedule
from headrace.collectives.plan.generators.limits import CARRYING, chunk_mb_of, limit_s
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.solver import Parameters

_MOST_BY_EFFORT = {"quick": 24, "normal": 120, "thorough": 400}
_WORK = {"quick": 1.0, "normal": 10.0, "thorough": 100.0}
"""Deterministic time of CP-SAT; a dense network takes several seconds for a unit."""


def exact_schedules(request: Request) -> Iterator[Schedule]:
    """Exact scheduling of small cases by constraint programming: `exact`."""
    method = request.method
    if request.collective not in CARRYING:
        raise ProgramError("only for collectives that do not combine")
    if method.model.streaming:
        raise ProgramError("schedules whole blocks, one after the other: streams are faster")
    most = _MOST_BY_EFFORT[method.effort]
    for aim in request.aims:
        demand = request.demand(method.chunks or 1)
        deliveries = deliveries_of(demand)
        count = int(deliveries.targets.sum())
        if count > most:
            raise ProgramError(f"{count} deliveries, exact up to {most}")
        parameters = Parameters(
            deterministic=_WORK[method.effort],
            limit_s=4 * limit_s(method.effort),
            progress=lambda progress: request.report(str(progress)),
        )
        found = exact_schedule(
            request.topology, deliveries, chunk_mb_of(demand, aim), parameters=parameters
        )
        if found.sends is not None:
            request.report(f"{'optimal' if found.optimal else 'best so far'} with whole blocks")
            yield realize(demand, found.sends)
