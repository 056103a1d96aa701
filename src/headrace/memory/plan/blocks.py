"""One budget for a chain of blocks, each with several plans: which plan each block runs by.

While a block runs, memory has what the whole model holds, what the blocks before it have stored for
their backward passes, and the block's own step. Which plans together are fastest within the budget
is a small integer program.
"""

from collections.abc import Sequence
from typing import Any

from headrace.facades import public_value
from headrace.memory.errors import BudgetError
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.verify import stored_bytes
from headrace.solver import import_cp_model, solve_cpsat
from headrace.solver.parameters import Parameters
from headrace.units import size

_KIB = 1024
_LIMIT_S = 20.0


@public_value("headrace.memory")
class BlockPlan:
    """A plan of a block, and what it needs beside the block's parameters, buffers and arguments.

    Attributes
    ----------
    step_bytes : at most while the block runs.
    stored_bytes : from the end of its forward to the beginning of its backward pass.
    """

    plan: MemoryPlan
    step_bytes: int
    stored_bytes: int

    @classmethod
    def of(cls, plan: MemoryPlan) -> "BlockPlan":
        """Return a plan with its figures."""
        graph = plan.profile.graph
        own = sum(graph.resident.get(name, 0) for name in ("parameters", "buffers", "inputs"))
        return cls(
            plan=plan,
            step_bytes=plan.peak_bytes - own,
            stored_bytes=stored_bytes(graph, plan.schedule),
        )


@public_value("headrace.memory")
class HeldBytes:
    """Bytes that a model holds beside what its blocks store and need.

    Attributes
    ----------
    running_bytes : while each block runs.
    between_bytes : at most before the first, between two of them, and after the last; one more.
    """

    running_bytes: tuple[int, ...]
    between_bytes: tuple[int, ...]


def divide_budget(
    blocks: Sequence[Sequence[BlockPlan]], model_bytes: HeldBytes, budget_bytes: int
) -> list[BlockPlan]:
    """Return a plan for each block, which together are the fastest within a budget.

    Parameters
    ----------
    blocks : plans of every block to choose from, in the order of the forward pass.

    Raises
    ------
    BudgetError : no choice fits; it has the least that one fits into.
    """
    build = _Build(blocks, model_bytes)
    build.model.add(build.peak <= budget_bytes // _KIB)
    build.model.minimize(build.cost)
    plans = build.solved()
    if plans is not None:
        return plans
    build = _Build(blocks, model_bytes)
    build.model.minimize(build.peak)
    least = build.solved()
    assert least is not None  # without a limit every choice is one
    needed = chain_peak(least, model_bytes)
    raise BudgetError(
        f"budget is {size(budget_bytes)}, the plans found for the blocks need {size(needed)}",
        least_bytes=needed,
    )


def chain_peak(plans: Sequence[BlockPlan], model_bytes: HeldBytes) -> int:
    """Return the most bytes while any block runs, or between blocks."""
    stored, peak = 0, model_bytes.between_bytes[0]
    for index, plan in enumerate(plans):
        peak = max(peak, model_bytes.running_bytes[index] + stored + plan.step_bytes)
        stored += plan.stored_bytes
        peak = max(peak, model_bytes.between_bytes[index + 1] + stored)
    return peak


class _Build:
    """The program: one plan of each block, in KiB and microseconds or microjoules."""

    def __init__(self, blocks: Sequence[Sequence[BlockPlan]], model_bytes: HeldBytes) -> None:
        cp_model = import_cp_model()
        self.blocks = blocks
        self.model = cp_model.CpModel()
        self.chosen = [[self.model.new_bool_var("") for _ in plans] for plans in blocks]
        most = sum(max(_kib(p.stored_bytes + p.step_bytes) for p in plans) for plans in blocks)
        most += _kib(max((*model_bytes.running_bytes, *model_bytes.between_bytes)))
        self.peak = self.model.new_int_var(_kib(model_bytes.between_bytes[0]), most, "peak")
        stored: Any = 0
        self.cost: Any = 0
        for index, (plans, picks) in enumerate(zip(blocks, self.chosen, strict=True)):
            self.model.add_exactly_one(picks)
            own = sum(_kib(plan.step_bytes) * pick for plan, pick in zip(plans, picks, strict=True))
            self.model.add(_kib(model_bytes.running_bytes[index]) + stored + own <= self.peak)
            for plan, pick in zip(plans, picks, strict=True):
                stored += _kib(plan.stored_bytes) * pick
                self.cost += round(plan.plan.cost) * pick
            self.model.add(_kib(model_bytes.between_bytes[index + 1]) + stored <= self.peak)

    def solved(self) -> list[BlockPlan] | None:
        """Return the plans of the best choice found; None if there is none."""
        flat = [pick for picks in self.chosen for pick in picks]
        values = solve_cpsat(self.model, flat, Parameters(limit_s=_LIMIT_S)).values
        if values is None:
            return None
        picked = iter(values.round().astype(bool).tolist())
        return [plan for plans in self.blocks for plan in plans if next(picked)]


def _kib(nbytes: int) -> int:
    return -(-nbytes // _KIB)
