"""headrace's own rows: a network's step fitted into a budget."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.memory.step import Allocations, Step, Times
from benchmarks.memory.workloads import Loss, Workload
from headrace.memory import fit
from headrace.memory.plan.plan import MemoryPlan


class LossModule(nn.Module):
    """A workload's loss as a module."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(outputs, targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A step within a budget.

    Attributes
    ----------
    budget_bytes : above what is there before the step: parameters, buffers, inputs, and gradients
        that are accumulated.
    there_bytes : the latter.
    """

    step: Step
    plan: MemoryPlan
    budget_bytes: int
    there_bytes: int

    @property
    def predicted_bytes(self) -> int:
        """Predicted peak above what is there."""
        return self.plan.peak_bytes - self.there_bytes

    @property
    def reorders(self) -> tuple[str, ...]:
        """Implementations of the plan that change the order of arithmetic: operator and name."""
        operators = self.plan.profile.graph.operators
        ways = [
            (
                operators[each.operator],
                operators[each.operator].implementations[each.implementation],
            )
            for each in self.plan.schedule.steps
        ]
        found = (f"{operator.name} {way.name}" for operator, way in ways if way.reorders)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """headrace within a budget, as a rival makes its steps.

    Attributes
    ----------
    above_bytes : above what is there before the step.
    accumulates : whether gradients are there before, and count as such.
    """

    name: str
    above_bytes: int
    accumulates: bool = False
    kernels: str = "eager's"

    def fitted(self, workload: Workload, batch: int | None = None) -> Fitted:
        """Capture, profile and plan the workload's step.

        Raises
        ------
        BudgetError : no schedule is found within the budget.
        """
        model, inputs, targets = workload.make(batch)
        held = (*model.parameters(), *model.buffers(), inputs, targets)
        there = sum(each.untyped_storage().nbytes() for each in held)
        if self.accumulates:
            there += sum(each.nbytes for each in model.parameters())
        module = fit(
            model,
            (inputs, targets),
            there + self.above_bytes,
            loss=LossModule(workload.loss),
            accumulates=self.accumulates,
            cache=False,
        )
        (plan,) = module.plans
        step = Step(model=model, forward=module, inputs=inputs, targets=targets)
        return Fitted(step=step, plan=plan, budget_bytes=self.above_bytes, there_bytes=there)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A fitted step as it was measured."""

    fitted: Fitted
    memory: Allocations
    times: Times


def summary(found: Iterable[Outcome]) -> dict[str, float]:
    """Return the bars that hold for all budgets: the worst figure of each."""
    outcomes = sorted(found, key=lambda each: each.fitted.budget_bytes)
    peaks = [each.memory.peak_bytes for each in outcomes]
    ratios = [each.memory.peak_bytes / each.fitted.predicted_bytes for each in outcomes]
    return {
        "peak-of-budget": max(
            each.memory.peak_bytes / each.fitted.budget_bytes for each in outcomes
        ),
        "peak-of-predicted": max(max(ratio, 1 / ratio) for ratio in ratios),
        "peak-rises-with-less-budget": sum(
            less > more for at, less in enumerate(peaks) for more in peaks[at + 1 :]
        ),
        "time-of-predicted-error": max(
            abs(each.times.typical / (1e-6 * each.fitted.plan.time_us) - 1) for each in outcomes
        ),
    }
