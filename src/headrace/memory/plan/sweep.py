"""Plans of one step for several budgets, each of which starts from the schedules of others."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace.memory.errors import BudgetError
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.make import make_plan
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solve import SolveProgress
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import Schedule


def sweep(
    profile: MemoryProfile,
    budgets: Iterable[int],
    *,
    effort: SolveEffort = SolveEffort.NORMAL,
    seed: int = 0,
    progress: Callable[[int, SolveProgress], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    starts: tuple[Schedule, ...] = (),
    watts: Mapping[str, float] | None = None,
) -> dict[int, MemoryPlan | BudgetError]:
    """Return a plan for each budget in bytes, the largest first; the error where none is found.

    A plan is never slower than that of a smaller budget, whose schedule fits too.

    Parameters
    ----------
    progress : called with the budget and the state of its solve.
    interrupt : polled; true ends the search, with the best schedule of the budget that is solved.
    watts : as for `make_plan`; a plan then never needs more energy than that of a smaller budget.
    """
    found: dict[int, MemoryPlan | BudgetError] = {}
    for budget in sorted(set(budgets), reverse=True):
        if found and interrupt is not None and interrupt():
            found[budget] = BudgetError("interrupted before this budget's turn")
            continue
        earlier = tuple(each.schedule for each in found.values() if isinstance(each, MemoryPlan))
        try:
            found[budget] = make_plan(
                profile,
                budget,
                effort=effort,
                seed=seed,
                progress=progress and (lambda state, at=budget: progress(at, state)),
                interrupt=interrupt,
                starts=(*starts, *earlier),
                watts=watts,
            )
        except BudgetError as error:
            found[budget] = error
    return _monotone(found)


def _monotone(
    found: Mapping[int, MemoryPlan | BudgetError],
) -> dict[int, MemoryPlan | BudgetError]:
    """Give each budget the best of all schedules that fit it."""
    plans = [each for each in found.values() if isinstance(each, MemoryPlan)]
    best: dict[int, MemoryPlan | BudgetError] = {}
    for budget, own in found.items():
        fitting = [each for each in plans if each.peak_bytes <= budget]
        other = min(fitting, key=lambda each: each.cost, default=None)
        if other is None or (isinstance(own, MemoryPlan) and own.cost <= other.cost):
            best[budget] = own
            continue
        if isinstance(own, MemoryPlan):
            best[budget] = replace(
                own, schedule=other.schedule, peak_bytes=other.peak_bytes, time_us=other.time_us
            )
        else:  # no bound is known
            best[budget] = other.of_schedule(other.schedule, budget)
    return best
