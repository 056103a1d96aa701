"""Convolutions: the backward as two operators, each in parts of the batch or by other algorithms.

Gradients of parameters come first, then that of the input, which does not depend on the
convolution's input, whose memory is free after the first (4.4). ATen's kernels compute the two
apart, so the results are the same bits. Workspaces (tensors in the kernels' layout on the CPU,
those of its algorithm on a GPU) have a part's size if the parts of a batch run one by one (4.5.2).

On a GPU cuDNN chooses an algorithm, with its workspace, by the settings that torch has of it. An
implementation by other settings has another workspace and time (4.4). The search that cuDNN's
benchmark mode runs is none: what it chooses differs from process to process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.backends import cudnn
from torch.fx import Graph as FxGraph
from torch.fx import Node

from headrace.memory.exactness import Exactness
from headrace.memory.operators.graphs import insert_call, replace_element
from headrace.memory.operators.variant import (
    Creation,
    Offers,
    Variant,
    aten,
    fake,
    laid_out,
    target_name,
)

PARTS = 4
"""Most parts of a batch."""
_LEAST_BYTES = 1 << 20
"""Of what is divided; below, workspaces are mostly of weights."""
_ALGORITHMS = {
    "cuda": (
        ("deterministic algorithm", "deterministic", True),
        ("algorithm without cuDNN", "enabled", False),
    )
}
"""Type of device -> name, and the setting of cuDNN that selects it, with its value."""
_MASK = 10
"""Position of the choice of gradients: of the input, the weight and the bias."""


def input_gradient(
    grad: Tensor, weight: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], *options: Any
) -> Tensor:
    """Return the gradient of a convolution's input.

    Parameters
    ----------
    shape, strides : of the result.
    options : of ``convolution_backward``, from ``bias_sizes`` to ``groups``.
    """
    # of an input only its shape counts; on the CPU strides select the kernel, and values are copied
    if grad.device.type == "cpu":
        stand_in = grad.new_empty_strided(shape, strides)
    else:
        stand_in = grad.new_empty(1).expand(shape)
        if _channels_last(strides):
            weight = _as_channels_last(weight)
    gradient, _, _ = aten.convolution_backward.default(
        grad, stand_in, weight, *options, [True, False, False]
    )
    return laid_out(gradient, strides)


def _channels_last(strides: tuple[int, ...]) -> bool:
    return len(strides) > 3 and strides[1] == 1 and min(strides[2:]) > 1


def _as_channels_last(weight: Tensor) -> Tensor:
    """Return a weight whose strides select the kernels of that layout, of any size."""
    channels = weight.shape[1]
    strides = [0] * weight.dim()
    strides[1], step = 1, channels
    for axis in reversed(range(2, weight.dim())):
        strides[axis], step = step, step * weight.shape[axis]
    strides[0] = step
    return laid_out(weight, tuple(strides))


def convolution(
    x: Tensor, _shape: tuple[int, ...], strides: tuple[int, ...], *options: Any
) -> Tensor:
    """Return a convolution; shape and strides are the result's."""
    return laid_out(aten.convolution.default(x, *options), strides)


def convolution_in_parts(
    x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], *options: Any
) -> Tensor:
    """Return `convolution`, part by part of the batch."""
    out = x.new_empty_strided(shape, strides)
    for part in _parts(x):
        out[part] = aten.convolution.default(x[part], *options)
    return out


def input_gradient_in_parts(
    grad: Tensor, weight: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], *options: Any
) -> Tensor:
    """Return `input_gradient`, part by part of the batch."""
    out = grad.new_empty_strided(shape, strides)
    for part in _parts(grad):
        rows = grad[part]
        out[part] = input_gradient(rows, weight, (len(rows), *shape[1:]), strides, *options)
    return out


def parameter_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, strides: list[tuple[int, ...]], *options: Any
) -> tuple[Tensor, ...]:
    """Return those of ``convolution_backward`` that its last option wants.

    Parameters
    ----------
    strides : of each.
    """
    gradients = aten.convolution_backward.default(grad, x, weight, *options)
    needed = [
        gradient for gradient, is_needed in zip(gradients, options[-1], strict=True) if is_needed
    ]
    return tuple(map(laid_out, needed, strides))


def parameter_gradients_in_parts(
    grad: Tensor, x: Tensor, weight: Tensor, strides: list[tuple[int, ...]], *options: Any
) -> tuple[Tensor, ...]:
    """Return `parameter_gradients`, summed over parts of the batch."""
    sums: tuple[Tensor, ...] = ()
    for part in _parts(grad):
        gradients = parameter_gradients(grad[part], x[part], weight, strides, *options)
        sums = tuple(a.add_(b) for a, b in zip(sums, gradients, strict=True)) if sums else gradients
    return sums


@dataclass(frozen=True, slots=True)
class ByAlgorithm:
    """An operator under a setting of cuDNN, which other threads see, too, while it is launched."""

    target: Callable[..., Any]
    setting: str
    value: bool

    @property
    def __name__(self) -> str:
        """Name in a graph's code."""
        return f"{target_name(self.target)}_by_{self.setting}"

    def __str__(self) -> str:
        """Return it in words that are the same in every process: costs are kept by them."""
        return f"{target_name(self.target)} with cudnn.{self.setting} = {self.value}"

    def __call__(self, *args: Any) -> Any:
        """Run the operator under the setting."""
        before = getattr(cudnn, self.setting)
        setattr(cudnn, self.setting, self.value)
        try:
            return self.target(*args)
        finally:
            setattr(cudnn, self.setting, before)


def _parts(rows: Tensor) -> list[slice]:
    step = -(-len(rows) // PARTS)
    return [slice(begin, begin + step) for begin in range(0, len(rows), step)]


def split_convolutions(graph: FxGraph) -> int:
    """Split backward convolutions of a joint graph in two nodes each; return how many.

    Those that need no gradient of the input stay as they are.
    """
    convolutions = [
        node
        for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
        if node.args[_MASK][0]
    ]
    for node in convolutions:
        _split(graph, node)
    return len(convolutions)


def _split(graph: FxGraph, node: Node) -> None:
    grad, _, weight, *options, mask = node.args
    of_input, of_weight, of_bias = node.meta["val"]
    _, needs_weight, needs_bias = cast(list[bool], mask)
    if needs_weight or needs_bias:
        args = (*node.args[:_MASK], [False, needs_weight, needs_bias])
        parameters = insert_call(
            graph, node, aten.convolution_backward.default, args, (None, of_weight, of_bias)
        )
        replace_element(node, 1, parameters)
        replace_element(node, 2, parameters)
    args = (grad, weight, tuple(of_input.shape), of_input.stride(), *options)
    gradient = insert_call(graph, node, input_gradient, args, of_input)
    for use in list(node.users):
        if use.args[1] == 0:
            use.replace_all_uses_with(gradient)
            graph.erase_node(use)
    for use in list(node.users):  # gradients that are not computed
        graph.erase_node(use)
    graph.erase_node(node)


def _offered(
    node: Node,
    undivided: Callable[..., Any],
    in_parts: Callable[..., Any],
    args: tuple[Any, ...],
    creates: tuple[Creation, ...] = (0,),
) -> list[Variant]:
    rows = fake(cast(Node, node.args[0]))
    if rows.nbytes < _LEAST_BYTES:
        return []
    ways: list[tuple[str, Callable[..., Any], str]] = []
    if len(rows) > 1:
        note = "kernels for a smaller batch, and sums over parts, round otherwise"
        ways.append((f"in {PARTS} parts", in_parts, note))
    for name, setting, value in _ALGORITHMS.get(rows.device.type, ()) if rows.dim() == 4 else ():
        ways.append(
            (name, ByAlgorithm(undivided, setting, value), "another algorithm rounds otherwise")
        )
    return [
        Variant(
            name=name,
            target=target,
            args=args,
            creates=creates,
            exactness=Exactness.ROUNDED,
            note=note,
        )
        for name, target, note in ways
    ]


def _convolution(node: Node) -> list[Variant]:
    x, *options = node.args
    out = fake(node)
    args = (x, tuple(out.shape), out.stride(), *options)
    return _offered(node, convolution, convolution_in_parts, args)


def _input_gradient(node: Node) -> list[Variant]:
    return _offered(node, input_gradient, input_gradient_in_parts, node.args)


def _parameter_gradients(node: Node) -> list[Variant]:
    grad, x, weight, *options = node.args
    mask = cast(list[bool], node.args[_MASK])
    if mask[0]:
        return []
    creates = tuple(index for index, is_needed in enumerate(mask) if is_needed)
    strides = [node.meta["val"][index].stride() for index in creates]
    args = (grad, x, weight, strides, *options)
    return _offered(node, parameter_gradients, parameter_gradients_in_parts, args, creates)


OFFERS: dict[Any, Offers] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _parameter_gradients,
    input_gradient: _input_gradient,
}
