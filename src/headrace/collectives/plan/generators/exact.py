"""Optimal schedules of small cases, by constraint programming (`bound.exact`)."""

from collections.abc import Iterator

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound.exact import exact_sends
from headrace.collectives.plan.generators.limits import CARRYING, chunk_mb_of, limit_s
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.solver import Parameters

_MOST_SENDS = {"quick": 100, "normal": 300, "thorough": 2_000}
"""Possible sends, chunks times links: at 300 optima take less than a second, at 2,000 minutes."""

_WORK = {"quick": 1.0, "normal": 2.0, "thorough": 100.0}
"""Deterministic time of CP-SAT; a dense network takes several seconds for a unit."""


def exact_schedules(request: Request) -> Iterator[Schedule]:
    """Exact scheduling of small cases by constraint programming: `exact`."""
    method = request.method
    if request.collective not in CARRYING:
        raise ProgramError("only for collectives that do not combine")
    if method.model.streaming:
        raise ProgramError("schedules whole blocks, one after the other: streams are faster")
    demand = request.demand(method.chunks or 1)
    deliveries, most = deliveries_of(demand), _MOST_SENDS[method.effort]
    if (count := deliveries.chunks * len(request.topology.links)) > most:
        raise ProgramError(f"{count} possible sends, exact up to {most}")
    limits = Parameters(deterministic=_WORK[method.effort], limit_s=limit_s(method.effort))
    for aim in request.aims:
        chunk_mb = chunk_mb_of(demand, aim)
        sends, bound_us = exact_sends(request.topology, deliveries, chunk_mb, limits)
        request.report(f"whole blocks take at least {bound_us:.6g} us")
        if sends is not None:
            yield realize(demand, sends)
