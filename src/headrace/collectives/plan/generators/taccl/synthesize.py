"""Sketch-guided synthesis (TACCL 5.4.2): route, order, schedule, for every collective.

Each stage keeps the result of the one before (an anytime algorithm): a limit or an interrupt costs
quality, never the result. Several candidate routes go through ordering; the best go through
contiguity. Combining collectives are synthesized as their dual on the transposed logical topology,
then ordered and scheduled anew in their own direction (5.7).
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import Bound, lower_bound
from headrace.collectives.plan.engine import SearchEngine
from headrace.collectives.plan.generators.taccl.effort import EFFORTS, GuidedEffort, Watch
from headrace.collectives.plan.generators.taccl.order import order_messages
from headrace.collectives.plan.generators.taccl.paths import route_candidates
from headrace.collectives.plan.generators.taccl.router import least_time
from headrace.collectives.plan.generators.taccl.routing import ChunkCosts, RouteProblem
from headrace.collectives.plan.generators.taccl.schedule import batched, schedule_exactly
from headrace.collectives.plan.generators.taccl.sketch.logical import (
    LogicalTopology,
    apply_sketch,
    whole,
)
from headrace.collectives.plan.generators.taccl.sketch.parse import load_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import Sketch
from headrace.collectives.plan.generators.taccl.work import (
    Work,
    WorkTimeline,
    chained,
    combining,
    list_schedule,
    own_first,
    spreading,
)
from headrace.collectives.plan.ir.chunks import deliveries_of, realize
from headrace.collectives.plan.ir.sends import Sends
from headrace.collectives.plan.limited import first_interrupt
from headrace.collectives.plan.request import Generator, Request
from headrace.collectives.program import Schedule
from headrace.errors import InputError
from headrace.solver import Result, SolverProgress
from headrace.topology import BYTES_PER_MB, Topology

_ALPHA_SHARE = 0.1
"""Batches within nodes are tried if alpha could save more than this share of the time."""

_MOST_SLOTS = 1 << 19
"""Of all ranks together: larger problems take hours here."""

_PER_RANK = frozenset({Collective.ALLGATHER, Collective.GATHER})  # sizes are those of the output


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """Result of one stage.

    Attributes
    ----------
    best_us : time of the best schedule after it.
    seconds : wall clock.
    found : time of each candidate (us).
    """

    name: str
    best_us: float
    seconds: float
    found: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Synthesis:
    """An algorithm, its derivation, and its lower bound.

    Attributes
    ----------
    logical : the logical topology that it is for.
    sends : the abstract algorithm, with the times at which messages start there.
    predicted_us : its time on the logical topology under the full cost model.
    physical_us : the same on the topology that the sketch was applied to.
    stages, results : of every stage and of every solver run the result.
    timeline : the messages.
    """

    demand: Demand
    total_bytes: int
    logical: LogicalTopology
    sends: Sends
    predicted_us: float
    physical_us: float
    stages: tuple[StageResult, ...]
    results: dict[str, Result]
    timeline: WorkTimeline

    @cached_property
    def schedule(self) -> Schedule:
        """The transfers, for lowering."""
        return realize(self.demand, self.sends)

    @cached_property
    def bound(self) -> Bound:
        """Lower bound on the logical topology (the machine's own bound may be lower)."""
        return lower_bound(self.logical.topology, self.demand, self.total_bytes)

    @property
    def gap(self) -> float:
        """Relative gap of `predicted_us` to the bound: 0.05 is 5%."""
        if self.bound.total_us == 0:
            return 0.0 if self.predicted_us == 0 else float("inf")
        return self.predicted_us / self.bound.total_us - 1

    @property
    def seconds(self) -> float:
        """Wall clock of all stages."""
        return sum(stage.seconds for stage in self.stages)


def guided_synthesis(
    topology: Topology,
    sketch: Sketch | None,
    collective: Collective,
    *,
    total_bytes: int | None = None,
    chunk_bytes: float | None = None,
    root: int = 0,
    seed: int = 0,
    effort: GuidedEffort | str = "normal",
    progress: Callable[[str, float, SolverProgress | None], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    engine: SearchEngine | None = None,
    allgather: Synthesis | None = None,
) -> Synthesis:
    """Synthesize `collective` on `topology` as `sketch` guides.

    Parameters
    ----------
    sketch : None: all of the topology, one chunk a block, no symmetry.
    total_bytes, chunk_bytes : the collective's size (`Demand.chunk_bytes`) or a chunk's; neither:
        the sketch's input size.
    seed, effort : equal ones give equal results, unless a wall-clock limit was reached.
    progress : called with stage, best so far (us; infinite before the first) and a solver's
        progress.
    interrupt : polled; true makes the stages end with the best so far.
    engine : another router, if there is one.
    allgather : for an allreduce, an allgather synthesized before with the same sketch and sizes.

    Raises
    ------
    SketchError : if the sketch does not fit topology or collective.
    InputError : if there is no size, or two.
    """
    collective = Collective(collective)
    logical = apply_sketch(sketch, topology) if sketch else whole(topology)
    chunks = sketch.chunkup if sketch else 1
    if collective is Collective.ALLREDUCE:
        chunks *= topology.ranks
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=chunks, root=root)
    if demand.slots * demand.ranks > _MOST_SLOTS:
        raise InputError(
            f"{collective} over {demand.ranks} ranks in {chunks} chunks a block has "
            f"{demand.slots} slots a rank, needs at most {_MOST_SLOTS // demand.ranks}: lower "
            "hyperparameters.input_chunkup, or plan without a sketch"
        )
    total = _total_bytes(demand, sketch, total_bytes, chunk_bytes)
    return synthesize_demand(
        logical,
        demand,
        total,
        seed=seed,
        effort=effort,
        progress=progress,
        interrupt=interrupt,
        engine=engine,
        allgather=allgather,
    )


def _total_bytes(
    demand: Demand, sketch: Sketch | None, total_bytes: int | None, chunk_bytes: float | None
) -> int:
    if total_bytes is not None and chunk_bytes is not None:
        raise InputError("total_bytes and chunk_bytes are both given, needs one")
    if total_bytes is not None:
        nbytes = total_bytes
    elif chunk_bytes is not None:
        nbytes = round(chunk_bytes * demand.blocks * demand.chunks)
    elif sketch is not None and sketch.input_bytes is not None:
        ranks = demand.ranks if demand.collective in _PER_RANK else 1
        nbytes = sketch.input_bytes * ranks
    else:
        raise InputError("total_bytes is missing, and the sketch has no input_size")
    if nbytes < 0:
        raise InputError(f"total_bytes is {nbytes}, needs at least 0")
    return nbytes


def synthesize_demand(
    logical: LogicalTopology,
    demand: Demand,
    total_bytes: int,
    *,
    seed: int = 0,
    effort: GuidedEffort | str = "normal",
    progress: Callable[[str, float, SolverProgress | None], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    engine: SearchEngine | None = None,
    allgather: Synthesis | None = None,
) -> Synthesis:
    """Synthesize any demand on a logical topology; see `guided_synthesis`.

    Raises
    ------
    SketchError : if a chunk cannot reach a rank, or a symmetry is none of the demand.
    """
    effort_of_stages = EFFORTS[effort] if isinstance(effort, str) else effort
    watch = Watch(
        effort=effort_of_stages, seed=seed, progress=progress, interrupt=interrupt, engine=engine
    )
    pipeline = _Pipeline(logical, demand, demand.chunk_bytes(total_bytes) / BYTES_PER_MB, watch)
    match demand.collective:
        case Collective.REDUCE | Collective.REDUCE_SCATTER:
            best = pipeline.combine()
        case Collective.ALLREDUCE:
            best = pipeline.allreduce(allgather)
        case _:
            best = pipeline.spread()
    return Synthesis(
        demand=demand,
        total_bytes=total_bytes,
        logical=logical,
        sends=best.sends(),
        predicted_us=best.total_us,
        physical_us=_on_physical(logical, best, pipeline.chunk_mb),
        stages=tuple(pipeline.stages),
        results=pipeline.results,
        timeline=best,
    )


class _Pipeline:
    """The stages and their results."""

    def __init__(
        self, logical: LogicalTopology, demand: Demand, chunk_mb: float, watch: Watch
    ) -> None:
        self._logical, self._demand, self.chunk_mb = logical, demand, chunk_mb
        self._watch = watch
        self._deliveries = deliveries_of(demand)
        self.stages: list[StageResult] = []
        self.results: dict[str, Result] = {}
        self._began = time.monotonic()

    def spread(self, prefix: str = "") -> WorkTimeline:
        """Route, order and schedule a collective that combines nothing."""
        problem = RouteProblem.of(self._logical, self._deliveries, self.chunk_mb)
        return self._plan(problem, lambda trees: spreading(problem.costs, trees), prefix)

    def combine(self, prefix: str = "") -> WorkTimeline:
        """The dual on the transposed topology, ordered and scheduled in its own direction."""
        problem = RouteProblem.of(self._logical.transposed(), self._deliveries, self.chunk_mb)
        costs = ChunkCosts.of(self._logical.topology, self.chunk_mb)
        return self._plan(problem, lambda trees: combining(costs, trees), prefix)

    def allreduce(self, allgather: Synthesis | None) -> WorkTimeline:
        """A reduce_scatter, then an allgather; overlapped where that is faster."""
        second = allgather.timeline if allgather is not None else self.spread("allgather: ")
        # The halves are duals: routes as good as the other's need no further search.
        stages = allgather.stages if allgather is not None else self.stages
        self._watch.good_us = max(row.best_us for row in stages if row.name.endswith("order"))
        first = self.combine("reduce_scatter: ")
        both = chained(first.work, second.work)
        shifted = [start + first.total_us for start in second.start_us]
        best, total_us_of = order_messages(
            both,
            start=[*first.start_us, *shifted],
            enough_us=both.unavoidable_us(np.zeros(len(both.costs.src), bool)),
            interrupt=self._watch.stopped,
        )
        self._stage(
            "overlap",
            best.total_us,
            {"one after the other": first.total_us + second.total_us, **total_us_of},
        )
        return best

    def _plan(
        self,
        problem: RouteProblem,
        work_of: Callable[[np.ndarray], Work],
        prefix: str,
    ) -> WorkTimeline:
        watch, effort = self._watch, self._watch.effort
        candidates, results = route_candidates(problem, watch, prefix)
        self.results.update({f"{prefix}{name}": result for name, result in results.items()})
        self._stage(f"{prefix}route", float("inf"), {c.name: c.lower_us for c in candidates})
        ordered: list[tuple[float, float, int, WorkTimeline]] = []
        total_us_of: dict[str, float] = {}
        nowhere = np.zeros(len(problem.costs.src), bool)
        enough = least_time(problem) * (1 + 1e-9)
        for number, candidate in enumerate(candidates):
            work = work_of(candidate.trees)
            if problem.logical.enforce_ordering:
                work = own_first(work, self._deliveries.origin, problem.logical.crossing)
            start = candidate.starts(reverse=problem.logical is not self._logical)
            best, rule_us = order_messages(
                work,
                start=start,
                enough_us=work.unavoidable_us(nowhere),
                interrupt=watch.stopped,
            )
            total_us_of |= {f"{candidate.name}, {name}": us for name, us in rule_us.items()}
            ordered.append((round(best.total_us, 6), candidate.penalty, number, best))
            watch.report(f"{prefix}order", best.total_us, None)
            if best.total_us <= enough or watch.stopped():
                break
        ordered.sort(key=lambda row: row[:3])
        self._stage(f"{prefix}order", ordered[0][3].total_us, total_us_of)
        shortlist = [(candidates[at].name, row) for _, _, at, row in ordered[: effort.scheduled]]
        if shortlist[0][1].total_us <= enough:  # other routes cannot do better
            shortlist = shortlist[:1]
        best = self._schedule(shortlist, self._logical.crossing, f"{prefix}schedule")
        everywhere = np.ones(len(problem.costs.src), bool)
        if effort.local_batches and not watch.stopped() and self._alpha_matters(shortlist[0][1]):
            local = self._schedule(shortlist, everywhere, f"{prefix}local batches")
            best = min(best, local, key=lambda timeline: timeline.total_us)
        return best

    def _alpha_matters(self, timeline: WorkTimeline) -> bool:
        """Return whether alpha within nodes is a sizeable part of the routes' lower bound."""
        work, crossing = timeline.work, self._logical.crossing
        alone = work.unavoidable_us(crossing)
        return work.unavoidable_us(np.ones_like(crossing)) < (1 - _ALPHA_SHARE) * alone

    def _schedule(
        self, shortlist: list[tuple[str, WorkTimeline]], where: np.ndarray, stage: str
    ) -> WorkTimeline:
        """Batch chunks on the links `where`; return the best timeline of all `shortlist`."""
        watch, effort = self._watch, self._watch.effort
        best, total_us_of = shortlist[0][1], dict[str, float]()
        for name, timeline in shortlist:
            if timeline.total_us <= timeline.work.unavoidable_us(where) * (1 + 1e-9):
                continue  # optimal for its routes
            batched_timeline, batched_us = batched(timeline, where, interrupt=watch.stopped)
            total_us_of |= {f"{name}, {batching}": us for batching, us in batched_us.items()}
            if effort.exact_work and timeline.work.size <= effort.exact_messages:
                least_us = min(best.total_us, batched_timeline.total_us)
                parameters = watch.parameters(stage, effort.exact_work, least_us)
                batched_timeline, result = schedule_exactly(
                    timeline.work, where, batched_timeline, parameters
                )
                self.results[f"{stage}, {name}"] = result
                total_us_of[f"{name}, exact"] = batched_timeline.total_us
            if batched_timeline.total_us < best.total_us - 1e-9:
                best = batched_timeline
            watch.report(stage, best.total_us, None)
            if watch.stopped():
                break
        self._stage(stage, best.total_us, total_us_of)
        return best

    def _stage(self, name: str, best_us: float, total_us_of: dict[str, float]) -> None:
        now = time.monotonic()
        self.stages.append(
            StageResult(name=name, best_us=best_us, seconds=now - self._began, found=total_us_of)
        )
        self._began = now


def _on_physical(logical: LogicalTopology, best: WorkTimeline, chunk_mb: float) -> float:
    """Replay on the topology that the sketch was applied to, whose betas are not split."""
    physical = logical.physical
    index = physical.link_index
    links = [index[link.src, link.dst] for link in logical.topology.links]
    work = replace(
        best.work,
        costs=ChunkCosts.of(physical, chunk_mb),
        link=[links[at] for at in best.work.link],
    )
    rank = np.empty(work.size)
    rank[best.order] = np.arange(work.size)
    return list_schedule(work, rank.tolist()).total_us


def sketch_generator(sketch: Path) -> Generator:
    """Return the generator that follows a user's sketch; raises SketchError if it is malformed."""
    return Generator("sketch", partial(guided_schedules, sketch=load_sketch(sketch)))


def guided_schedules(request: Request, *, sketch: Sketch | None) -> Iterator[Schedule]:
    """Route, order and schedule under a user's sketch; None: on the whole topology."""
    topology, method = request.topology, request.method

    def report(stage: str, best_us: float, progress: SolverProgress | None) -> None:
        solver = "" if progress is None else f", {progress}"
        request.report(f"{stage}: best {best_us:.4g} us{solver}")

    make = partial(guided_synthesis, topology, sketch, request.collective, root=request.root)
    if request.given is not None:
        logical = whole(topology) if sketch is None else apply_sketch(sketch, topology)
        demand = request.demand(1 if sketch is None else sketch.chunkup)
        make = partial(synthesize_demand, logical, demand)
    for aim in request.aims:
        with first_interrupt() as interrupted:
            synthesis = make(
                total_bytes=aim,
                seed=method.seed,
                effort=method.effort,
                progress=report,
                interrupt=interrupted,
                engine=method.engine,
            )
        yield synthesis.schedule
        if interrupted():
            raise KeyboardInterrupt
