"""Memory of a model outside of its blocks: a step on fake tensors, in which blocks stand still.

In place of a block its results are made and its arguments kept for the backward pass, as the block
itself does, and nothing else. So what is alive is what the rest of the model needs: while a block
runs, and at the peak between two blocks, in either pass.
"""

# pyright: reportPrivateUsage=false

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError
from headrace.memory.measure.arguments import named_parts
from headrace.memory.measure.fake_step import failures_unlogged
from headrace.memory.measure.live_bytes import LiveBytes
from headrace.memory.measure.preserve import preserved
from headrace.memory.measure.read_values import ValuesReadAs
from headrace.memory.measure.running_averages import averages_as_tensors
from headrace.memory.measure.step import require_arguments, sample_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall:
    """A block's call in a step, and its place in the model."""

    block: nn.Module
    replace: Callable[[nn.Module], None]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Bytes alive outside of a model's blocks, with the sample and without parameters.

    Attributes
    ----------
    calls : of the blocks, in the order of the forward pass.
    running_bytes : while each runs.
    between_bytes : at most before the first, between two of them, and after the last; one more.
    """

    calls: tuple[BlockCall, ...]
    running_bytes: tuple[int, ...]
    between_bytes: tuple[int, ...]


def traced_outside(
    model: nn.Module, blocks: Sequence[nn.Module], sample: Any, *, accumulates: bool
) -> Outside:
    """Return the blocks' calls in their order, and what is alive outside of them.

    Parameters
    ----------
    accumulates : whether gradients of parameters are counted elsewhere once they are made.

    Raises
    ------
    CaptureError : a block is not in the model, is not called exactly once, or the model cannot be
        run on fake tensors.
    """
    places = _places(model, blocks)
    alive = _Alive()
    calls: list[tuple[nn.Module, Any, Any]] = []
    args, kwargs = sample_of(sample)
    require_arguments(model, args, kwargs)
    try:
        with (
            preserved(model),
            failures_unlogged(),
            FakeTensorMode(allow_non_fake_inputs=True) as mode,
            averages_as_tensors(model),
            _standing_still(blocks, alive, calls),
        ):
            named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            state = {
                name: _leaf(mode.from_tensor(tensor), tensor) for name, tensor in named.items()
            }
            if accumulates:
                for tensor in state.values():
                    if tensor.requires_grad:
                        tensor.register_post_accumulate_grad_hook(alive.forget_gradient)
            args, kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            alive.ignore(state)
            alive.note((args, kwargs))
            with ValuesReadAs(1), alive:
                _step(functional_call(model, state, args, kwargs))
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CaptureError(f"the model cannot be run on fake tensors: {reason[0]}") from error
    names = {module: name for name, module in named_parts(model)}
    for block in blocks:
        count = sum(called is block for called, _, _ in calls)
        if count != 1:
            raise CaptureError(f"module '{names[block]}' is called {count} times, needs once")
    block_calls: list[BlockCall] = []
    for block, *arguments in calls:
        given_args, given_kwargs = pytree.tree_map_only(torch.Tensor, _empty, tuple(arguments))
        block_calls.append(
            BlockCall(block=block, replace=places[block], args=given_args, kwargs=given_kwargs)
        )
    count = range(len(block_calls))
    return Outside(
        calls=tuple(block_calls),
        running_bytes=tuple(alive.running.get(index, 0) for index in count),
        between_bytes=tuple(alive.between.get(index, 0) for index in (*count, len(block_calls))),
    )


def _step(outputs: Any) -> None:
    """Run the backward pass of what a model returned."""
    roots = [
        leaf
        for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])


def _leaf(fake: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return fake.detach().requires_grad_(of.requires_grad)


class _Alive(LiveBytes):
    """Bytes of storages that were made and are alive, with their peak between blocks.

    Attributes
    ----------
    running : by block, most while it runs.
    between : by the block that follows, most before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = 0
        self.running: dict[int, int] = {}
        self.between: dict[int, int] = {}
        self._paused = False

    def note(self, tensors: Any) -> None:
        """Count the storages of some tensors, each once."""
        if not self._paused:
            super().note(tensors)
            self.between[self.place] = max(self.between.get(self.place, 0), self.now)

    def ignore(self, tensors: Any) -> None:
        """Count the storages of some tensors, which are counted elsewhere, as nothing."""
        for tensor in pytree.tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._bytes[storage._cdata] = 0
                weakref.finalize(storage, self._free, storage._cdata)

    def forget_gradient(self, parameter: torch.Tensor) -> None:
        """Count a parameter's gradient no more."""
        assert parameter.grad is not None
        storage = parameter.grad.untyped_storage()._cdata
        if storage in self._bytes:
            self.now -= self._bytes[storage]
            self._bytes[storage] = 0

    def enter(self, block: int, after: int, beside: int = 0) -> None:
        """Note that a block runs, after which others follow, with bytes that it counts itself."""
        self.running[block] = max(self.running.get(block, 0), self.now - beside)
        self.place = after

    @contextmanager
    def paused(self) -> Generator[None]:
        """Count nothing."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


class _Block(torch.autograd.Function):
    """A block that stands still: its results, and later the gradients of its arguments."""

    @staticmethod
    def forward(ctx: Any, alive: _Alive, index: int, outputs: Any, *tensors: torch.Tensor) -> Any:
        ctx.alive, ctx.index = alive, index
        ctx.save_for_backward(*tensors)
        alive.enter(index, index + 1)
        with alive.paused():
            results = tuple(torch.empty_like(output) for output in outputs)
        alive.ignore(results)  # the block's plan counts them
        ctx.mark_non_differentiable(
            *(output for output in results if not output.is_floating_point())
        )
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.alive.enter(ctx.index, ctx.index, ctx.alive.bytes_of(gradients))
        input_gradients = [
            torch.empty_like(tensor) if needed else None
            for tensor, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[3:], strict=True)
        ]
        return None, None, None, *input_gradients


@contextmanager
def _standing_still(
    blocks: Sequence[nn.Module], alive: _Alive, calls: list[tuple[nn.Module, Any, Any]]
) -> Generator[None]:
    """Let blocks stand still, and note their calls."""

    def stand(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        calls.append((block, args, kwargs))
        with alive.paused(), torch.no_grad():
            leaves, spec = pytree.tree_flatten(forward(*args, **kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        inputs = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        if not any(tensor.requires_grad for tensor in inputs):  # parameters make the results differ
            inputs.append(torch.empty(0, requires_grad=True))
        outputs = iter(_Block.apply(alive, len(calls) - 1, tensors, *inputs))
        return pytree.tree_unflatten(
            [next(outputs) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec
        )

    own = [(block, block.__dict__.get("forward")) for block in blocks]
    try:
        for block in blocks:
            block.forward = partial(stand, block, block.forward)
        yield
    finally:
        for block, forward in own:
            block.__dict__.pop("forward", None)
            if forward is not None:
                block.__dict__["forward"] = forward


def _places(
    model: nn.Module, blocks: Sequence[nn.Module]
) -> dict[nn.Module, Callable[[nn.Module], None]]:
    """Return for each block the function that puts another module in its places."""
    if not blocks:
        raise CaptureError("there are no blocks, needs one at least")
    places: dict[nn.Module, list[Callable[[nn.Module], None]]] = {}
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None and any(child is block for block in blocks):
                setters = places.setdefault(child, [])
                setters.append(partial(parent._modules.__setitem__, name))
    for block in blocks:
        if block not in places:
            raise CaptureError(f"{type(block).__name__} is no module inside of the model")
    return {block: partial(_put, setters) for block, setters in places.items()}


def _put(setters: Sequence[Callable[[nn.Module], None]], module: nn.Module) -> None:
    """Put a module in all places of a block."""
    for put in setters:
        put(module)


def _empty(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor for a fake one; of arguments only shape, type and device count."""
    tensor = torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    )
    return tensor.requires_grad_(value.requires_grad)
