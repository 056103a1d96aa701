"""headrace's own rows: a network's step fitted into a budget."""

from collections.abc import Iterable, Sequence
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


PEAK_BARS = {"peak-of-budget": "<= 1.0", "peak-of-predicted": "<= 1.05"}
BARS = {**PEAK_BARS, "peak-rises-with-less-budget": "<= 0", "time-of-predicted-error": "<= 0.1"}
"""Of `summary`: bar name -> bound."""


def peak_figures(found: Iterable[tuple[Fitted, Allocations]]) -> dict[str, float]:
    """Return the worst figures of `PEAK_BARS`."""
    steps = list(found)
    ratios = [memory.peak_bytes / fitted.predicted_bytes for fitted, memory in steps]
    return {
        "peak-of-budget": max(memory.peak_bytes / fitted.budget_bytes for fitted, memory in steps),
        "peak-of-predicted": max(max(ratio, 1 / ratio) for ratio in ratios),
    }


def rises(peaks: Sequence[int]) -> int:
    """Return in how many pairs the smaller budget has the higher peak; in order of budgets."""
    return sum(less > more for at, less in enumerate(peaks) for more in peaks[at + 1 :])


def summary(found: Iterable[Outcome]) -> dict[str, float]:
    """Return the figures of `BARS`, which hold for all budgets: the worst of each."""
    outcomes = sorted(found, key=lambda each: each.fitted.budget_bytes)
    return {
        **peak_figures((each.fitted, each.memory) for each in outcomes),
        "peak-rises-with-less-budget": rises([each.memory.peak_bytes for each in outcomes]),
        "time-of-predicted-error": max(
            abs(each.times.typical / (1e-6 * each.fitted.plan.time_us) - 1) for each in outcomes
        ),
    }
