"""From a profile and a budget to a plan."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import InputError
from headrace.memory.errors import BudgetError
from headrace.memory.plan.effort import SolveEffort
from headrace.memory.plan.energy import in_microjoules
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solution import SolveLimits, SolveProgress
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import Schedule
from headrace.units import MOST_BYTES, parse_size, size

LIMITS = {
    SolveEffort.QUICK: SolveLimits(seconds=20.0, bound_seconds=10.0, interval_work=4.0, gap=0.02),
    SolveEffort.NORMAL: SolveLimits(),
    SolveEffort.THOROUGH: SolveLimits(
        seconds=1800.0, bound_seconds=900.0, interval_work=200.0, rounds=1_000_000, gap=0.001
    ),
}
"""Limits of a solve, by effort."""


def parse_budget(budget: int | str, whole_bytes: int | None = None) -> int:
    """Return the bytes of a budget: a number of bytes, "6GiB", or a share of the device, "80%".

    Parameters
    ----------
    whole_bytes : memory of the device; None: shares are refused.

    Raises
    ------
    BudgetError : for anything else.
    """
    if isinstance(budget, int) and not isinstance(budget, bool):
        if not 0 < budget <= MOST_BYTES:
            raise BudgetError(
                f"budget is {budget} bytes, needs more than 0 and at most {size(MOST_BYTES)}"
            )
        return budget
    if not isinstance(budget, str):
        raise BudgetError(f"budget is {budget!r}, needs bytes or a text such as 6GiB")
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", budget)
    if share:
        if whole_bytes is None:
            raise BudgetError(f"budget is {budget!r}, needs bytes: the device's memory is unknown")
        if not 0 < float(share[1]) <= 100:
            raise BudgetError(f"budget is {budget!r}, needs more than 0% and at most 100%")
        return parse_budget(int(float(share[1]) / 100 * whole_bytes))
    if re.fullmatch(r"\s*\d+\.\d*[1-9]\d* ?B?\s*", budget):
        raise BudgetError(f"budget is {budget!r}, needs whole bytes, or a unit such as GiB")
    try:
        nbytes = parse_size(budget, "budget")
    except InputError as error:
        raise BudgetError(str(error)) from None
    return parse_budget(nbytes)


def make_plan(
    profile: MemoryProfile,
    budget_bytes: int,
    engine: ScheduleEngine,
    *,
    effort: SolveEffort = SolveEffort.NORMAL,
    seed: int = 0,
    progress: Callable[[SolveProgress], None] | None = None,
    interrupt: Callable[[], bool] | None = None,
    starts: tuple[Schedule, ...] = (),
    watts: Mapping[str, float] | None = None,
) -> MemoryPlan:
    """Return the plan of the fastest schedule found within a budget; see `solve_schedule`.

    Parameters
    ----------
    engine : of the local search, such as `headrace._native.ScheduleSearch`.
    watts : by kind of operator, see `headrace.memory.plan.energy`: the plan then has the least
        energy in place of the least time.

    Raises
    ------
    BudgetError : no schedule is found; it has the least budget that one is found for.
    """
    settings: dict[str, Any] = {"effort": str(effort), "seed": seed}
    solution = solve_schedule(
        profile.graph if watts is None else in_microjoules(profile.graph, watts),
        budget_bytes,
        engine,
        limits=LIMITS[effort],
        seed=seed,
        progress=progress,
        interrupt=interrupt,
        starts=starts,
    )
    time_us, bound_us = solution.time_us, solution.bound_us
    if watts is not None:
        settings |= {"watts": dict(watts), "energy_bound_uj": solution.bound_us}
        time_us, bound_us = verify(profile.graph, solution.schedule).time_us, 0.0
    return MemoryPlan(
        profile=profile,
        budget_bytes=budget_bytes,
        schedule=solution.schedule,
        peak_bytes=solution.peak_bytes,
        time_us=time_us,
        bound_us=bound_us,
        settings=settings,
        provenance={"stop": str(solution.stop), "seconds": round(solution.seconds, 2)},
    )
