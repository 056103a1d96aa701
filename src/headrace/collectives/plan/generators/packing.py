"""Schedules from packed trees and paths (`flows`), by list scheduling."""

from collections.abc import Iterator

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import SearchInterrupted, SearchProblem, SearchSettings
from headrace.collectives.plan.flows import PackSettings, pack
from headrace.collectives.plan.flows.rounding import rounded, tree_routes
from headrace.collectives.plan.generators.limits import (
    CARRYING,
    MOST_DELIVERIES,
    check_size,
    chunk_mb_of,
    limit_s,
)
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule

_TREE_CHUNKS = {"quick": (4,), "normal": (8, 24), "thorough": (8, 24, 64)}
_FAR = 1.2
"""Ratio to the best candidate above which no finer cut is tried: it would not catch up."""


def packing_schedules(request: Request) -> Iterator[Schedule]:
    """Trees and paths of least load, then list scheduling: `packing`."""
    method = request.method
    if request.collective not in CARRYING:
        raise ProgramError("only for collectives that do not combine; matching reverses the others")
    if method.engine is None:
        raise ProgramError("needs a search engine")
    counts = _TREE_CHUNKS[method.effort] if method.chunks is None else (method.chunks,)
    check_size(request)
    for aim in request.aims:
        for chunks in counts:
            demand = request.demand(chunks)
            deliveries = deliveries_of(demand)
            if deliveries.targets.sum() > MOST_DELIVERIES:
                continue
            chunk_mb = chunk_mb_of(demand, aim)
            limits = PackSettings(limit_s=limit_s(method.effort))
            packing = pack(request.topology, deliveries, chunk_mb, settings=limits)
            request.report(f"{chunks} chunks, throughput within {packing.gap:z.1%} of its bound")
            through = tree_routes(packing, rounded(request.topology, packing, deliveries))
            problem = SearchProblem(
                topology=request.topology, deliveries=deliveries, chunk_mb=chunk_mb, routes=through
            )
            how = SearchSettings(
                seed=method.seed, restarts=24, batch_share=1.0, limit_s=limit_s(method.effort)
            )
            try:
                searched = method.engine.search(problem, how)
            except SearchInterrupted as interrupt:
                yield realize(demand, interrupt.found.sends)
                raise
            yield realize(demand, searched.sends)
            if searched.total_us > _FAR * request.best_us(aim):
                break
