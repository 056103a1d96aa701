"""From a training step and a budget to the fastest schedule known, with its certificate.

Small steps are solved by the exact program. For others a local search finds schedules
(`headrace.memory.plan.search`); relaxations bound their times, first small ones
(`headrace.memory.plan.coarse`), then where it is not too large that of the exact program; and the
solutions of these, rounded, are where the search starts again.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from headrace.errors import ModelError
from headrace.facades import offered_by
from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph, Implementation
from headrace.memory.plan.baselines import block_schedule, keep_schedule, sqrt_schedule
from headrace.memory.plan.coarse import CoarseProgram, coarse_program
from headrace.memory.plan.draft import Draft, SimulatedDraft
from headrace.memory.plan.intervals import improved
from headrace.memory.plan.liveness import exact_program
from headrace.memory.plan.program import StepProgram
from headrace.memory.plan.search import Search
from headrace.memory.plan.stages import Stages
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule, Step
from headrace.solver import LinearModel, Parameters, Proved, Result, Stop
from headrace.solver import solve as solve_model
from headrace.units import duration, size

_EXACT_VARIABLES = 3000
"""Largest program that is solved as it is: minutes for more, in HiGHS."""
_RELAXED_CELLS = 10_000
"""Most stages times forward operators of a relaxed exact program: seconds, at 40,000 minutes."""
_PARTS = (4, 16)
"""Stages that the small relaxations look at."""
_EXACT_SHARE = 0.5
"""Share of the time for it, after which the search takes over."""
_FIRST_SHARE = 0.25
"""Share of the time for the first schedules, before there is a bound."""
_EARLY_SHARE = 0.75
"""Share of the time until whose end schedules are improved at random, before the larger programs:
that gains more than these from the same time."""
_BOUND_SHARE = 0.7
"""Largest share of the time that is left for one relaxation."""
_REFINED_SHARE, _REFINED_ROUNDS = 0.1, 2000
"""Most of the time, and of rounds, for faster schedules behind the gap at which a search ends."""
_LEAST_SHARE, _LEAST_S = 0.1, 2.0
"""Time for the least budget of an error, beyond the limit: a share of it, and at least seconds."""
_THRESHOLDS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
"""Values of the relaxation above which a run is taken into a rounded schedule."""
_NOISES = (0.0, 0.3, 0.3, 1.0, 1.0)
"""Disturbances of the starts from the plain run; see `Search.repair`."""
_BISECTIONS = 8
"""Budgets that are tried to find the least with a schedule."""
_NAMED = 3
"""Storages that an error names."""
_THREADS = 2
"""Of CP-SAT: interleaved, so that results do not depend on timing."""
_TIGHT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveLimits:
    """Limits of a solve; reached, they end it with a larger gap.

    Attributes
    ----------
    seconds : wall clock, of all parts.
    bound_seconds : of the relaxation; 0: none is solved.
    interval_work : of CP-SAT, in its deterministic measure of about seconds; 0: it is not used.
    rounds : of the local search. With a `seconds` that is not reached, equal rounds and seeds give
        equal schedules.
    gap : stop once (time - bound) / time is at most this.
    """

    seconds: float = 180.0
    bound_seconds: float = 120.0
    interval_work: float = 20.0
    rounds: int = 100_000
    gap: float = 0.005


@offered_by("headrace.memory")
@dataclass(frozen=True, slots=True, kw_only=True)
class SolveProgress:
    """The state of a solve.

    Attributes
    ----------
    incumbent_us : time of the fastest schedule so far.
    bound_us : proven lower bound.
    seconds : since the start.
    """

    incumbent_us: float
    bound_us: float
    seconds: float

    @property
    def gap(self) -> float:
        """(incumbent - bound) / incumbent."""
        return (self.incumbent_us - self.bound_us) / max(self.incumbent_us, _TIGHT)

    def __str__(self) -> str:
        """Return it in words."""
        times = f"{duration(self.incumbent_us)}, bound {duration(self.bound_us)}"
        return f"{times}, gap {self.gap:z.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A schedule within a budget, with its certificate.

    Attributes
    ----------
    schedule : verified.
    peak_bytes, time_us : of its replay.
    bound_us : proven lower bound of the time of every schedule within the budget that is in stages
        (`headrace.memory.plan.stages`).
    stop : DONE if the gap that was asked for is reached.
    seconds : wall clock.
    """

    schedule: Schedule
    peak_bytes: int
    time_us: float
    bound_us: float
    stop: Stop
    seconds: float

    @property
    def gap(self) -> float:
        """(time - bound) / time."""
        return max(0.0, self.time_us - self.bound_us) / self.time_us if self.time_us else 0.0


def solve_schedule(
    graph: Graph,
    budget_bytes: int,
    *,
    limits: SolveLimits | None = None,
    seed: int = 0,
    progress: Callable[[SolveProgress], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    starts: tuple[Schedule, ...] = (),
) -> Solution:
    """Return the fastest schedule found within a budget.

    Parameters
    ----------
    progress : called with every faster schedule and better bound.
    interrupt : polled; true ends the search with the best schedule so far.
    starts : schedules to start from, such as those of another budget.

    Raises
    ------
    BudgetError : if no schedule is found, with the least budget that one is found for, and the step
        that needs it.
    """
    useful = _Useful.of(graph)
    solve = _Solve(
        useful.graph(graph), budget_bytes, limits or SolveLimits(), seed, progress, interrupt
    )
    try:
        found = solve.run(tuple(map(useful.narrowed, starts)))
    except BudgetError as error:
        if error.schedule is not None:
            error.schedule = useful.widened(error.schedule)
        raise
    return replace(found, schedule=useful.widened(found.schedule))


@dataclass(slots=True)
class _Solve:
    """One solve: the best schedule and bound so far."""

    graph: Graph
    budget: int
    limits: SolveLimits
    seed: int
    progress: Callable[[SolveProgress], None] | None
    interrupt: Callable[[], bool] | None
    stages: Stages = field(init=False)
    search: Search = field(init=False)
    began: float = field(init=False)
    bound: float = field(init=False)
    deadline: float = field(init=False)
    best: SimulatedDraft | None = None
    stop: Stop = Stop.TIME

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.deadline = self.limits.seconds
        self.stages = Stages(self.graph)
        self.search = Search(self.stages, self.budget, self.seed, self._stopped)
        self.bound = sum(
            min(way.time_us for way in operator.implementations)
            for operator in self.graph.operators
        )

    def run(self, starts: tuple[Schedule, ...]) -> Solution:
        self._refuse_impossible(starts)
        self._look(starts)
        if self.best is None:
            if self.interrupt is not None and self.interrupt():
                raise BudgetError("interrupted before a schedule within the budget was found")
            least = self._least(starts)
            if least.found.peak_bytes > self.budget:
                raise self._infeasible(least)
            self._start(least.draft)
        return self._solution()

    def _look(self, starts: tuple[Schedule, ...]) -> None:
        """Look for schedules and bounds until a limit ends it."""
        for schedule in starts:
            self._start(Draft.of(self.stages, schedule))
        self.deadline = self.limits.seconds * _FIRST_SHARE
        self._first()
        self.deadline = self.limits.seconds
        if self.best is not None and not self._ended():
            self._found(self.search.exchanged(self.best))
            self._found(self.search.spread(self.best))
        program = self._program()
        small = program is not None and program.model.variables <= _EXACT_VARIABLES
        if program is not None and small:
            self._exact(program)
        else:
            self._coarse()
        if self.best is None:
            self._persist()
        if self.best is None:
            return
        if not small:
            self._improve(_EARLY_SHARE)
        if program is not None and not small and not self._ended():
            self._relax(program)
        if not small:
            self._intervals()
        self._improve(1.0)
        self._refine()

    def _improve(self, share: float) -> None:
        """Search at random until a share of the time is over, or of the rounds."""
        until, rounds = share * self.limits.seconds, round(share * self.limits.rounds)

        def over() -> bool:
            return self._ended() or self._seconds() >= until

        if self.best is not None and not over():
            self.search.improve(self.best, rounds, over, self._found)

    def _refine(self) -> None:
        """Search on for a moment where the gap ended the work: it may be much of the overhead."""
        if self.best is None or self.stop is not Stop.DONE:
            return
        until = self._seconds() + _REFINED_SHARE * self.limits.seconds

        def over() -> bool:
            interrupted = self.interrupt is not None and self.interrupt()
            return interrupted or self._gap() <= _TIGHT or self._seconds() >= until

        self.search.improve(self.best, _REFINED_ROUNDS, over, self._found)

    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _left(self) -> float:
        return max(0.0, self.deadline - self._seconds())

    def _bound_left(self) -> float:
        """Return the time for a relaxation, so that a search follows it on a slow machine, too."""
        return min(self.limits.bound_seconds, self._left() * _BOUND_SHARE)

    def _stopped(self) -> bool:
        """Return whether a limit or an interrupt ends the work at hand."""
        return not self._left() or (self.interrupt is not None and self.interrupt())

    def _ended(self) -> bool:
        if self.interrupt is not None and self.interrupt():
            self.stop = Stop.INTERRUPT
            return True
        if self.best is not None and self._gap() <= self.limits.gap:
            self.stop = Stop.DONE
            return True
        self.stop = Stop.TIME
        return not self._left()

    def _gap(self) -> float:
        assert self.best is not None
        return (self.best.time_us - self.bound) / max(self.best.time_us, _TIGHT)

    def _found(self, trial: SimulatedDraft) -> None:
        """Keep a schedule if it fits and is the fastest so far."""
        if trial.excess or (self.best is not None and trial.time_us >= self.best.time_us):
            return
        self.best = trial
        self._report()

    def _report(self) -> None:
        if self.progress is not None and self.best is not None:
            self.progress(
                SolveProgress(
                    incumbent_us=self.best.time_us, bound_us=self.bound, seconds=self._seconds()
                )
            )

    def _start(self, draft: Draft, noise: float = 0.0) -> None:
        trial = self.search.evaluator.try_(draft)
        if trial is not None:
            trial = self.search.repair(trial, noise)
            self._found(trial)
            if not trial.excess:
                self._found(self.search.polish(trial))

    def _first(self) -> None:
        """Search from the plain run, and from checkpoints of equal blocks and of square roots.

        Where plain memory is too much the latter come first: they are near a schedule at once.
        """
        plain = Draft.plain(self.stages)
        trial = self.search.evaluator.try_(plain)
        if trial is not None and not trial.excess:
            self._start(plain)
        for schedule in self._checkpoints():
            self._start(Draft.of(self.stages, schedule))
        for noise in _NOISES:
            if self._ended():
                return
            self._start(plain, noise)

    def _checkpoints(self) -> Iterator[Schedule]:
        """Yield schedules that store little, until the time is over."""
        names = [block.name for blocks in self.search.repeated for block in blocks]
        if names and not self._ended():
            yield block_schedule(self.graph, names)
        count = int(len(self.stages.forward) ** 0.5)
        for segments in sorted({max(1, count // 2), count, 2 * count}):
            if self._ended():
                return
            yield sqrt_schedule(self.graph, segments)

    def _persist(self) -> None:
        """Search with more disturbance until the time is over."""
        for _ in range(self.limits.rounds):
            if self.best is not None or self._ended() or self.bound == float("inf"):
                return
            self._start(Draft.plain(self.stages), noise=2.0)

    def _program(self) -> StepProgram | None:
        """Return the exact program, unless the work is done or it is too large to be relaxed."""
        cells = self.stages.count * len(self.stages.forward)
        if cells > _RELAXED_CELLS or self._ended():
            return None
        return exact_program(self.graph, self.budget)

    def _coarse(self) -> None:
        """Solve small relaxations: bounds, and storages to keep."""
        for parts in _PARTS:
            if self._ended() or not self._bound_left():
                return
            coarse = coarse_program(self.graph, self.budget, parts)
            found = self._solved(coarse.model, self._bound_left(), "simplex")
            if found is None:
                continue
            if found.proved is Proved.INFEASIBLE:
                self.bound = float("inf")
                return
            if found.duals is not None:
                self._raise_bound(coarse.model.dual_bound(found.duals))
            if found.values is not None:
                self._round(coarse, found.values)

    def _round(self, coarse: CoarseProgram, values: np.ndarray) -> None:
        """Start from the storages that a small relaxation keeps after the forward pass."""
        choice = coarse.choice(self.graph, values)
        for threshold in _THRESHOLDS:
            if self._ended():
                return
            kept = [each for each, number in coarse.kept.items() if values[number] >= threshold]
            schedule = keep_schedule(self.graph, kept, choice)
            self._start(Draft.of(self.stages, schedule))

    def _exact(self, program: StepProgram) -> None:
        """Solve the exact program, from the best schedule so far."""
        found = self._solved(program.model, self._left() * _EXACT_SHARE, "choose")
        if found is None:
            return
        if found.values is not None:
            self._start(Draft.of(self.stages, program.schedule(found.values)))
        self._raise_bound(found.bound)

    def _relax(self, program: StepProgram) -> None:
        """Solve the relaxation: its multipliers prove a bound, its values are rounded."""
        relaxed = replace(program, model=program.model.relaxed())
        limit = self._bound_left()
        found = self._solved(relaxed.model, limit, "ipm") if limit else None
        if found is None:
            return
        if found.duals is not None:
            self._raise_bound(relaxed.model.dual_bound(found.duals))
        if found.values is None:
            return
        for threshold in _THRESHOLDS:
            if self._ended():
                return
            self._start(rounded_draft(self.stages, program, found.values, threshold))

    def _intervals(self) -> None:
        """Let CP-SAT improve the best schedule."""
        if self._ended() or self.best is None or not self.limits.interval_work:
            return
        parameters = Parameters(
            deterministic=self.limits.interval_work,
            limit_s=self._left(),
            gap=self.limits.gap,
            seed=self.seed,
            threads=_THREADS,
            interrupt=self.interrupt,
        )
        draft = improved(self.stages, self.budget, self.best, parameters)
        if draft is not None:
            self._start(draft)

    def _solved(self, model: LinearModel, limit_s: float, method: str) -> Result | None:
        try:
            return solve_model(
                model,
                Parameters(
                    limit_s=limit_s,
                    gap=self.limits.gap,
                    seed=self.seed,
                    method=method,
                    interrupt=self.interrupt,
                ),
            )
        except ModelError:
            return None

    def _raise_bound(self, bound: float) -> None:
        if bound > self.bound:
            self.bound = bound
            self._report()

    def _refuse_impossible(self, starts: tuple[Schedule, ...]) -> None:
        needed, operator = least_bytes(self.stages)
        if needed > self.budget:
            raise self._infeasible(
                self._least(starts),
                f"operator '{self.graph.operators[operator].name}' alone needs {size(needed)}",
            )

    def _infeasible(self, trial: SimulatedDraft, why: str = "") -> BudgetError:
        """Return the error that names the least budget, that of a trial above the budget."""
        least, step = trial.found.peak_bytes, trial.found.peak_step
        name = self.graph.operators[int(trial.operator[step])].name
        module = self.graph.operators[int(trial.operator[step])].module
        held = f"at operator '{name}'" + (f" of module '{module}'" if module else "")
        if not why:
            why = f"the least that one was found for is held up {held}"
        there = [self.graph.storages[each] for each in trial.found.storages_at(step)]
        largest = sorted(there, key=lambda each: each.nbytes, reverse=True)[:_NAMED]
        parts = [f"{size(self.graph.resident_bytes)} resident"]
        parts += [f"{size(each.nbytes)} of '{each.name}'" for each in largest]
        return BudgetError(
            f"no schedule fits a budget of {size(self.budget)}: {why}; the least with a known "
            f"schedule is {size(least)} ({least} bytes), {held}: {', '.join(parts)}"
            + (f" and {len(there) - _NAMED} smaller" if len(there) > _NAMED else ""),
            least_bytes=least,
            schedule=trial.draft.schedule(),
        )

    def _least(self, starts: tuple[Schedule, ...]) -> SimulatedDraft:
        """Return the draft with the least peak, by bisection from the starts down to the budget."""
        drafts = (Draft.plain(self.stages), *(Draft.of(self.stages, start) for start in starts))
        trials = filter(None, map(self.search.evaluator.try_, drafts))
        best, low = min(trials, key=lambda trial: trial.found.peak_bytes), self.budget
        self.deadline = self._seconds() + max(_LEAST_S, _LEAST_SHARE * self.limits.seconds)
        for _ in range(_BISECTIONS):
            if self._stopped() or best.found.peak_bytes <= self.budget:
                break
            middle = (low + best.found.peak_bytes) // 2
            search = Search(self.stages, middle, self.seed, self._stopped)
            start = search.evaluator.try_(best.draft)
            assert start is not None
            trial = search.repair(start)
            if trial.found.peak_bytes < best.found.peak_bytes:
                best = trial
            if trial.excess:
                low = middle
        return best

    def _solution(self) -> Solution:
        assert self.best is not None
        schedule = self.best.draft.schedule()
        proof = verify(self.graph, schedule, self.budget)
        self._ended()
        return Solution(
            schedule=schedule,
            peak_bytes=proof.peak_bytes,
            time_us=proof.time_us,
            bound_us=min(self.bound, proof.time_us),
            stop=self.stop,
            seconds=self._seconds(),
        )


@dataclass(frozen=True, slots=True)
class _Useful:
    """Some of the implementations of each operator: `ways` has their numbers in the whole graph."""

    ways: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: Graph) -> "_Useful":
        """Return the first ones and those that are not like it at no less cost."""

        def kept(first: Implementation, other: Implementation) -> bool:
            return (
                (other.reads, other.creates, other.overwrites)
                != (first.reads, first.creates, first.overwrites)
                or other.time_us < first.time_us
                or other.workspace_bytes < first.workspace_bytes
            )

        return cls(
            tuple(
                (0, *(n for n, way in enumerate(ways) if n and kept(ways[0], way)))
                for ways in (each.implementations for each in graph.operators)
            )
        )

    def graph(self, whole: Graph) -> Graph:
        """Return the graph with these implementations alone."""
        return replace(
            whole,
            operators=tuple(
                replace(each, implementations=tuple(each.implementations[way] for way in ways))
                for each, ways in zip(whole.operators, self.ways, strict=True)
            ),
        )

    def narrowed(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the whole graph, with first implementations for those left out."""
        kept = [{way: number for number, way in enumerate(ways)} for ways in self.ways]
        steps = (
            Step(each.operator, kept[each.operator].get(each.implementation, 0))
            for each in schedule.steps
        )
        return replace(schedule, steps=tuple(steps))

    def widened(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the narrow graph as one of the whole."""
        steps = tuple(
            Step(step.operator, self.ways[step.operator][step.implementation])
            for step in schedule.steps
        )
        return replace(schedule, steps=steps)


def least_bytes(stages: Stages) -> tuple[int, int]:
    """Return a bound of what every schedule needs, and the operator that needs it.

    Each operator runs at least once, by some implementation, with its operands there.
    """
    graph, kept = stages.graph, 0
    most, where = graph.resident_bytes, 0
    for operator in range(len(graph.operators)):
        stage = max(0, operator - graph.forward_count + 1)
        held = stages.entering_bytes[stage] + (kept if not stage else 0)
        ways = stages.ways(operator)
        least = min(stages.run_bytes(way) + stages.nbytes(stages.reads(way)) for way in ways)
        if held + least > most:
            most, where = held + least, operator
        kept += stages.nbytes({each for way in ways for each in way.creates} & stages.kept)
    return most, where


def rounded_draft(
    stages: Stages, program: StepProgram, values: np.ndarray, threshold: float
) -> Draft:
    """Return the draft with the runs of at least a threshold in a solution of the relaxation.

    Of the implementations of a run the one of most weight; an implementation in place only where it
    is chosen wholly.
    """
    draft = Draft.plain(stages)
    for (stage, operator), runs in program.runs.of.items():
        weights = {run.implementation: float(values[number]) for run, number in runs}
        if stage and operator in stages.forward and sum(weights.values()) < threshold:
            continue
        ways = stages.ways(operator)
        apart = {
            way: weight
            for way, weight in weights.items()
            if ways[way].overwrites is None or weight > 1 - 1e-6
        }
        chosen = max(apart or weights, key=lambda way: weights[way])
        if operator not in stages.forward:
            draft.backward[stage - 1] = chosen
        elif stage:
            draft.again[stage][operator] = chosen
        else:
            draft.forward[operator] = chosen
    return draft
