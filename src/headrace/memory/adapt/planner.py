"""Plans of a captured training step: read from the cache, or measured and planned."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from headrace._native import ScheduleSearch
from headrace.fields import Field
from headrace.memory.adapt.cache import PlanKey, StepCache, cached_costs, conditions
from headrace.memory.adapt.options import StepOptions
from headrace.memory.errors import BudgetError
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.eager import StepArguments
from headrace.memory.measure.step import device_of, profile_step, unmeasured_profile
from headrace.memory.measure.timing import Cost
from headrace.memory.plan.energy import read_watts
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solution import SolveProgress
from headrace.memory.plan.sweep import sweep
from headrace.memory.profile import MemoryProfile
from headrace.notebook import progress_line
from headrace.units import size


class StepPlanner:
    """Plans of one model's training steps for several budgets.

    Raises
    ------
    InputError : `options.watts` are malformed.
    """

    def __init__(self, model: nn.Module, options: StepOptions) -> None:
        self._model, self._options = model, options
        self._cache = StepCache.of_user() if options.cache else StepCache(None)
        self._watts = None if options.watts is None else read_watts(Field(options.watts, "watts"))
        self._costs: dict[str, Cost] = {}
        self._sample: StepArguments | None = None

    @contextmanager
    def measuring_eager(self, sample: StepArguments) -> Generator[None]:
        """Measure eager's own step for the profiles of plans that are made within the block."""
        self._sample = sample
        try:
            yield
        finally:
            self._sample = None  # which is a batch of the user's

    def step_of(self, captured: Capture) -> MemoryProfile:
        """Return the profile of a captured step, with all costs 0."""
        return unmeasured_profile(self._model, captured, self._options.conditions)

    def plan(
        self, captured: Capture, step: MemoryProfile, budgets: Sequence[int]
    ) -> dict[int, MemoryPlan | BudgetError]:
        """Return a plan for each budget in bytes, or the error where no schedule fits.

        Parameters
        ----------
        step : profile of the captured step without costs; see `step_of`.
        """
        measured_under = conditions(device_of(self._model))
        keys = {budget: self._key(step, measured_under, budget) for budget in budgets}
        stored = {budget: self._cache.find_plan(key) for budget, key in keys.items()}
        plans: dict[int, MemoryPlan | BudgetError] = {
            budget: plan for budget, plan in stored.items() if plan is not None
        }
        missing = [budget for budget in budgets if budget not in plans]
        starts = [plan for plan in stored.values() if plan is not None]
        for budget, planned in self._solve(captured, missing, starts).items():
            plans[budget] = planned
            if isinstance(planned, MemoryPlan):
                self._cache.save_plan(keys[budget], planned)
        return plans

    def _key(self, step: MemoryProfile, measured_under: Mapping[str, str], budget: int) -> PlanKey:
        return PlanKey(
            step=step,
            conditions=measured_under,
            budget_bytes=budget,
            effort=self._options.effort,
            seed=self._options.seed,
            watts=self._watts,
        )

    def _solve(
        self, captured: Capture, budgets: Sequence[int], starts: Sequence[MemoryPlan]
    ) -> dict[int, MemoryPlan | BudgetError]:
        """Measure the step and plan it, from the schedules of other budgets."""
        if not budgets:
            return {}
        measured_under = conditions(device_of(self._model))
        with cached_costs(self._cache, measured_under, self._costs):
            profile = profile_step(
                self._model,
                captured,
                self._options.conditions,
                costs=self._costs,
                sample=self._sample,
            )
        with progress_line("planning") as report:

            def show(budget: int, state: SolveProgress) -> None:
                text = state if self._watts is None else f"gap {state.gap:z.1%}"
                report(f"planning for {size(budget)}: {text}")
                if self._options.progress is not None:
                    self._options.progress(state)

            return sweep(
                profile,
                budgets,
                ScheduleSearch,
                effort=self._options.effort,
                seed=self._options.seed,
                progress=show,
                starts=tuple(plan.schedule for plan in starts),
                watts=self._watts,
            )
