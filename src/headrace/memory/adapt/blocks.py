"""Blocks of a model fitted under one budget: for models too large to capture, and for FSDP2.

Each block gets plans for several budgets of its own; a program chooses one for each (see
`headrace.memory.plan.blocks`). `fully_shard` may wrap the fitted blocks.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from headrace.facades import public_value
from headrace.memory.adapt.fit import fitted_module
from headrace.memory.adapt.options import StepOptions
from headrace.memory.adapt.outside_blocks import BlockCall, Outside, traced_outside
from headrace.memory.adapt.planner import StepPlanner
from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.step import StepConditions, device_of, optimizer_bytes
from headrace.memory.measure.timing import memory_bytes
from headrace.memory.plan.baselines import keep_schedule, sqrt_schedule
from headrace.memory.plan.blocks import BlockPlan, HeldBytes, chain_peak, divide_budget
from headrace.memory.plan.make import parse_budget
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.verify import verify
from headrace.memory.profile import MemoryProfile
from headrace.memory.run.fitted import FittedModule
from headrace.memory.schedule import Schedule, plain_schedule

SHARES = (1.25, 0.8, 0.6, 0.45, 0.3)
"""Budgets of a block, as shares of what a plain run of it needs above what is resident; the first
leaves room for workspaces, which are not known before the block is measured."""


@public_value("headrace.memory")
class FittedBlocks:
    """Blocks of a model that train by plans under one budget.

    Attributes
    ----------
    blocks : in the order of the forward pass; they have taken the originals' places in the model.
    options : plans of each.
    held : what the model holds while each runs and between them, beside stored activations.
    """

    blocks: tuple[FittedModule, ...]
    options: tuple[tuple[BlockPlan, ...], ...]
    held: HeldBytes

    def __repr__(self) -> str:
        plans = sum(map(len, self.options))
        return f"<FittedBlocks: {len(self.blocks)} blocks, {plans} plans>"

    def set_budget(self, budget: int | str) -> int:
        """Choose the plans of the next steps, and return the predicted peak in bytes.

        Raises
        ------
        BudgetError : it is malformed, or less than every choice needs.
        """
        budget_bytes = parse_budget(budget, memory_bytes(device_of(self.blocks[0])))
        plans = divide_budget(self.options, self.held, budget_bytes)
        for block, plan in zip(self.blocks, plans, strict=True):
            block.set_budget(plan.plan.budget_bytes)
        return chain_peak(plans, self.held)


class BlockPlanner:
    """Schedules of a block for several shares of a plain run's memory; equal blocks share plans.

    Parameters
    ----------
    shared : plans by the digest of the step, of all blocks.

    Attributes
    ----------
    plans : of all steps so far, verified.
    """

    def __init__(self, planner: StepPlanner, shared: dict[str, dict[int, MemoryPlan]]) -> None:
        self._planner, self._shared = planner, shared
        self.plans: list[MemoryPlan] = []

    def __call__(self, captured: Capture) -> dict[int, Schedule]:
        """Return the schedules of a captured step, by their budgets; none if no budget has one."""
        step = self._planner.step_of(captured)
        if step.digest not in self._shared:
            self._shared[step.digest] = self._planned(captured, step)
        plans = self._shared[step.digest]
        for plan in plans.values():
            plan.verify()
        self.plans += plans.values()
        return {budget: plan.schedule for budget, plan in plans.items()}

    def _planned(self, captured: Capture, step: MemoryProfile) -> dict[int, MemoryPlan]:
        planned = self._planner.plan(captured, step, _share_budgets(step.graph))
        plans, refused = _divided(planned)
        if not plans and refused:
            # workspaces alone take more than the shares leave for them
            least = [error.least_bytes for error in refused if error.least_bytes is not None]
            plans, _ = _divided(self._planner.plan(captured, step, least[-1:]))
        if plans:
            plans |= _checkpoints(next(iter(plans.values())))
        return plans


def _share_budgets(graph: Graph) -> list[int]:
    plain_bytes = verify(graph, plain_schedule(graph)).peak_bytes
    return [
        graph.resident_bytes + int(share * (plain_bytes - graph.resident_bytes)) for share in SHARES
    ]


def _divided(
    planned: Mapping[int, MemoryPlan | BudgetError],
) -> tuple[dict[int, MemoryPlan], list[BudgetError]]:
    """Return the plans, and the errors of budgets without one."""
    plans = {budget: plan for budget, plan in planned.items() if isinstance(plan, MemoryPlan)}
    return plans, [error for error in planned.values() if isinstance(error, BudgetError)]


def _checkpoints(plan: MemoryPlan) -> dict[int, MemoryPlan]:
    """Return plans that store little for the backward pass, and need much within it.

    A budget of the block alone does not ask for these: a plain run is as small within it.
    """
    graph = plan.profile.graph
    schedules = (keep_schedule(graph, ()), sqrt_schedule(graph))
    plans = map(plan.of_schedule, schedules)
    return {checkpointed.budget_bytes: checkpointed for checkpointed in plans}


def fit_chain(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    sample: Any,
    budget: int | str,
    options: StepOptions,
    *,
    shards: int,
) -> FittedBlocks:
    """Fit blocks of a model under one budget; see `headrace.memory.fit_blocks`."""
    called = options.conditions.called(model)
    with torch.enable_grad(), preserved(called, options.conditions.optimizer):
        chain, calls = _fitted(called, blocks, sample, options, shards=shards)
        chain.set_budget(budget)
    for call, block in zip(calls, chain.blocks, strict=True):
        call.replace(block)
    return chain


def _fitted(
    called: nn.Module,
    blocks: Sequence[nn.Module],
    sample: Any,
    options: StepOptions,
    *,
    shards: int,
) -> tuple[FittedBlocks, Sequence[BlockCall]]:
    """Return the fitted blocks, which are not in the model yet, and the originals' calls."""
    model_conditions = options.conditions
    accumulates = model_conditions.accumulates
    outside = traced_outside(called, blocks, sample, accumulates=accumulates and shards == 1)
    shared: dict[str, dict[int, MemoryPlan]] = {}
    conditions = StepConditions(offload=model_conditions.offload)
    block_options = replace(options, conditions=conditions)
    fitted: list[FittedModule] = []
    for call in outside.calls:
        conditions.check(device_of(call.block))
        planner = BlockPlanner(StepPlanner(call.block, block_options), shared)
        block = fitted_module(
            call.block,
            planner,
            plans=planner.plans,
            conditions=conditions,
            exactness=options.exactness,
            captures=options.captures or 2,
        )
        block.prepare(*call.args, **call.kwargs)
        fitted.append(block)
    optimizer = model_conditions.optimizer
    state = optimizer_bytes(optimizer) if optimizer else 0
    chain = FittedBlocks(
        blocks=tuple(fitted),
        options=tuple(tuple(map(BlockPlan.of, block.plans)) for block in fitted),
        held=_held(called, outside, state // shards, shards, accumulates=accumulates),
    )
    return chain, outside.calls


def _held(
    model: nn.Module, outside: Outside, state: int, shards: int, *, accumulates: bool
) -> HeldBytes:
    """Return the bytes that the model holds while each block runs, and between blocks.

    Those are its shard of parameters, gradients and optimizer's state, its buffers, what is alive
    outside of the blocks, and with shards what `_gathered` says.
    """
    of_blocks, of_model = [_Weights.of(call.block) for call in outside.calls], _Weights.of(model)
    always = of_model.nbytes // shards + state + sum(buffer.nbytes for buffer in model.buffers())

    def gradients(done: int) -> int:
        """Return the bytes that exist while blocks up to `done` have yet to add theirs."""
        added = [of_model] if accumulates else of_blocks[done:]
        return sum(weights.gradient_bytes for weights in added) // shards

    none = ([0] * len(of_blocks), [0] * (len(of_blocks) + 1))
    running, between = none if shards == 1 else _gathered(of_blocks, of_model)
    return HeldBytes(
        running_bytes=tuple(
            always + gradients(index + 1) + beside + alive
            for index, (beside, alive) in enumerate(
                zip(running, outside.running_bytes, strict=True)
            )
        ),
        between_bytes=tuple(
            always + gradients(index) + beside + alive
            for index, (beside, alive) in enumerate(
                zip(between, outside.between_bytes, strict=True)
            )
        ),
    )


def _gathered(of_blocks: Sequence["_Weights"], of_model: "_Weights") -> tuple[list[int], list[int]]:
    """Return the parameters and gradients that FSDP2 has whole: while blocks run, and between.

    - Parameters outside of the blocks stay gathered, and are reduced at the end of the step.
    - In its backward pass a block has its parameters gathered, those of the one before as one
      buffer, gathered ahead, and gradients of the one behind in the buffer that is reduced.
    - Gathering takes a buffer beside the parameters that are copied out of it, then one more for
      the next block; reducing, a buffer. Gloo copies the buffers that it is given.
    """
    other_bytes = of_model.nbytes - sum(weights.nbytes for weights in of_blocks)
    parameters = [0, 0, *(weights.nbytes for weights in of_blocks)]
    gradients = [*(weights.gradient_bytes for weights in of_blocks), 0]
    running = [
        other_bytes + sum(parameters[index + 1 : index + 3]) + 2 * gradients[index + 1]
        for index in range(len(of_blocks))
    ]
    between: list[int] = []
    for index, behind in enumerate(gradients):
        further, before = parameters[index : index + 2]
        between.append(other_bytes + 2 * behind + before + max(before, 2 * further))
    between[0] += 3 * (of_model.gradient_bytes - sum(gradients))
    return running, between


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes of a module's parameters, and of their gradients, which frozen ones have not."""

    nbytes: int
    gradient_bytes: int

    @classmethod
    def of(cls, module: nn.Module) -> "_Weights":
        parameters = list(module.parameters())
        return cls(
            sum(parameter.nbytes for parameter in parameters),
            sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
        )
