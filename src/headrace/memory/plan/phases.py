"""Phases of a solve, in their order, each with its share of the time.

Small steps are solved by the exact program. For others a local search finds schedules
(`headrace.memory.plan.search`); relaxations bound their times, first small ones
(`headrace.memory.plan.coarse`), then where it is not too large that of the exact program; and the
solutions of these, rounded, are where the search starts again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.memory.plan.baselines import block_schedule, keep_schedule, sqrt_schedule
from headrace.memory.plan.coarse import CoarseProgram, coarse_program
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.incumbent import Incumbent
from headrace.memory.plan.intervals import improved
from headrace.memory.plan.liveness import exact_program
from headrace.memory.plan.program import StepProgram
from headrace.memory.plan.solution import TIGHT
from headrace.memory.plan.stages import Stages
from headrace.memory.schedule import Schedule
from headrace.solver import Parameters, Proved, Stop

_EXACT_VARIABLES = 3000
"""Largest program that is solved as it is: minutes for more, in HiGHS."""
_RELAXED_CELLS = 10_000
"""Most stages times forward operators of a relaxed exact program: seconds, at 40,000 minutes."""
_PARTS = (4, 16)
"""Stages that the small relaxations look at."""
_EXACT_SHARE = 0.5
"""Share of the time left for the exact program, after which the search takes over."""
_BOUND_SHARE = 0.7
"""Largest share of the time left for one relaxation, so that a search follows it on a slow machine,
too."""
_REFINED_ROUNDS = 2000
_THRESHOLDS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9)
"""Values of the relaxation above which a run is taken into a rounded schedule."""
_IN_PLACE_WEIGHT = 1 - 1e-6
"""Weight of an implementation in place that is chosen entirely."""
_NOISES = (0.0, 0.3, 0.3, 1.0, 1.0)
"""Disturbances of the starts from the plain run; see `Search.repair`."""
_PERSISTENT_NOISE = 2.0
_THREADS = 2
"""Of CP-SAT: interleaved, so that results do not depend on timing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One part of a solve.

    Attributes
    ----------
    share : of the limit of time, at whose end the phase ends; of the limit of rounds, too.
    run : function of the solve and the share; it does nothing where it does not apply.
    """

    name: str
    share: float
    run: Callable[[Incumbent, float], None]


def _first_schedules(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Search from the plain run, and from checkpoints of equal blocks and of square roots.

    Where plain memory is too much the latter come first: they are near a schedule at once.
    """
    plain = Draft.plain(solve.stages)
    trial = solve.search.simulated(plain)
    if trial is not None and not trial.excess:
        solve.start(plain)
    for schedule in _checkpoints(solve):
        solve.start(Draft.of(solve.stages, schedule))
    for noise in _NOISES:
        if solve.ended():
            return
        solve.start(plain, noise)


def _checkpoints(solve: Incumbent) -> Iterator[Schedule]:
    """Yield schedules that store little, until the time is over."""
    names = [block.name for blocks in solve.search.repeated for block in blocks]
    if names and not solve.ended():
        yield block_schedule(solve.graph, names)
    count = int(len(solve.stages.forward) ** 0.5)
    for segments in sorted({max(1, count // 2), count, 2 * count}):
        if solve.ended():
            return
        yield sqrt_schedule(solve.graph, segments)


def _exchanges(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Exchange implementations that are faster together, and make equal blocks alike."""
    if solve.best is not None and not solve.ended():
        solve.offer(solve.search.exchanged(solve.best))
        solve.offer(solve.search.spread(solve.best))


def _exact_program(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Build the exact program unless it is too large to be relaxed; solve it if it is small."""
    cells = solve.stages.count * len(solve.stages.forward)
    if cells > _RELAXED_CELLS or solve.ended():
        return
    solve.program = exact_program(solve.graph, solve.budget)
    if not _is_small(solve):
        return
    solution = solve.solved(solve.program.model, solve.seconds_left() * _EXACT_SHARE, "choose")
    if solution is None:
        return
    if solution.values is not None:
        solve.start(Draft.of(solve.stages, solve.program.schedule(solution.values)))
    solve.raise_bound(solution.bound)


def _is_small(solve: Incumbent) -> bool:
    """Return whether the exact program is solved, so that relaxations tell nothing more."""
    return solve.program is not None and solve.program.model.variables <= _EXACT_VARIABLES


def _bound_seconds(solve: Incumbent) -> float:
    return min(solve.limits.bound_seconds, solve.seconds_left() * _BOUND_SHARE)


def _coarse_relaxations(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Solve small relaxations: bounds, and storages to keep."""
    for parts in () if _is_small(solve) else _PARTS:
        if solve.ended() or not _bound_seconds(solve):
            return
        coarse = coarse_program(solve.graph, solve.budget, parts)
        relaxed = solve.solved(coarse.model, _bound_seconds(solve), "simplex")
        if relaxed is None:
            continue
        if relaxed.proved is Proved.INFEASIBLE:
            solve.bound_us = float("inf")
            return
        if relaxed.duals is not None:
            solve.raise_bound(coarse.model.dual_bound(relaxed.duals))
        if relaxed.values is not None:
            _start_keeping(solve, coarse, relaxed.values)


def _start_keeping(solve: Incumbent, coarse: CoarseProgram, values: np.ndarray) -> None:
    """Start from the storages that a small relaxation keeps after the forward pass."""
    choice = coarse.choice(solve.graph, values)
    for threshold in _THRESHOLDS:
        if solve.ended():
            return
        storages = [
            storage for storage, number in coarse.stored.items() if values[number] >= threshold
        ]
        schedule = keep_schedule(solve.graph, storages, choice)
        solve.start(Draft.of(solve.stages, schedule))


def _persistence(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Search with more disturbance until there is a schedule."""
    for _ in range(solve.limits.rounds):
        if solve.best is not None or solve.ended() or solve.bound_us == float("inf"):
            return
        solve.start(Draft.plain(solve.stages), noise=_PERSISTENT_NOISE)


def _early_search(solve: Incumbent, share: float) -> None:
    """Search at random before the larger programs."""
    if not _is_small(solve):
        _search(solve, share)


def _search(solve: Incumbent, share: float) -> None:
    """Search at random until the time is over, or the rounds."""
    if solve.best is not None and not solve.ended():
        rounds = round(share * solve.limits.rounds)
        solve.search.improve(solve.best, rounds, solve.ended, solve.offer)


def _relaxation(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Solve the exact program's relaxation: its duals prove a bound, its values are rounded."""
    if solve.best is None or solve.program is None or _is_small(solve) or solve.ended():
        return
    model, limit_s = solve.program.model.relaxed(), _bound_seconds(solve)
    relaxed = solve.solved(model, limit_s, "ipm") if limit_s else None
    if relaxed is None:
        return
    if relaxed.duals is not None:
        solve.raise_bound(model.dual_bound(relaxed.duals))
    if relaxed.values is None:
        return
    for threshold in _THRESHOLDS:
        if solve.ended():
            return
        solve.start(rounded_draft(solve.stages, solve.program, relaxed.values, threshold))


def _intervals(solve: Incumbent, share: float) -> None:  # noqa: ARG001
    """Let CP-SAT improve the best schedule."""
    if solve.best is None or _is_small(solve) or solve.ended() or not solve.limits.interval_work:
        return
    parameters = Parameters(
        deterministic=solve.limits.interval_work,
        limit_s=solve.seconds_left(),
        gap=solve.limits.gap,
        seed=solve.seed,
        threads=_THREADS,
        interrupt=solve.interrupt,
    )
    draft = improved(solve.stages, solve.budget, solve.best, parameters)
    if draft is not None:
        solve.start(draft)


def _refinement(solve: Incumbent, share: float) -> None:
    """Search on for a moment where the gap ended the work: it may be much of the overhead."""
    if solve.best is None or solve.stop is not Stop.DONE:
        return
    end = solve.seconds() + share * solve.limits.seconds

    def is_over() -> bool:
        return solve.interrupted() or solve.gap() <= TIGHT or solve.seconds() >= end

    solve.search.improve(solve.best, _REFINED_ROUNDS, is_over, solve.offer)


PHASES = (
    # Before there is a bound: most steps have a good schedule by then, and the rest of the time is
    # needed for bounds.
    Phase(name="first schedules", share=0.25, run=_first_schedules),
    Phase(name="exchanges", share=1.0, run=_exchanges),
    Phase(name="exact program", share=1.0, run=_exact_program),
    Phase(name="coarse relaxations", share=1.0, run=_coarse_relaxations),
    Phase(name="persistence", share=1.0, run=_persistence),
    # Searching at random gains more than the larger programs from the same time.
    Phase(name="early search", share=0.75, run=_early_search),
    Phase(name="relaxation", share=1.0, run=_relaxation),
    Phase(name="intervals", share=1.0, run=_intervals),
    Phase(name="search", share=1.0, run=_search),
    # Beyond the end, where the gap is reached: most of the time that it may take.
    Phase(name="refinement", share=0.1, run=_refinement),
)
"""All phases; ``benchmarks/memory/run.py --only phases`` measures what each is worth."""


def run_phases(solve: Incumbent, phases: tuple[Phase, ...] = PHASES) -> None:
    """Look for schedules and bounds until a limit ends it."""
    for phase in phases:
        solve.deadline = phase.share * solve.limits.seconds
        phase.run(solve, phase.share)
    solve.deadline = solve.limits.seconds


def rounded_draft(
    stages: Stages, program: StepProgram, values: np.ndarray, threshold: float
) -> Draft:
    """Return the draft with the runs of at least a threshold in a solution of the relaxation.

    Of the implementations of a run that of most weight; an implementation in place only where it is
    chosen entirely.
    """
    draft = Draft.plain(stages)
    for (stage, operator), runs in program.runs.of.items():
        weights = {run.implementation: float(values[number]) for run, number in runs}
        if stage and operator in stages.forward and sum(weights.values()) < threshold:
            continue
        implementations = stages.ways(operator)
        usable = {
            number: weight
            for number, weight in weights.items()
            if implementations[number].overwrites is None or weight > _IN_PLACE_WEIGHT
        }
        heaviest = max(usable or weights, key=lambda number: weights[number])
        if operator not in stages.forward:
            draft.backward[stage - 1] = heaviest
        elif stage:
            draft.again[stage][operator] = heaviest
        else:
            draft.forward[operator] = heaviest
    return draft
