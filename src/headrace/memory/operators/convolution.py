"""Convolution's backward as two operators: gradients of parameters, then that of the input.

The second does not depend on the convolution's input, whose memory is free after the first (4.4).
ATen's kernels compute the two apart, so the results are the same bits.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import Node

from headrace.memory.operators.graphs import insert_call, replace_element
from headrace.memory.operators.variant import aten

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
    if grad.device.type != "cpu":
        stand_in = grad.new_empty(1).expand(shape)
        if _channels_last(strides):
            weight = _as_channels_last(weight)
    elif _is_plain(grad, weight, shape, strides, options):
        return _as_transposed(grad, weight, shape, *options[1:4])
    else:
        stand_in = torch.empty_strided(shape, strides, dtype=grad.dtype)
    made, _, _ = aten.convolution_backward.default(
        grad, stand_in, weight, *options, [True, False, False]
    )
    if made.stride() == strides:
        return made
    return torch.empty_strided(shape, strides, dtype=made.dtype, device=made.device).copy_(made)


def _is_plain(
    grad: Tensor,
    weight: Tensor,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    options: tuple[Any, ...],
) -> bool:
    """Return whether a transposed convolution has the same bits, by trials on CPUs.

    It needs no stand-in. Kernels for a batch of one, groups and other layouts add in another order.
    """
    _, _, _, _, transposed, _, groups = options
    kernel = weight.shape[2:].numel()
    if transposed or groups != 1 or shape[0] == 1 or kernel == 1:
        return False
    return grad.is_contiguous() and weight.is_contiguous() and not _channels_last(strides)


def _as_transposed(
    grad: Tensor,
    weight: Tensor,
    shape: tuple[int, ...],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    extra: list[int] = []
    for axis, size in enumerate(grad.shape[2:]):
        span = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        extra.append(shape[2 + axis] - ((size - 1) * stride[axis] - 2 * padding[axis] + span))
    return aten.convolution.default(grad, weight, None, stride, padding, dilation, True, extra, 1)


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
    if list(weight.stride()) == strides:
        return weight
    made = torch.empty_strided(weight.shape, strides, dtype=weight.dtype, device=weight.device)
    return made.copy_(weight)


def split_convolutions(graph: FxGraph) -> int:
    """Split backward convolutions of a joint graph in two nodes each; return how many.

    Those that need no gradient of the input stay as they are.
    """
    wanted = [
        node
        for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
        if node.args[_MASK][0]
    ]
    for node in wanted:
        _split(graph, node)
    return len(wanted)


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
    made = insert_call(graph, node, input_gradient, args, of_input)
    for use in list(node.users):
        if use.args[1] == 0:
            use.replace_all_uses_with(made)
            graph.erase_node(use)
    for use in list(node.users):  # gradients that are not computed
        graph.erase_node(use)
    graph.erase_node(node)
