"""A model fitted into a memory budget: captured, profiled, planned, and run by the plan."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from headrace.fields import Field
from headrace.memory.adapt.cache import PlanKey, StepCache, cached_costs, conditions
from headrace.memory.errors import BudgetError
from headrace.memory.exactness import Exactness
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.step import (
    StepConditions,
    device_of,
    profile_step,
    require_trainable,
    sample_of,
    unmeasured_profile,
)
from headrace.memory.measure.timing import Cost, memory_bytes
from headrace.memory.plan.effort import parse_effort
from headrace.memory.plan.energy import read_watts
from headrace.memory.plan.make import parse_budget
from headrace.memory.plan.match import require_match, shapes_of
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solve import SolveProgress
from headrace.memory.plan.sweep import sweep
from headrace.memory.profile import MemoryProfile
from headrace.memory.run.fitted import FittedModule
from headrace.memory.schedule import Schedule
from headrace.units import size


class StepPlanner:
    """Plans of a model's training steps within budgets, for each kind of arguments.

    Parameters
    ----------
    budgets : in bytes.
    effort, seed, progress, cache, watts : as of `headrace.memory.fit`.
    given : plans of the first step, made before, in the order of the budgets.

    Attributes
    ----------
    plans : made so far, verified.
    """

    def __init__(
        self,
        model: nn.Module,
        budgets: Sequence[int],
        job: StepConditions,
        *,
        effort: str,
        seed: int,
        progress: Callable[[SolveProgress], None] | None,
        cache: bool,
        watts: Mapping[str, float] | None,
        given: Sequence[MemoryPlan] = (),
    ) -> None:
        self._model, self._budgets, self._job = model, tuple(budgets), job
        self._effort, self._seed, self._progress = parse_effort(effort), seed, progress
        self._given, self._cache = tuple(given), StepCache.of_user() if cache else StepCache(None)
        self._watts = None if watts is None else read_watts(Field(watts, "watts"))
        self._costs: dict[str, Cost] = {}
        self.plans: list[MemoryPlan] = []

    def __call__(self, captured: Capture) -> dict[int, Schedule]:
        """Return the schedules of a captured step, by their budgets.

        Raises
        ------
        BudgetError : no schedule is found within a budget, or the plan given needs more.
        MismatchError : a plan given is for another step.
        """
        step = unmeasured_profile(self._model, captured, self._job)
        try:
            plans = self._plans(captured, step)
        except BudgetError as error:
            if self.plans:
                error.args = (f"a later step, of {shapes_of(step)}: {error}",)
            raise
        for plan in plans.values():
            plan.verify()
        self.plans += plans.values()
        return {budget: plan.schedule for budget, plan in plans.items()}

    def _budgets_of(self, step: MemoryProfile) -> Sequence[int]:  # noqa: ARG002
        return self._budgets

    def _refused(self, error: BudgetError) -> None:
        raise error

    def _plans(self, captured: Capture, step: MemoryProfile) -> dict[int, MemoryPlan]:
        if self._given:
            given, self._given = self._given, ()
            for budget, plan in zip(self._budgets, given, strict=True):
                _check(plan, budget, step)
            return dict(zip(self._budgets, given, strict=True))
        keys = {
            budget: PlanKey(
                step=step,
                conditions=conditions(device_of(self._model)),
                budget_bytes=budget,
                effort=self._effort,
                seed=self._seed,
                watts=self._watts,
            )
            for budget in self._budgets_of(step)
        }
        found = {budget: self._cache.find_plan(key) for budget, key in keys.items()}
        kept = {budget: plan for budget, plan in found.items() if plan is not None}
        made = self._made(captured, [each for each in keys if each not in kept], kept)
        for budget, plan in made.items():
            self._cache.save_plan(keys[budget], plan)
        return kept | made

    def _made(
        self, captured: Capture, budgets: Sequence[int], kept: Mapping[int, MemoryPlan]
    ) -> dict[int, MemoryPlan]:
        """Plan for budgets, with the schedules of other budgets to start from."""
        if not budgets:
            return {}
        known = conditions(device_of(self._model))
        with cached_costs(self._cache, known, self._costs):
            profile = profile_step(self._model, captured, self._job, costs=self._costs)
        with Console(stderr=True).status("planning") as status:  # on terminals alone

            def show(budget: int, state: SolveProgress) -> None:
                text = state if self._watts is None else f"gap {state.gap:z.1%}"
                status.update(f"planning for {size(budget)}: {text}")
                if self._progress is not None:
                    self._progress(state)

            found = sweep(
                profile,
                budgets,
                effort=self._effort,
                seed=self._seed,
                progress=show,
                starts=tuple(each.schedule for each in kept.values()),
                watts=self._watts,
            )
        plans: dict[int, MemoryPlan] = {}
        for budget, plan in found.items():
            if isinstance(plan, BudgetError):
                self._refused(plan)
            else:
                plans[budget] = plan
        return plans


def _check(plan: MemoryPlan, budget: int, step: MemoryProfile) -> None:
    require_match(plan, step, "the plan")
    if plan.peak_bytes > budget:
        raise BudgetError(
            f"budget is {size(budget)}, the plan needs {size(plan.peak_bytes)}",
            least_bytes=plan.peak_bytes,
        )


def fit_model(
    model: nn.Module,
    sample: Any,
    budget: int | str | Sequence[int | str],
    job: StepConditions,
    exactness: Exactness,
    *,
    captures: int,
    plan: str | Path | Sequence[str | Path] | None,
    **options: Any,
) -> FittedModule:
    """Return the model, trained within a budget; see `headrace.memory.fit`.

    Parameters
    ----------
    options : of `StepPlanner`.
    """
    require_trainable(model)
    budgets = _listed(budget)
    if not budgets:
        raise BudgetError("there is no budget, needs one at least")
    plans = [] if plan is None else _listed(plan)
    if plans and len(plans) != len(budgets):
        raise BudgetError(f"{len(budgets)} budgets and {len(plans)} plans: needs a plan for each")
    whole = memory_bytes(device_of(model))
    job.check(device_of(model))
    planner = StepPlanner(
        model,
        [parse_budget(each, whole) for each in budgets],
        job,
        given=[MemoryPlan.load(each) for each in plans],
        **options,
    )
    fitted = FittedModule(
        model,
        planner,
        loss=job.loss,
        captures=captures,
        exactness=exactness,
        accumulates=job.accumulates and not job.ddp,
        offload=job.offload,
    )
    args, kwargs = sample_of(sample)
    with preserved(job.called(model), job.optimizer):
        fitted.prepare(*args, **kwargs)
    return fitted


def _listed(value: Any) -> list[Any]:
    """Return the values of a list or tuple, or a list of one."""
    return list(value) if isinstance(value, list | tuple) else [value]
