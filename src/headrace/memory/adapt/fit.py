"""A model fitted into a memory budget: captured, measured, planned, and run by the plan."""

# pyright: reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from headrace.memory.adapt.options import StepOptions
from headrace.memory.adapt.planner import StepPlanner
from headrace.memory.adapt.variants import SchedulesOf, Variants
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.exactness import Exactness
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.step import (
    StepConditions,
    device_of,
    require_arguments,
    require_trainable,
    sample_of,
)
from headrace.memory.measure.timing import memory_bytes
from headrace.memory.plan.make import parse_budget
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.step_match import require_match, shapes_of
from headrace.memory.profile import MemoryProfile
from headrace.memory.run.fitted import FittedModule
from headrace.memory.run.padding import Padding
from headrace.memory.schedule import Schedule
from headrace.units import size


class BudgetPlanner:
    """Schedules of a model's steps within the budgets of a job, for each kind of arguments.

    Parameters
    ----------
    budgets : in bytes.
    supplied : plans of the first step from files, in the order of the budgets; none: it is planned.

    Attributes
    ----------
    plans : of all steps so far, verified.
    """

    def __init__(
        self, planner: StepPlanner, budgets: Sequence[int], supplied: Sequence[MemoryPlan] = ()
    ) -> None:
        self._planner, self._budgets, self._supplied = planner, budgets, supplied
        self.plans: list[MemoryPlan] = []

    def __call__(self, captured: Capture) -> dict[int, Schedule]:
        """Return the schedules of a captured step, by their budgets.

        Raises
        ------
        BudgetError : no schedule fits into a budget, or the supplied plan needs more.
        MismatchError : a supplied plan is for another step.
        """
        step = self._planner.step_of(captured)
        try:
            plans = self._supplied_plans(step) or self._planned(captured, step)
        except BudgetError as error:
            if self.plans:
                error.args = (f"a later step, of {shapes_of(step)}: {error}",)
            raise
        for plan in plans.values():
            plan.verify()
        self.plans += plans.values()
        return {budget: plan.schedule for budget, plan in plans.items()}

    def _supplied_plans(self, step: MemoryProfile) -> dict[int, MemoryPlan]:
        """Return the plans from files by their budgets, once."""
        supplied, self._supplied = self._supplied, ()
        plans = dict(zip(self._budgets, supplied, strict=bool(supplied)))
        for budget, plan in plans.items():
            require_match(plan, step, "the plan")
            if plan.peak_bytes > budget:
                raise BudgetError(
                    f"budget is {size(budget)}, the plan needs {size(plan.peak_bytes)}",
                    least_bytes=plan.peak_bytes,
                )
        return plans

    def _planned(self, captured: Capture, step: MemoryProfile) -> dict[int, MemoryPlan]:
        plans: dict[int, MemoryPlan] = {}
        for budget, planned in self._planner.plan(captured, step, self._budgets).items():
            if isinstance(planned, BudgetError):
                raise planned
            plans[budget] = planned
        return plans


def fit_model(
    model: nn.Module,
    sample: Any,
    budget: int | str | Sequence[int | str],
    options: StepOptions,
    *,
    plan: str | Path | Sequence[str | Path] | None,
) -> FittedModule:
    """Return the model, trained within a budget; see `headrace.memory.fit`."""
    require_trainable(model)
    budgets = _listed(budget)
    if not budgets:
        raise BudgetError("there is no budget, needs one at least")
    paths = [] if plan is None else _listed(plan)
    if paths and len(paths) != len(budgets):
        raise BudgetError(f"{len(budgets)} budgets and {len(paths)} plans: needs a plan for each")
    samples = [sample_of(arguments) for arguments in _samples(sample)]
    for args, kwargs in samples:
        require_arguments(options.conditions.called(model), args, kwargs)
    if options.captures is not None and 0 < options.captures < len(samples):
        raise CaptureError(
            f"captures is {options.captures}, needs one for each of the {len(samples)} samples"
        )
    device, conditions = device_of(model), options.conditions
    conditions.check(device)
    step_planner = StepPlanner(model, options)
    planner = BudgetPlanner(
        step_planner,
        [parse_budget(limit, memory_bytes(device)) for limit in budgets],
        [MemoryPlan.load(path) for path in paths],
    )
    fitted = fitted_module(
        model,
        planner,
        plans=planner.plans,
        conditions=conditions,
        exactness=options.exactness,
        captures=max(len(samples), 2) if options.captures is None else options.captures,
        at_start=options.captures is None,
    )
    with preserved(conditions.called(model), conditions.optimizer):
        for args, kwargs in samples:
            with step_planner.measuring_eager((args, kwargs)):
                fitted.prepare(*args, **kwargs)
        if len(samples) > 1 and conditions.loss is None and not any(args for args, _ in samples):
            padding = Padding(model, [kwargs for _, kwargs in samples])
            if padding.is_exact():
                fitted._pad_with(padding)
    return fitted


def fitted_module(
    model: nn.Module,
    schedules_of: SchedulesOf,
    *,
    plans: Sequence[MemoryPlan] = (),
    conditions: StepConditions | None = None,
    exactness: Exactness = Exactness.ROUNDED,
    captures: int = 1,
    at_start: bool = False,
) -> FittedModule:
    """Return a module whose training steps are captured and scheduled when they are first called.

    Parameters
    ----------
    model : is captured at the first call in training, in the mode and under the autocast of that
        call.
    schedules_of : schedules of a captured step, by their budgets in bytes. The step has all
        implementations and has not been measured.
    plans : list that `schedules_of` appends its plans to.
    conditions : of the step; None: the model alone, without a loss.
    exactness : of the implementations that captured steps have.
    captures : how many kinds of arguments (shapes, types, modes) get a schedule. Calls of other
        kinds, such as a smaller last batch, run the model as it is, with a warning at the first.
    at_start : whether kinds get one only before the first step by a schedule.

    Raises
    ------
    CaptureError
        If the model is fitted already, or `captures` is 0; at a call, if it cannot be captured.
    """
    conditions = conditions or StepConditions()
    called = conditions.called(model)
    implemented = partial(conditions.implemented, exactness=exactness)
    variants = Variants(
        called, implemented, schedules_of, captures=captures, at_start=at_start, plans=plans
    )
    return FittedModule(model, called, variants)


def _samples(sample: Any) -> list[Any]:
    """Return the samples: the members of a list of tuples or mappings, or one."""
    if isinstance(sample, list) and sample:
        members = cast(list[Any], sample)
        if all(isinstance(member, tuple | Mapping) for member in members):
            return members
    return [sample]


def _listed(budgets: Any) -> list[Any]:
    """Return the members of a list or tuple, or a list of one."""
    return list(budgets) if isinstance(budgets, list | tuple) else [budgets]
