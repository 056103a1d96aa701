"""Batch normalization: its backward pass from its output (4.4)."""

# pyright: reportPrivateUsage=false

from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from headrace.memory.errors import ImplementationError
from headrace.memory.exactness import Exactness
from headrace.memory.operators.variant import Offers, Variant, aten, fake

LEAST_WEIGHT = 1e-3
"""Least magnitude of a weight, relative to that of the bias plus 1, to go back from the output."""


def batch_norm_backward_from_output(
    grad: Tensor,
    out: Tensor,
    weight: Tensor,
    bias: Tensor,
    invstd: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight and bias, as far as wanted, from the output.

    The output y = weight * z + bias of a normalized z has mean `bias` and standard deviation
    `weight`. So ATen's kernel runs on y with these, and with weight^2 * invstd as the weight:
    ``(grad - mean(grad) - z * mean(grad * z)) * weight * invstd`` comes out of it.

    Raises
    ------
    ImplementationError
        If a weight is too small for z to be known from y (`LEAST_WEIGHT`).
    """
    if bool((weight.abs() < LEAST_WEIGHT * (bias.abs() + 1)).any()):
        raise ImplementationError(
            "a batch normalization has a weight near 0, so that its output does not determine its "
            "input; plan without conditional implementations"
        )
    gradients = aten.native_batch_norm_backward.default(
        grad,
        out,
        weight.square().mul_(invstd),
        None,
        None,
        bias.to(invstd.dtype),
        weight.reciprocal().to(invstd.dtype),
        True,
        0.0,
        wanted,
    )
    return tuple(each for each, want in zip(gradients, wanted, strict=True) if want)


def _is_dense(x: Tensor) -> bool:
    """Return whether x has a layout whose kernel scales by one product."""
    if x.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])


def _batch_norm_backward(node: Node) -> list[Variant]:
    grad, x, weight, _, _, mean, invstd, train, _, wanted = node.args
    forward = mean.args[0] if isinstance(mean, Node) and mean.args else None
    functional = aten._native_batch_norm_legit_functional.default
    if not isinstance(forward, Node) or forward.target is not functional:
        return []
    out = [use for use in forward.users if use.args[1] == 0]
    bias = forward.args[2]
    if not train or not out or not isinstance(weight, Node) or not isinstance(bias, Node):
        return []
    if fake(weight).dtype != fake(cast(Node, invstd)).dtype or not _is_dense(fake(cast(Node, x))):
        return []
    return [
        Variant(
            name="from output",
            target=batch_norm_backward_from_output,
            args=(grad, out[0], weight, bias, invstd, wanted),
            creates=tuple(i for i, want in enumerate(cast(list[bool], wanted)) if want),
            exactness=Exactness.CONDITIONAL,
            note=f"every |weight| is at least {LEAST_WEIGHT} (|bias| + 1); the normalized input "
            "is rounded to the output's precision",
        )
    ]


OFFERS: dict[Any, Offers] = {
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
