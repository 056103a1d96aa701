"""From a training step and a budget to the fastest schedule known, with its certificate.

The work is done in phases (`headrace.memory.plan.phases`), on the implementations that can be of
use (`headrace.memory.plan.implementations`). Where no schedule fits, the error has the least budget
that one is known for (`headrace.memory.plan.infeasible`).
"""

from collections.abc import Callable
from dataclasses import replace

from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.implementations import UsefulImplementations
from headrace.memory.plan.incumbent import Incumbent
from headrace.memory.plan.infeasible import infeasible, least_draft, refuse_impossible
from headrace.memory.plan.phases import PHASES, Phase, run_phases
from headrace.memory.plan.solution import Solution, SolveLimits, SolveProgress
from headrace.memory.schedule import Schedule


def solve_schedule(
    graph: Graph,
    budget_bytes: int,
    engine: ScheduleEngine,
    *,
    limits: SolveLimits | None = None,
    seed: int = 0,
    progress: Callable[[SolveProgress], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    starts: tuple[Schedule, ...] = (),
    phases: tuple[Phase, ...] = PHASES,
) -> Solution:
    """Return the fastest schedule found within a budget.

    Parameters
    ----------
    engine : the local search, such as `headrace._native.ScheduleSearch`.
    progress : called with every faster schedule and better bound.
    interrupt : polled; true ends the search with the best schedule so far.
    starts : schedules to start from, such as those of another budget.
    phases : parts of the work, in their order.

    Raises
    ------
    BudgetError : if no schedule is found, with the least budget that one is found for, and the step
        that needs it.
    """
    useful = UsefulImplementations.of(graph)
    solve = Incumbent(
        graph=useful.graph(graph),
        budget=budget_bytes,
        engine=engine,
        limits=limits or SolveLimits(),
        seed=seed,
        progress=progress,
        interrupt=interrupt,
    )
    try:
        solution = _solved(solve, tuple(map(useful.narrowed, starts)), phases)
    except BudgetError as error:
        if error.schedule is not None:
            error.schedule = useful.widened(error.schedule)
        raise
    return replace(solution, schedule=useful.widened(solution.schedule))


def _solved(solve: Incumbent, starts: tuple[Schedule, ...], phases: tuple[Phase, ...]) -> Solution:
    refuse_impossible(solve, starts)
    for schedule in starts:
        solve.start(Draft.of(solve.stages, schedule))
    run_phases(solve, phases)
    if solve.best is None:
        if solve.interrupted():
            raise BudgetError("interrupted before a schedule within the budget was found")
        least = least_draft(solve, starts)
        if least.peak_bytes > solve.budget:
            raise infeasible(solve, least)
        solve.start(least.draft)
    return solve.solution()
