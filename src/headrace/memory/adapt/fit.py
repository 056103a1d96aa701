"""A model fitted into a memory budget: captured, profiled, planned, and run by the plan."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from torch.optim import Optimizer

from headrace.memory.adapt.cache import PlanKey, StepCache, cached_costs, conditions
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.measure.capture import Capture
from headrace.memory.measure.step import (
    StepConditions,
    device_of,
    profile_step,
    sample_of,
    unmeasured_profile,
)
from headrace.memory.measure.timing import Cost
from headrace.memory.plan.effort import SolveEffort, parse_effort
from headrace.memory.plan.make import make_plan, parse_budget
from headrace.memory.plan.match import require_match
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.solve import SolveProgress
from headrace.memory.profile import MemoryProfile
from headrace.memory.run.fitted import FittedModule
from headrace.memory.schedule import Schedule
from headrace.units import size


class StepPlanner:
    """Plans of a model's training steps within a budget, one for each kind of arguments.

    Parameters
    ----------
    given : plan of the first step, made before.
    cache : of costs and plans.

    Attributes
    ----------
    plans : made so far, verified.
    """

    def __init__(
        self,
        model: nn.Module,
        budget_bytes: int,
        job: StepConditions,
        *,
        effort: SolveEffort,
        seed: int,
        progress: Callable[[SolveProgress], None] | None,
        given: MemoryPlan | None = None,
        cache: StepCache | None = None,
    ) -> None:
        self._model, self._budget, self._job = model, budget_bytes, job
        self._effort, self._seed, self._progress = effort, seed, progress
        self._given, self._cache = given, cache or StepCache(None)
        self._costs: dict[str, Cost] = {}
        self.plans: list[MemoryPlan] = []

    def __call__(self, captured: Capture) -> Schedule:
        """Return the schedule of a captured step.

        Raises
        ------
        BudgetError : no schedule is found within the budget, or the plan given needs more.
        MismatchError : the plan given is for another step.
        """
        plan = self._plan(captured)
        plan.verify()
        self.plans.append(plan)
        return plan.schedule

    def _plan(self, captured: Capture) -> MemoryPlan:
        step = unmeasured_profile(self._model, captured, self._job)
        if self._given is not None:
            given, self._given = self._given, None
            return self._checked(given, step)
        key = PlanKey(
            step=step,
            conditions=conditions(device_of(self._model)),
            budget_bytes=self._budget,
            effort=self._effort,
            seed=self._seed,
        )
        plan = self._cache.find_plan(key)
        if plan is None:
            plan = self._made(captured, key.conditions)
            self._cache.save_plan(key, plan)
        return plan

    def _checked(self, plan: MemoryPlan, step: MemoryProfile) -> MemoryPlan:
        require_match(plan, step, "the plan")
        if plan.peak_bytes > self._budget:
            raise BudgetError(
                f"budget is {size(self._budget)}, the plan needs {size(plan.peak_bytes)}",
                least_bytes=plan.peak_bytes,
            )
        return plan

    def _made(self, captured: Capture, known: Mapping[str, str]) -> MemoryPlan:
        with cached_costs(self._cache, known, self._costs):
            profile = profile_step(self._model, captured, self._job, costs=self._costs)
        with Console(stderr=True).status("planning") as status:  # on terminals alone
            return make_plan(
                profile,
                self._budget,
                effort=self._effort,
                seed=self._seed,
                progress=self._progress or (lambda state: status.update(f"planning: {state}")),
            )


def fit_model(
    model: nn.Module,
    sample: Any,
    budget: int | str,
    *,
    loss: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    accumulates: bool = False,
    ddp: bool = False,
    effort: str = "quick",
    seed: int = 0,
    captures: int = 2,
    plan: str | Path | None = None,
    cache: bool = True,
    exact: bool = False,
    progress: Callable[[SolveProgress], None] | None = None,
) -> FittedModule:
    """Return the model, trained within a budget; see `headrace.memory.fit`."""
    if not model.training:
        raise CaptureError("the model is in evaluation, needs training mode: call model.train()")
    job = StepConditions(loss=loss, optimizer=optimizer, accumulates=accumulates, ddp=ddp)
    planner = StepPlanner(
        model,
        parse_budget(budget, memory_bytes(device_of(model))),
        job,
        effort=parse_effort(effort),
        seed=seed,
        progress=progress,
        given=None if plan is None else MemoryPlan.load(plan),
        cache=StepCache.of_user() if cache else None,
    )
    fitted = FittedModule(model, planner, loss=loss, captures=captures, exact=exact)
    args, kwargs = sample_of(sample)
    fitted.prepare(*args, **kwargs)
    return fitted


def memory_bytes(device: torch.device) -> int | None:
    """Return the memory of an accelerator; None for the CPU, whose memory others use, too."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)
