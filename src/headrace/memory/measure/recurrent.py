"""Recurrent layers in a trace: one operator in each pass, whatever the length of the sequence.

torch decomposes them, step by step. Here a layer is an operator of our own, with the kernels of
eager execution and their autograd graph (`headrace.memory.operators.recurrent`). Its outputs are
those of a run of few steps with more of them, and so is the memory of its graph.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph as FxGraph
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from headrace.memory.generators import host_generators_preserved
from headrace.memory.measure.allocations import allocations_of
from headrace.memory.measure.sizes import rounded_bytes
from headrace.memory.operators.recurrent import FUNCTIONS, Layers, recurrent, recurrent_backward

_KINDS = {function: kind for kind, function in FUNCTIONS.items()}
_LIBRARY_STEPS, _STEPS = (32, 64), (2, 3)
"""Numbers of steps that are run to learn the memory of longer sequences, with kernels of a library,
whose workspaces are rounded to pages, and with torch's, whose memory is linear in the steps."""


def is_recurrent(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Return whether a call is of recurrent layers on a tensor; not on packed sequences."""
    return function in _KINDS and len(args) > 3 and isinstance(args[3], bool)


def traced_layers(
    function: Callable[..., Any],
    x: Tensor,
    hx: Any,
    weights: Sequence[Tensor],
    biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return the outputs of a function of torch, by operators of our own.

    Layers are operators of their own on the CPU, where eager execution runs one after the other,
    and if there is dropout between them.
    """
    x = x.transpose(0, 1) if batch_first else x
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    is_projected = states[0].shape[-1] != states[-1].shape[-1]
    if _uses_library(_KINDS[function], x.dtype, x.device) and not is_projected:
        x = x.contiguous()  # the kernels store a copy: as an operator, it frees the original
    dropout = dropout if train else 0.0
    parts = count if dropout or x.device.type != "cuda" else 1
    initial = [state.chunk(parts) for state in states]
    size = len(weights) // parts
    last: list[list[Tensor]] = []
    for part in range(parts):
        if part and dropout:
            x = nn.functional.dropout(x, dropout)
        tensors = (x, *(state[part] for state in initial), *weights[part * size :][:size])
        layers = _configuration(_KINDS[function], count // parts, biases, bidirectional, tensors)
        observed = _observed(
            layers,
            _Geometry.of(x),
            tuple(map(_Geometry.of, tensors[1 : 1 + len(states)])),
            tuple(map(_Geometry.of, tensors[1 + len(states) :])),
        )
        x, *ends, _ = _Layers.apply(layers, observed, len(states), *tensors)
        last.append(ends)
    x = x.transpose(0, 1) if batch_first else x
    return x, *(torch.cat(ends) if parts > 1 else ends[0] for ends in zip(*last, strict=True))


def _configuration(
    kind: str, count: int, biases: bool, bidirectional: bool, tensors: Sequence[Tensor]
) -> Layers:
    device = tensors[0].device.type
    return Layers(
        kind=kind,
        count=count,
        biases=biases,
        bidirectional=bidirectional,
        autocast=torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None,
        differentiated=tuple(tensor.requires_grad for tensor in tensors)
        if torch.is_grad_enabled()
        else (False,) * len(tensors),
    )


class _Layers(torch.autograd.Function):
    """Recurrent layers of a trace, of which the backward pass is one operator, too."""

    @staticmethod
    def forward(
        ctx: Any, layers: Layers, observed: "_Observation", states: int, *tensors: Tensor
    ) -> Any:
        *outputs, graph = _recurrent(
            tensors[0],
            list(tensors[1 : 1 + states]),
            list(tensors[1 + states :]),
            observed.graph_bytes,
            observed.output_dtype,
            observed.state_dtype,
            *_arguments(layers),
        )
        referred = [
            output
            for output, is_referred in zip(outputs, observed.referred, strict=True)
            if is_referred
        ]
        ctx.save_for_backward(graph, *referred, *tensors)
        ctx.set_materialize_grads(False)
        ctx.layers, ctx.states, ctx.referred = layers, states, len(referred)
        ctx.mark_non_differentiable(graph)
        return *outputs, graph

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        graph, *saved = ctx.saved_tensors
        outputs, (x, *others) = saved[: ctx.referred], saved[ctx.referred :]
        states, weights = others[: ctx.states], others[ctx.states :]
        computed = iter(
            _recurrent_backward(
                list(gradients[:-1]), graph, outputs, x, states, weights, *_arguments(ctx.layers)
            )
        )
        needed = ctx.layers.differentiated
        return None, None, None, *(next(computed) if is_needed else None for is_needed in needed)


def _arguments(layers: Layers) -> tuple[Any, ...]:
    """Return a configuration as arguments of a library's operator."""
    return (
        layers.kind,
        layers.count,
        layers.biases,
        layers.bidirectional,
        layers.autocast,
        list(layers.differentiated),
    )


@torch.library.custom_op("headrace::recurrent", mutates_args=())
def _recurrent(
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    graph_bytes: int,  # noqa: ARG001
    output_dtype: torch.dtype,  # noqa: ARG001
    state_dtype: torch.dtype,  # noqa: ARG001
    kind: str,
    count: int,
    biases: bool,
    bidirectional: bool,
    autocast: torch.dtype | None,
    differentiated: list[bool],
) -> list[Tensor]:
    layers = Layers(kind, count, biases, bidirectional, autocast, tuple(differentiated))
    return recurrent(x, states, weights, layers)


@_recurrent.register_fake
def _recurrent_fake(
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],  # noqa: ARG001
    graph_bytes: int,
    output_dtype: torch.dtype,
    state_dtype: torch.dtype,
    *options: Any,
) -> list[Tensor]:
    _, _, _, bidirectional, _, _ = options
    features = states[0].shape[-1] * (2 if bidirectional else 1)
    return [
        x.new_empty((*x.shape[:2], features), dtype=output_dtype),
        *(x.new_empty(state.shape, dtype=state_dtype) for state in states),
        x.new_empty(graph_bytes, dtype=torch.uint8),
    ]


@torch.library.custom_op("headrace::recurrent_backward", mutates_args=())
def _recurrent_backward(
    gradients: list[Tensor | None],
    graph: Tensor,
    outputs: list[Tensor],
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    kind: str,
    count: int,
    biases: bool,
    bidirectional: bool,
    autocast: torch.dtype | None,
    differentiated: list[bool],
) -> list[Tensor]:
    layers = Layers(kind, count, biases, bidirectional, autocast, tuple(differentiated))
    return list(recurrent_backward(gradients, graph, outputs, x, states, weights, layers))


@_recurrent_backward.register_fake
def _recurrent_backward_fake(
    gradients: list[Tensor | None],  # noqa: ARG001
    graph: Tensor,  # noqa: ARG001
    outputs: list[Tensor],  # noqa: ARG001
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    *options: Any,
) -> list[Tensor]:
    *_, differentiated = options
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, needed in zip((x, *states, *weights), differentiated, strict=True)
        if needed
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observation:
    """Outputs and autograd graph of layers, as a run on the device has shown.

    Attributes
    ----------
    graph_bytes : of what the graph stores, beside operands and outputs.
    referred : for each output, whether the graph stores it, too. Of the last states it may store
        copies.
    output_dtype, state_dtype : of the outputs of all steps, and of the last states.
    """

    graph_bytes: int
    referred: tuple[bool, ...]
    output_dtype: torch.dtype
    state_dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Shape, type and device of a tensor, and its dimensions in the order of memory.

    Kernels copy an input whose steps are not its outermost dimension, as with `batch_first`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    order: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "_Geometry":
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension])
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device, tuple(order))

    def zeros(self) -> Tensor:
        shape = [self.shape[dimension] for dimension in self.order]
        dense = torch.zeros(shape, dtype=self.dtype, device=self.device)
        return dense.permute([self.order.index(dimension) for dimension in range(len(shape))])


@lru_cache(maxsize=1024)
def _observed(
    layers: Layers, x: _Geometry, states: tuple[_Geometry, ...], weights: tuple[_Geometry, ...]
) -> _Observation:
    """Run layers on few steps of the geometry that is given, and conclude to all steps."""
    (steps, *shape), dtype, device = x.shape, x.dtype, x.device
    if device.type == "meta":
        return _Observation(
            graph_bytes=0,
            referred=(True,) * (1 + len(states)),
            output_dtype=dtype,
            state_dtype=dtype,
        )
    few, more = _LIBRARY_STEPS if _uses_library(layers.kind, dtype, device) else _STEPS
    with (
        _disable_current_modes(),
        torch._C._DisablePythonDispatcher(),
        host_generators_preserved(),
    ):

        def run(length: int) -> _Observation:
            return _run(layers, replace(x, shape=(length, *shape)), states, weights)

        if steps <= more:
            return run(steps)
        first, second = run(few), run(more)
    growth = -(-(second.graph_bytes - first.graph_bytes) // (more - few))
    return replace(second, graph_bytes=second.graph_bytes + growth * (steps - more))


def _uses_library(kind: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether eager execution runs layers by kernels of oneDNN or cuDNN."""
    if device.type != "cpu":
        return True
    return kind == "lstm" and dtype != torch.float64 and torch._C._get_mkldnn_enabled()


def _run(
    layers: Layers, x: _Geometry, states: tuple[_Geometry, ...], weights: tuple[_Geometry, ...]
) -> _Observation:
    operands = (
        x.zeros(),
        [state.zeros() for state in states],
        [weight.zeros() for weight in weights],
    )
    *outputs, graph = recurrent(*operands, layers)
    created = {output.untyped_storage().data_ptr(): output for output in outputs}
    kept_bytes = allocations_of(lambda: recurrent(*operands, layers), x.device).kept_bytes
    on_host = x.device.type == "cpu"  # where what is asked for is recorded, not what is allocated
    graph_bytes = kept_bytes - sum(
        output.untyped_storage().nbytes() if on_host else rounded_bytes(output)
        for output in created.values()
    )
    dtypes = [output.dtype for output in outputs]
    # hooks of saved tensors, which would show what the graph stores, are off in a trace
    references = [StorageWeakRef(output.untyped_storage()) for output in outputs]
    outputs.clear()
    created.clear()
    referred = tuple(not reference.expired() for reference in references)
    del graph
    return _Observation(
        graph_bytes=max(graph_bytes, 0),
        referred=referred,
        output_dtype=dtypes[0],
        state_dtype=dtypes[1],
    )


def call_functions(graph: FxGraph) -> None:
    """Replace the library's operators by the functions that they run, in place."""
    functions: dict[Any, tuple[Callable[..., Any], int]] = {
        _recurrent._opoverload: (recurrent, 3),
        _recurrent_backward._opoverload: (recurrent_backward, 6),
    }
    for node in graph.nodes:
        if node.target in functions:
            function, operands = functions[node.target]
            kind, count, biases, bidirectional, autocast, differentiated = node.args[-6:]
            layers = Layers(kind, count, biases, bidirectional, autocast, tuple(differentiated))
            node.target, node.args = function, (*node.args[:operands], layers)
