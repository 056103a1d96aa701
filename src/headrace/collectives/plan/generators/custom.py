"""Schedules of custom demands and uneven exchanges, by randomised matching."""

from collections.abc import Iterator

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import SearchProblem, SearchSettings
from headrace.collectives.plan.generators.limits import MOST_DELIVERIES, chunk_mb_of, limit_s
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule

_RESTARTS = {"quick": 16, "normal": 128, "thorough": 4096}


def custom_schedules(request: Request) -> Iterator[Schedule]:
    """Randomised matching of any demand that does not combine, for several chunk counts."""
    method = request.method
    if method.engine is None:
        raise ProgramError("needs a search engine")
    for aim in request.aims:
        for chunks in (1, 2, 4, 8) if method.chunks is None else (method.chunks,):
            demand = request.demand(chunks)
            deliveries = deliveries_of(demand)
            if chunks > 1 and deliveries.targets.sum() > MOST_DELIVERIES:
                return
            problem = SearchProblem(
                topology=request.topology,
                deliveries=deliveries,
                chunk_mb=chunk_mb_of(demand, aim),
            )
            searched = method.engine.search(
                problem,
                SearchSettings(
                    seed=method.seed,
                    restarts=_RESTARTS[method.effort],
                    batch_share=1.0,
                    limit_s=limit_s(method.effort),
                    target_us=request.bound(demand, aim).total_us,
                ),
            )
            request.report(f"{searched.total_us:.4g} us with {chunks} chunks a slot")
            yield realize(demand, searched.sends)
