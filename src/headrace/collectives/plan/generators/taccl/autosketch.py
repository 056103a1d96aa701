"""Sketches found by search, in place of written ones (TACCL 8.2, automatic sketches).

A trial of a sketch is one brief search by the engine. First every way to connect nodes is tried,
then the best of them with other chunk counts, then the best of all with symmetries. The best of
the trials are synthesized in full, the very best also with other policies for its switches. Trials
are charged to a counted budget, so equal arguments give equal results unless the wall-clock limit
ends the search.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import SearchEngine, SearchSettings
from headrace.collectives.plan.generators.limits import check_size, chunk_mb_of
from headrace.collectives.plan.generators.taccl.effort import EFFORTS, GuidedEffort
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.sketch.enumerate import (
    connections,
    policies,
    symmetries,
)
from headrace.collectives.plan.generators.taccl.sketch.logical import LogicalTopology, apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import Sketch
from headrace.collectives.plan.generators.taccl.synthesize import Synthesis, synthesize_demand
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.errors import HeadraceError
from headrace.solver import SolverProgress

_TRIAL_RESTARTS = 8
_RELAYED = 3.0
"""Cost factor of a trial in which chunks are relayed by ranks that do not want them."""

_FINER_WHOLE = 8
"""Factor on chunk counts where a block is the whole vector, which has to be pipelined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Search limits.

    Attributes
    ----------
    budget : of all trials, in chunk deliveries times links; about 2e7 a second.
    chunkups : chunks a block to try.
    finals : sketches that are synthesized with `effort`.
    policies : whether other policies are tried.
    limit_s : wall clock, a safety net; a trial or synthesis under way is finished.
    """

    budget: float
    chunkups: tuple[int, ...]
    finals: int
    effort: GuidedEffort
    policies: bool
    limit_s: float


_PLANS = {
    "quick": _Plan(
        budget=1.5e7,
        chunkups=(1, 2, 4),
        finals=1,
        effort=GuidedEffort(
            restarts=24,
            choices=2_000_000,
            rounds=0,
            greedy=False,
            route_work=0,
            ordered=2,
            scheduled=1,
            exact_work=0,
            local_batches=False,
        ),
        policies=False,
        limit_s=20.0,
    ),
    "normal": _Plan(
        budget=6e7,
        chunkups=(1, 2, 4, 8),
        finals=2,
        effort=replace(
            EFFORTS["normal"],
            restarts=100,
            choices=4_000_000,
            rounds=1,
            route_work=0,
            scheduled=1,
            exact_work=0,
        ),
        policies=True,
        limit_s=60.0,
    ),
    "thorough": _Plan(
        budget=1e9,
        chunkups=(1, 2, 4, 8, 16),
        finals=6,
        effort=EFFORTS["thorough"],
        policies=True,
        limit_s=1800.0,
    ),
}
_COSTLY = 3e5
"""Chunk deliveries times links beyond which synthesis takes seconds."""

_NEAR, _FAR = 1.1, 1.2
"""Factors on the best time so far beyond which a costly trial is not synthesized, not cut finer."""

_SHARES = (0.4, 0.7, 1.0)
"""Shares of the budget that may be spent by the end of each round of trials."""

_ENOUGH = 1.001
"""Factor on the proven bound within which a result is accepted as final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Outcome of one sketch tried.

    Attributes
    ----------
    trial_us : time found by the trial; infinite if it failed.
    total_us : time found by full synthesis; None where there was none.
    problem : reason why there is no result; empty if there is one.
    """

    sketch: Sketch
    trial_us: float
    total_us: float | None = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class AutoSketch:
    """The best sketch found, and its algorithm.

    Attributes
    ----------
    tried : best first.
    interrupted : by the user: the best until then was taken.
    struck : the wall-clock limit ended the search: another run may find another sketch.
    """

    sketch: Sketch
    synthesis: Synthesis
    tried: tuple[Tried, ...]
    interrupted: bool = False
    struck: bool = False


def autosketch(request: Request, total_bytes: int) -> AutoSketch:
    """Return the best sketch found for `total_bytes` (see `Demand.chunk_bytes`), and its algorithm.

    Parameters
    ----------
    request : its method gives the effort, seed, engine and (if fixed) chunk count; `report` is
        called with the progress.

    Raises
    ------
    ProgramError : if no sketch leads to an algorithm, or for a chunk count that none can have.
    TopologyError : if ranks cannot reach each other.
    """
    search = _Search(request, total_bytes)
    try:
        search.run_trials()
        search.finish()
    except KeyboardInterrupt:
        search.interrupted = True
        if not search.best and not search.any_trial:
            raise
        if not search.best:
            search.finish(finals=1)
        if not search.best:
            raise
    return search.result()


@dataclass(slots=True, eq=False)
class _Row:
    number: int
    sketch: Sketch
    logical: LogicalTopology | None = None
    trial_us: float = float("inf")
    final: Synthesis | None = None
    problem: str = ""

    @property
    def best_us(self) -> float:
        return self.final.physical_us if self.final else self.trial_us


@dataclass(slots=True, eq=False)
class _Search:
    request: Request
    total_bytes: int
    rows: list[_Row] = field(default_factory=list[_Row])
    best: tuple[Synthesis, Sketch] | None = None
    spent: float = 0.0
    interrupted: bool = False
    struck: bool = False
    bound_us: float = field(init=False)
    plan: _Plan = field(init=False)
    engine: SearchEngine = field(init=False)
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        if request.method.engine is None:
            raise ProgramError("needs a search engine")
        self.engine = request.method.engine
        self.plan = _PLANS[request.method.effort]
        self.ends = time.monotonic() + self.plan.limit_s
        demand = request.demand(request.method.chunks or 1)
        self.bound_us = request.bound(demand, self.total_bytes).total_us

    def run_trials(self) -> None:
        """Connections, then chunk counts, then symmetries and policies."""
        topology, chunk_counts = self.request.topology, self._given()
        first = chunk_counts[:1] if self.request.method.chunks else chunk_counts[1:2]
        ways = connections(topology)
        self._try_each(
            (self._sized(sketch, chunks) for sketch in ways for chunks in first), _SHARES[0]
        )
        if not any(self._promising(row, _FAR) for row in self._ranking()):
            return
        for row in self._ranking()[:2]:
            bare = next(sketch for sketch in ways if sketch.internode == row.sketch.internode)
            self._try_each((self._sized(bare, chunks) for chunks in chunk_counts), _SHARES[1])
        if self.request.collective in _SYMMETRIC:
            for row in self._ranking()[:2]:
                self._try_each(symmetries(row.sketch, topology), _SHARES[2])

    def finish(self, finals: int | None = None) -> None:
        """Synthesize the best of the trials, and the best of those with other policies."""
        left = self.plan.finals if finals is None else finals
        for row in self._ranking():
            if not self._promising(row, _NEAR):
                row.problem = "far behind the best so far in its trial, and costly to synthesize"
            elif left and not (self.best and (self._enough() or self._late())):
                left -= self._finish(row)
        if self.best and self.plan.policies and not self.interrupted:
            chunk_bytes = self.best[0].demand.chunk_bytes(self.total_bytes)
            for sketch in policies(self.best[1], chunk_bytes):
                if not self._enough() and not self._late():
                    self._finish(self._row(sketch))

    def result(self) -> AutoSketch:
        """Return the best found; raises ProgramError if there is none."""
        if self.best is None:
            why = "; ".join(sorted({row.problem for row in self.rows}))
            raise ProgramError(f"no sketch works for '{self.request.topology.name}': {why}")
        synthesis, sketch = self.best
        tried = [
            Tried(
                sketch=row.sketch,
                trial_us=row.trial_us,
                total_us=row.final.physical_us if row.final else None,
                problem=row.problem,
            )
            for row in sorted(self.rows, key=lambda row: (row.best_us, row.number))
        ]
        return AutoSketch(
            sketch=replace(sketch, input_bytes=self._input_bytes()),
            synthesis=synthesis,
            tried=tuple(tried),
            interrupted=self.interrupted,
            struck=self.struck,
        )

    def _try_each(self, sketches: Iterable[Sketch], share: float) -> None:
        """Try each while this share of the budget lasts; at least one."""
        for sketch in sketches:
            if any(row.sketch == sketch for row in self.rows):
                continue
            row = self._row(sketch)
            cost = self._cost(row)
            if self.any_trial and (self._late() or self.spent + cost > share * self.plan.budget):
                self.rows.pop()
                return
            self.spent += cost
            try:
                row.trial_us = self._brief_us(row)
            except HeadraceError as error:
                row.problem = row.problem or str(error)
            except KeyboardInterrupt:
                row.problem = row.problem or "interrupted"
                raise
            self.request.report(f"{sketch.name}: {row.trial_us:.4g} us in its trial")

    def _row(self, sketch: Sketch) -> _Row:
        row = _Row(len(self.rows), sketch)
        self.rows.append(row)
        try:
            row.logical = apply_sketch(sketch, self.request.topology)
        except HeadraceError as error:
            row.problem = str(error)
        return row

    def _cost(self, row: _Row) -> float:
        if row.logical is None:
            return 0.0
        deliveries = deliveries_of(self._demand(row.sketch))
        delivery_count = int(deliveries.targets.sum())
        relayed = delivery_count < deliveries.chunks * (deliveries.ranks - 1)
        twice = 2 if self.request.collective is Collective.ALLREDUCE else 1
        cost = float(delivery_count) * len(row.logical.topology.links) * twice
        return cost * _RELAYED if relayed else cost

    def _brief_us(self, row: _Row) -> float:
        """Return the time found by a trial; of combining collectives an estimate, by their dual."""
        if row.logical is None:
            return float("inf")
        demand = self._demand(row.sketch)
        match demand.collective:
            case Collective.REDUCE | Collective.REDUCE_SCATTER:
                sides = [row.logical.transposed()]
            case Collective.ALLREDUCE:
                sides = [row.logical, row.logical.transposed()]
            case _:
                sides = [row.logical]
        mb = chunk_mb_of(demand, self.total_bytes)
        deliveries = deliveries_of(demand)
        settings = SearchSettings(seed=self.request.method.seed, restarts=_TRIAL_RESTARTS)
        return sum(
            RouteProblem.of(side, deliveries, mb).search(self.engine, settings).total_us
            for side in sides
        )

    def _promising(self, row: _Row, times: float) -> bool:
        """Return whether the row is cheap, or its trial took at most `times` the best time."""
        best_us = self.request.best_us(self.total_bytes)
        return row.trial_us <= times * best_us or self._cost(row) <= _COSTLY

    def _finish(self, row: _Row) -> bool:
        """Synthesize in full; return whether it succeeded."""
        try:
            row.final = self._synthesize(row)
        except HeadraceError as error:
            row.problem = str(error)
            return False
        return True

    def _synthesize(self, row: _Row) -> Synthesis:
        if row.logical is None:
            raise ProgramError(row.problem)
        demand, effort = self._demand(row.sketch), self.plan.effort
        if self.interrupted:  # one brief search, as in its trial
            effort = replace(effort, restarts=_TRIAL_RESTARTS, greedy=False)
        elif demand.collective in _RELAYING:  # congestion shows late in time, early in prices
            effort = replace(effort, greedy=True)
        synthesis = synthesize_demand(
            row.logical,
            demand,
            self.total_bytes,
            seed=self.request.method.seed,
            effort=effort,
            engine=self.engine,
            progress=self._reporter(row.sketch.name),
            interrupt=lambda: self.interrupted,
        )
        if self.best is None or synthesis.physical_us < self.best[0].physical_us:
            self.best = (synthesis, row.sketch)
        return synthesis

    def _reporter(self, name: str) -> Callable[[str, float, SolverProgress | None], None]:
        def report(stage: str, best_us: float, progress: SolverProgress | None) -> None:
            solver = "" if progress is None else f", {progress}"
            self.request.report(f"{name}: {stage}: {best_us:.4g} us{solver}")

        return report

    @property
    def any_trial(self) -> bool:
        """Return whether any trial succeeded."""
        return any(row.trial_us < float("inf") for row in self.rows)

    def _ranking(self) -> list[_Row]:
        timed = [row for row in self.rows if row.trial_us < float("inf")]
        return sorted(timed, key=lambda row: (row.trial_us, row.number))

    def _demand(self, sketch: Sketch) -> Demand:
        is_allreduce = self.request.collective is Collective.ALLREDUCE
        return self.request.demand(sketch.chunkup * (self.request.ranks if is_allreduce else 1))

    def _given(self) -> tuple[int, ...]:
        """Chunk counts to try, of what a rank owns."""
        chunks = self.request.method.chunks
        if chunks is None:
            is_rooted = self.request.collective in (Collective.BROADCAST, Collective.REDUCE)
            return tuple(k * _FINER_WHOLE if is_rooted else k for k in self.plan.chunkups)
        ranks = self.request.ranks if self.request.collective is Collective.ALLREDUCE else 1
        if chunks % ranks:
            raise ProgramError(
                f"{chunks} chunks are given, sketches for allreduce need a multiple of {ranks}"
            )
        return (chunks // ranks,)

    def _sized(self, sketch: Sketch, chunks: int) -> Sketch:
        return replace(sketch, name=f"{sketch.name}, {chunks} chunks", chunkup=chunks)

    def _input_bytes(self) -> int | None:
        """Return the input size of a rank; see `guided_synthesis`."""
        gathers = self.request.collective in (Collective.ALLGATHER, Collective.GATHER)
        return self.total_bytes // (self.request.ranks if gathers else 1) or None

    def _enough(self) -> bool:
        return self.best is not None and self.best[0].physical_us <= self.bound_us * _ENOUGH

    def _late(self) -> bool:
        self.struck = self.struck or time.monotonic() > self.ends
        return self.struck


_RELAYING = frozenset({Collective.ALL_TO_ALL, Collective.SCATTER, Collective.GATHER})
_SYMMETRIC = frozenset(
    {Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALLREDUCE, Collective.ALL_TO_ALL}
)


def sketch_schedules(request: Request) -> Iterator[Schedule]:
    """Sketches derived from the topology: `autosketch`."""
    check_size(request)
    for aim in request.aims:
        searched = autosketch(request, max(aim, 1))
        request.report(
            f"{searched.synthesis.physical_us:.4g} us with sketch '{searched.sketch.name}'"
        )
        yield searched.synthesis.schedule
        if searched.interrupted:
            raise KeyboardInterrupt
