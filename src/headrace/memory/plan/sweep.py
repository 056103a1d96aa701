"""Plans of one step for several budgets, each of which starts from the schedules of others."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from headrace.memory.errors import BudgetError
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.make import make_plan
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solution import SolveProgress
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import Schedule
from headrace.units import size


def sweep(
    profile: MemoryProfile,
    budgets: Iterable[int],
    engine: ScheduleEngine,
    *,
    effort: SolveEffort = SolveEffort.NORMAL,
    seed: int = 0,
    progress: Callable[[int, SolveProgress], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    starts: tuple[Schedule, ...] = (),
    watts: Mapping[str, float] | None = None,
) -> dict[int, MemoryPlan | BudgetError]:
    """Return a plan for each budget in bytes, the largest first; the error where none is found.

    A plan is never slower than that of a smaller budget, whose schedule fits too. The least budget
    that an error names is that of all searches.

    Parameters
    ----------
    engine : of the local search, such as `headrace._native.ScheduleSearch`.
    progress : called with the budget and the state of its solve.
    interrupt : polled; true ends the search, with the best schedule of the budget that is solved.
    watts : as for `make_plan`; a plan then never needs more energy than that of a smaller budget.
    """

    def plan_of(budget: int, starts: tuple[Schedule, ...]) -> MemoryPlan | BudgetError:
        try:
            return make_plan(
                profile,
                budget,
                engine,
                effort=effort,
                seed=seed,
                progress=None if progress is None else partial(progress, budget),
                interrupt=interrupt,
                starts=starts,
                watts=watts,
            )
        except BudgetError as error:
            return error

    results: dict[int, MemoryPlan | BudgetError] = {}
    for budget in sorted(set(budgets), reverse=True):
        if results and interrupt is not None and interrupt():
            results[budget] = BudgetError("interrupted before this budget's turn")
            continue
        earlier = [result.schedule for result in results.values()]
        results[budget] = plan_of(budget, (*starts, *filter(None, earlier)))
    return _monotone(with_common_least(results, plan_of))


def with_common_least(
    results: Mapping[int, MemoryPlan | BudgetError],
    plan_of: Callable[[int, tuple[Schedule, ...]], MemoryPlan | BudgetError],
) -> dict[int, MemoryPlan | BudgetError]:
    """Give each error the least budget of all searches, or its schedule where that fits.

    Parameters
    ----------
    plan_of : budget and schedules to start from -> plan, or the error.
    """
    least = {
        result.peak_bytes if isinstance(result, MemoryPlan) else result.least_bytes: result.schedule
        for result in results.values()
        if result.schedule is not None
    }
    least_bytes = min((nbytes for nbytes in least if nbytes is not None), default=None)
    schedule = least.get(least_bytes)
    common = dict(results)
    if least_bytes is None or schedule is None:
        return common
    for budget, result in results.items():
        own = result.least_bytes if isinstance(result, BudgetError) else None
        if own is None or own <= least_bytes:
            continue
        common[budget] = (
            plan_of(budget, (schedule,))
            if least_bytes <= budget
            else BudgetError(
                f"no schedule fits a budget of {size(budget)}: the least with a known schedule, by "
                f"the searches of all budgets, is {size(least_bytes)} ({least_bytes} bytes)",
                least_bytes=least_bytes,
                schedule=schedule,
            )
        )
    return common


def _monotone(
    results: Mapping[int, MemoryPlan | BudgetError],
) -> dict[int, MemoryPlan | BudgetError]:
    """Give each budget the best of all schedules that fit it."""
    plans = [plan for plan in results.values() if isinstance(plan, MemoryPlan)]
    best: dict[int, MemoryPlan | BudgetError] = {}
    for budget, own in results.items():
        fitting = [plan for plan in plans if plan.peak_bytes <= budget]
        best_plan = min(fitting, key=lambda plan: plan.cost, default=None)
        if best_plan is None or (isinstance(own, MemoryPlan) and own.cost <= best_plan.cost):
            best[budget] = own
            continue
        if isinstance(own, MemoryPlan):
            best[budget] = replace(
                own,
                schedule=best_plan.schedule,
                peak_bytes=best_plan.peak_bytes,
                time_us=best_plan.time_us,
            )
        else:  # no bound is known
            best[budget] = best_plan.of_schedule(best_plan.schedule, budget)
    return best
