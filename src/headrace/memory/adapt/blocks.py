"""Blocks of a model fitted under one budget: for models too large to capture, and for FSDP2.

Each block gets plans for several budgets of its own; a program chooses one for each (see
`headrace.memory.plan.blocks`). `fully_shard` may wrap the fitted blocks.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headrace.facades import offered_by
from headrace.memory.adapt.fit import StepPlanner
from headrace.memory.adapt.outside import BlockCall, Outside, traced_outside
from headrace.memory.errors import BudgetError
from headrace.memory.exactness import Exactness
from headrace.memory.measure.captured import Capture
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.step import StepConditions, device_of, optimizer_bytes
from headrace.memory.measure.timing import memory_bytes
from headrace.memory.plan.baselines import keep_schedule, sqrt_schedule
from headrace.memory.plan.blocks import BlockPlan, HeldBytes, chain_peak, divide_budget
from headrace.memory.plan.make import parse_budget
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.simulate import simulate_step
from headrace.memory.profile import MemoryProfile
from headrace.memory.run.fitted import FittedModule
from headrace.memory.schedule import plain_schedule

SHARES = (1.25, 0.8, 0.6, 0.45, 0.3)
"""Budgets of a block, as shares of what a plain run of it needs above what is resident; the first
leaves room for workspaces, which are not known before the block is measured."""


@offered_by("headrace.memory")
@dataclass(frozen=True, slots=True, kw_only=True)
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
        found = parse_budget(budget, memory_bytes(device_of(self.blocks[0])))
        chosen = divide_budget(self.options, self.held, found)
        for block, each in zip(self.blocks, chosen, strict=True):
            block.set_budget(each.plan.budget_bytes)
        return chain_peak(chosen, self.held)


class BlockPlanner(StepPlanner):
    """Plans of a block for several shares of a plain run's memory; equal blocks share them.

    Parameters
    ----------
    known : plans by the digest of the step, of all blocks.
    """

    def __init__(
        self, model: nn.Module, *, known: dict[str, dict[int, MemoryPlan]], **options: Any
    ) -> None:
        super().__init__(model, (), **options)
        self._known = known
        self._least: int | None = None  # budget, where the shares leave no plan

    def _budgets_of(self, step: MemoryProfile) -> Sequence[int]:
        graph = step.graph
        above = simulate_step(graph, plain_schedule(graph)).peak_bytes - graph.resident_bytes
        if self._least is not None:
            return [self._least]
        return [graph.resident_bytes + int(share * above) for share in SHARES]

    def _plans(self, captured: Capture, step: MemoryProfile) -> dict[int, MemoryPlan]:
        if step.digest not in self._known:
            self._least = None  # that of an earlier step
            found = super()._plans(captured, step)
            if not found:  # workspaces alone take more than the shares leave for them
                found = super()._plans(captured, step)
            if found:
                found |= _checkpoints(next(iter(found.values())))
            self._known[step.digest] = found
        return self._known[step.digest]

    def _refused(self, error: BudgetError) -> None:
        """Go without a plan: others have more."""
        self._least = error.least_bytes


def _checkpoints(plan: MemoryPlan) -> dict[int, MemoryPlan]:
    """Return plans that store little for the backward pass, and need much within it.

    A budget of the block alone does not ask for these: a plain run is as small within it.
    """
    graph = plan.profile.graph
    found = (plan.of_schedule(each) for each in (keep_schedule(graph, ()), sqrt_schedule(graph)))
    return {each.budget_bytes: each for each in found}


def fit_chain(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    sample: Any,
    budget: int | str,
    job: StepConditions,
    exactness: Exactness,
    *,
    shards: int,
    **options: Any,
) -> FittedBlocks:
    """Fit blocks of a model under one budget; see `headrace.memory.fit_blocks`.

    Parameters
    ----------
    options : of `StepPlanner`.
    """
    called = job.called(model)
    with preserved(called, job.optimizer):
        found, calls = _planned(called, blocks, sample, job, exactness, shards=shards, **options)
        found.set_budget(budget)
    for call, block in zip(calls, found.blocks, strict=True):
        call.replace(block)
    return found


def _planned(
    called: nn.Module,
    blocks: Sequence[nn.Module],
    sample: Any,
    job: StepConditions,
    exactness: Exactness,
    *,
    shards: int,
    **options: Any,
) -> tuple[FittedBlocks, Sequence[BlockCall]]:
    """Return the fitted blocks, which are not in the model yet, and the originals' calls."""
    accumulates = job.accumulates
    outside = traced_outside(called, blocks, sample, accumulates=accumulates and shards == 1)
    known: dict[str, dict[int, MemoryPlan]] = {}
    own = StepConditions(offload=job.offload)
    fitted: list[FittedModule] = []
    for call in outside.calls:
        own.check(device_of(call.block))
        planner = BlockPlanner(call.block, job=own, known=known, **options)
        block = FittedModule(
            call.block, planner, captures=2, exactness=exactness, offload=job.offload
        )
        block.prepare(*call.args, **call.kwargs)
        fitted.append(block)
    state = optimizer_bytes(job.optimizer) if job.optimizer else 0
    found = FittedBlocks(
        blocks=tuple(fitted),
        options=tuple(tuple(map(BlockPlan.of, block.plans)) for block in fitted),
        held=_held(called, outside, state // shards, shards, accumulates=accumulates),
    )
    return found, outside.calls


def _held(
    model: nn.Module, outside: Outside, state: int, shards: int, *, accumulates: bool
) -> HeldBytes:
    """Return the bytes that the model holds while each block runs, and between blocks.

    Those are its shard of parameters, gradients and optimizer's state, its buffers, what is alive
    outside of the blocks, and with shards what `_gathered` says.
    """
    each = [_weights(call.block) for call in outside.calls]
    whole = _weights(model)
    always = whole // shards + state + sum(buffer.nbytes for buffer in model.buffers())

    def gradients(done: int) -> int:
        """Return those that are there while blocks up to `done` have yet to make theirs."""
        return (whole if accumulates else sum(each[done:])) // shards

    none = ([0] * len(each), [0] * (len(each) + 1))
    running, between = none if shards == 1 else _gathered(each, whole - sum(each))
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


def _gathered(each: list[int], rest: int) -> tuple[list[int], list[int]]:
    """Return the parameters and gradients that FSDP2 has whole: while blocks run, and between.

    - Parameters outside of the blocks stay gathered, and are reduced at the end of the step.
    - In its backward pass a block has its parameters gathered, those of the one before as one
      buffer, gathered ahead, and gradients of the one behind in the buffer that is reduced.
    - Gathering takes a buffer beside the parameters that are copied out of it, then one more for
      the next block; reducing, a buffer. Gloo copies the buffers that it is given.

    Parameters
    ----------
    each : bytes of the blocks' parameters.
    rest : of the others.
    """
    around = [0, 0, *each, 0]
    running = [
        rest + around[index + 1] + own + 2 * around[index + 3] for index, own in enumerate(each)
    ]
    between: list[int] = []
    for index in range(len(each) + 1):
        further, before, behind = around[index : index + 3]
        between.append(rest + 2 * behind + before + max(before, 2 * further))
    between[0] += 3 * rest
    return running, between


def _weights(module: nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters())
