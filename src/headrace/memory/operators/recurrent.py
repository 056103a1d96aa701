"""Recurrent layers: eager's own kernels, with the autograd graph stored or built again.

A layer's forward pass runs as in eager execution, and what autograd stores for it (gates and
hidden states of all steps, or the workspace of oneDNN or cuDNN) is one tensor of the joint graph:
an empty one that refers to the autograd graph. The backward pass runs that graph, or builds it
again by another forward pass (4.4: recomputation within an operator).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.fx import Node

from headrace.memory.exactness import Exactness
from headrace.memory.operators.variant import Offers, Variant

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gru": torch.gru,
    "lstm": torch.lstm,
    "rnn_relu": torch.rnn_relu,
    "rnn_tanh": torch.rnn_tanh,
}
_GRAPH = "_headrace_autograd_graph"
"""Attribute of a tensor: the leaves of an autograd graph, and its edges to the outputs."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Configuration of recurrent layers, whose steps are the first dimension of their input.

    Attributes
    ----------
    kind : of `FUNCTIONS`.
    autocast : type of autocast that they run under, or None.
    differentiated : for the input, the initial states and the weights, whether each needs a
        gradient.
    """

    kind: str
    count: int
    biases: bool
    bidirectional: bool
    autocast: torch.dtype | None
    differentiated: tuple[bool, ...]

    def run(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the output of all steps, and the last states."""
        initial = tuple(states) if self.kind == "lstm" else states[0]
        options = (self.biases, self.count, 0.0, True, self.bidirectional, False)
        enabled, dtype = self.autocast is not None, self.autocast
        with torch.autocast(x.device.type, dtype=dtype, enabled=enabled, cache_enabled=False):
            return list(FUNCTIONS[self.kind](x, initial, list(weights), *options))

    def flops(self, x: Tensor, weights: Sequence[Tensor]) -> float:
        """Return the operations of the products of a forward pass."""
        steps, samples = x.shape[:2]
        return (
            2.0 * steps * samples * sum(weight.numel() for weight in weights if weight.dim() == 2)
        )


def recurrent(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], layers: Layers
) -> list[Tensor]:
    """Return the output, the last states, and an empty tensor that refers to the autograd graph."""
    leaves = [
        tensor.detach().requires_grad_(needed)
        for tensor, needed in zip((x, *states, *weights), layers.differentiated, strict=True)
    ]
    outputs = _with_graph(leaves, len(states), layers)
    reference = x.new_empty(0, dtype=torch.uint8)
    if any(layers.differentiated):
        # edges, as outputs themselves would be kept as long
        setattr(reference, _GRAPH, (leaves, [get_gradient_edge(output) for output in outputs]))
    return [*(output.detach() for output in outputs), reference]


def recurrent_alone(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], layers: Layers
) -> tuple[Tensor, ...]:
    """Return the output and the last states, and store nothing for the backward pass."""
    with torch.no_grad():
        return tuple(layers.run(x, states, weights))


def recurrent_backward(
    gradients: Sequence[Tensor | None],
    graph: Tensor,
    _outputs: Sequence[Tensor],
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    layers: Layers,
) -> tuple[Tensor, ...]:
    """Return the gradients that are needed, from the autograd graph of the forward pass.

    The graph is freed as it runs; a second backward pass, or a hook of saved tensors that copies
    the reference to it, has it built again.

    Parameters
    ----------
    gradients : of the output and of the last states.
    graph : from `recurrent`.
    _outputs : of the forward pass if the graph refers to them: they have to be live.
    """
    if not hasattr(graph, _GRAPH):
        return recurrent_backward_rebuilt(gradients, x, states, weights, layers)
    return _differentiated(gradients, graph)


def recurrent_backward_rebuilt(
    gradients: Sequence[Tensor | None],
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    layers: Layers,
) -> tuple[Tensor, ...]:
    """Return the gradients that are needed, after another forward pass."""
    *_, graph = recurrent(x, states, weights, layers)
    return _differentiated(gradients, graph)


def _with_graph(leaves: Sequence[Tensor], states: int, layers: Layers) -> list[Tensor]:
    with torch.enable_grad():
        return layers.run(leaves[0], leaves[1 : 1 + states], leaves[1 + states :])


def _differentiated(gradients: Sequence[Tensor | None], graph: Tensor) -> tuple[Tensor, ...]:
    leaves, edges = getattr(graph, _GRAPH)
    delattr(graph, _GRAPH)
    pairs = [
        (edge, gradient)
        for edge, gradient in zip(edges, gradients, strict=True)
        if gradient is not None
    ]
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    computed = torch.autograd.grad(
        [edge for edge, _ in pairs],
        needed,
        [gradient for _, gradient in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    return tuple(_unshared(computed))


def _unshared(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients in storages of their own: both biases of a layer have one."""
    storages: set[int] = set()
    unshared: list[Tensor] = []
    for gradient in gradients:
        storage = gradient.untyped_storage().data_ptr()
        is_shared = storage in storages or not gradient.is_contiguous()
        unshared.append(
            gradient.clone(memory_format=torch.contiguous_format) if is_shared else gradient
        )
        storages.add(storage)
    return unshared


def frees_graph(target: Callable[..., Any]) -> bool:
    """Return whether a function frees the autograd graph that it runs."""
    return target is recurrent_backward


def with_fresh_graph(target: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments for one run of an operator: of `recurrent_backward` with a graph to run."""
    if not frees_graph(target):
        return args
    gradients, _, outputs, *operands = args
    return gradients, recurrent(*operands)[-1], outputs, *operands


def flops(target: Callable[..., Any], args: tuple[Any, ...]) -> float | None:
    """Return the operations of a run of one of the functions here; None of another function."""
    if target not in _PASSES:
        return None
    x, _, weights, layers = args[-4:]
    return _PASSES[target] * layers.flops(x, weights)


_PASSES: dict[Callable[..., Any], int] = {
    recurrent: 1,
    recurrent_alone: 1,
    recurrent_backward: 2,
    recurrent_backward_rebuilt: 3,
}
"""Products in multiples of a forward pass's."""


def retained(node: Node) -> list[Node]:
    """Return operands of a node that the autograd graph which it creates refers to."""
    return list(node.all_input_nodes) if node.target is recurrent else []


def _alone(node: Node) -> list[Variant]:
    *outputs, graph = node.meta["val"]
    layers = node.args[-1]
    assert isinstance(layers, Layers)
    # oneDNN and cuDNN have kernels of their own for inference
    by_library = layers.kind == "lstm" or graph.device.type != "cpu"
    return [
        Variant(
            name="without graph",
            target=recurrent_alone,
            args=node.args,
            creates=tuple(range(len(outputs))),
            exactness=Exactness.ROUNDED if by_library else Exactness.EXACT,
            note="by a kernel for inference" if by_library else "",
        )
    ]


def _rebuilt(node: Node) -> list[Variant]:
    gradients, _, _, *operands = node.args
    return [
        Variant(
            name="with another forward pass",
            target=recurrent_backward_rebuilt,
            args=(gradients, *operands),
            creates=tuple(range(len(node.meta["val"]))),
        )
    ]


OFFERS: dict[Any, Offers] = {recurrent: _alone, recurrent_backward: _rebuilt}
