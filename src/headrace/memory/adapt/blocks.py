"""Blocks of a model fitted under one budget: for models too large to capture, and for FSDP2.

Each block gets plans for several budgets of its own; a program chooses one for each (see
`headrace.memory.plan.blocks`). `fully_shard` may wrap the fitted blocks.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from headrace.memory.adapt.cache import StepCache
from headrace.memory.adapt.fit import StepPlanner
from headrace.memory.errors import BudgetError, CaptureError
from headrace.memory.exactness import allowed_exactness
from headrace.memory.measure.capture import Capture
from headrace.memory.measure.step import StepConditions, device_of, optimizer_bytes, sample_of
from headrace.memory.measure.timing import memory_bytes
from headrace.memory.plan.blocks import BlockPlan, chain_peak, divide_budget
from headrace.memory.plan.effort import parse_effort
from headrace.memory.plan.make import parse_budget
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.plan.simulate import simulate_step
from headrace.memory.profile import MemoryProfile
from headrace.memory.run.fitted import FittedModule
from headrace.memory.schedule import plain_schedule

SHARES = (1.25, 0.8, 0.6, 0.45, 0.3)
"""Budgets of a block, as shares of what a plain run of it needs above what is resident; the first
leaves room for workspaces, which are not known before the block is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBlocks:
    """Blocks of a model that train by plans under one budget.

    Attributes
    ----------
    blocks : in the order of the forward pass; they have taken the originals' places in the model.
    options : plans of each.
    held_bytes : what the model holds while each runs, beside stored activations.
    """

    blocks: tuple[FittedModule, ...]
    options: tuple[tuple[BlockPlan, ...], ...]
    held_bytes: tuple[int, ...]

    def set_budget(self, budget: int | str) -> int:
        """Choose the plans of the next steps, and return the predicted peak in bytes.

        Raises
        ------
        BudgetError : it is malformed, or less than every choice needs.
        """
        found = parse_budget(budget, memory_bytes(device_of(self.blocks[0])))
        chosen = divide_budget(self.options, self.held_bytes, found)
        for block, each in zip(self.blocks, chosen, strict=True):
            block.set_budget(each.plan.budget_bytes)
        return chain_peak(chosen, self.held_bytes)


class BlockPlanner(StepPlanner):
    """Plans of a block for several shares of a plain run's memory; equal blocks share them.

    Parameters
    ----------
    known : plans by the digest of the step, of all blocks.
    """

    def __init__(
        self, model: nn.Module, *, known: dict[str, dict[int, MemoryPlan]], **options: Any
    ) -> None:
        super().__init__(model, (), StepConditions(), **options)
        self._known = known

    def _budgets_of(self, step: MemoryProfile) -> Sequence[int]:
        graph = step.graph
        above = simulate_step(graph, plain_schedule(graph)).peak_bytes - graph.resident_bytes
        return [graph.resident_bytes + int(share * above) for share in SHARES]

    def _plans(self, captured: Capture, step: MemoryProfile) -> dict[int, MemoryPlan]:
        if step.digest not in self._known:
            self._known[step.digest] = super()._plans(captured, step)
        return self._known[step.digest]

    def _refused(self, error: BudgetError) -> None:
        """Go without a plan: others have more."""


def fit_blocks(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    sample: Any,
    budget: int | str,
    *,
    optimizer: Optimizer | None = None,
    accumulates: bool = False,
    shards: int = 1,
    effort: str = "quick",
    seed: int = 0,
    cache: bool = True,
    exact: bool = False,
    lossy: bool = False,
) -> FittedBlocks:
    """Fit blocks of a model under one budget; see `headrace.memory.fit_blocks`."""
    exactness = allowed_exactness(exact=exact, lossy=lossy)
    calls, rest = _traced(model, blocks, sample)
    known: dict[str, dict[int, MemoryPlan]] = {}
    options: dict[str, Any] = {
        "known": known,
        "effort": parse_effort(effort),
        "seed": seed,
        "progress": None,
        "cache": StepCache.of_user() if cache else None,
    }
    fitted: list[FittedModule] = []
    for call in calls:
        planner = BlockPlanner(call.block, **options)
        block = FittedModule(call.block, planner, captures=2, exactness=exactness)
        block.prepare(*call.args, **call.kwargs)
        fitted.append(block)
    state = optimizer_bytes(optimizer) if optimizer else 0
    found = FittedBlocks(
        blocks=tuple(fitted),
        options=tuple(tuple(map(BlockPlan.of, block.plans)) for block in fitted),
        held_bytes=_held(
            model, [each.block for each in calls], rest + state // shards, shards, accumulates
        ),
    )
    found.set_budget(budget)
    for call, block in zip(calls, fitted, strict=True):
        call.replace(block)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A block's call in a step, and its place in the model."""

    block: nn.Module
    replace: Callable[[nn.Module], None]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def _traced(model: nn.Module, blocks: Sequence[nn.Module], sample: Any) -> tuple[list[_Call], int]:
    """Return the blocks' calls in their order, and the bytes of a step's other activations.

    The latter are those that the rest of the model stores, and as much for their gradients.

    Raises
    ------
    CaptureError : a block is not in the model, is not called exactly once, or the model cannot be
        run on fake tensors.
    """
    places = _places(model, blocks)
    found: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    inside: list[nn.Module] = []
    stored: dict[int, int] = {}

    def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append((block, args, kwargs))
        inside.append(block)

    def pack(value: torch.Tensor) -> torch.Tensor:
        if not inside:
            storage = value.untyped_storage()
            stored[storage._cdata] = storage.nbytes()
        return value

    def leave(*_: Any) -> None:
        inside.pop()

    handles = [each.register_forward_pre_hook(enter, with_kwargs=True) for each in blocks]
    handles += [each.register_forward_hook(leave) for each in blocks]
    args, kwargs = sample_of(sample)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            state: dict[str, torch.Tensor] = {**dict(model.named_parameters())}
            state |= dict(model.named_buffers())
            state = {name: mode.from_tensor(each) for name, each in state.items()}
            args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
                functional_call(model, state, args, kwargs)
            for each in state.values():
                stored.pop(each.untyped_storage()._cdata, None)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CaptureError(f"the model cannot be run on fake tensors: {reason[0]}") from error
    finally:
        for handle in handles:
            handle.remove()
    names = {module: name for name, module in model.named_modules()}
    for block in blocks:
        count = sum(each is block for each, _, _ in found)
        if count != 1:
            raise CaptureError(f"module '{names[block]}' is called {count} times, needs once")
    calls: list[_Call] = []
    for block, *given in found:
        args, kwargs = pytree.tree_map_only(torch.Tensor, _empty, tuple(given))
        calls.append(_Call(block=block, replace=places[block], args=args, kwargs=kwargs))
    return calls, 2 * sum(stored.values())


def _places(
    model: nn.Module, blocks: Sequence[nn.Module]
) -> dict[nn.Module, Callable[[nn.Module], None]]:
    """Return for each block the function that puts another module in its place."""
    places: dict[nn.Module, Callable[[nn.Module], None]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None and any(child is block for block in blocks):
                places[child] = partial(parent._modules.__setitem__, name)
    for block in blocks:
        if block not in places:
            raise CaptureError(f"{type(block).__name__} is no module inside of the model")
    return places


def _empty(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor for a fake one; of arguments only shape, type and device count."""
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def _held(
    model: nn.Module, blocks: Sequence[nn.Module], rest: int, shards: int, accumulates: bool
) -> tuple[int, ...]:
    """Return the bytes that the model holds while each block runs.

    Those are its shard of parameters, gradients and optimizer's state, its buffers, and what is
    outside of the blocks. With shards, also the block's gathered parameters, and a neighbour's
    parameters and gradients, which FSDP2 gathers ahead and reduces behind.
    """

    def weights(module: nn.Module) -> int:
        return sum(each.nbytes for each in module.parameters())

    each = [weights(block) for block in blocks]
    whole = weights(model)
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    found: list[int] = []
    for index, own in enumerate(each):
        before = sum(each[: index + 1])  # their gradients come later, as do this block's
        gradients = whole if accumulates else whole - before
        held = (whole + gradients) // shards + buffers + rest
        if shards > 1:
            neighbours = each[max(index - 1, 0) : index] + each[index + 1 : index + 2]
            held += own + 2 * max(neighbours, default=0)
        found.append(held)
    return tuple(found)
