"""Batch normalization: computed again from its statistics, and its backward from the output.

A second run needs no pass over the input for mean and variance (4.4: "we also reuse BatchNorm
statistics"). It runs ATen's kernel of evaluation with variance 1, ``eps = 0``, and the product of
the weight and the saved reciprocal standard deviation as the weight. Both kernels compute
``x * a + (bias - mean * a)`` with this product as `a`, so the results are the same bits. Inputs
that are not dense have another kernel, and no such run.
"""

# pyright: reportPrivateUsage=false

from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from headrace.memory.errors import ImplementationError
from headrace.memory.operators.variant import Exactness, Offers, Variant, aten, fake

LEAST_WEIGHT = 1e-3
"""Least magnitude of a weight, relative to that of the bias plus 1, to go back from the output."""


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor
) -> Tensor:
    """Return a batch normalization with given statistics.

    Parameters
    ----------
    mean, invstd : (channels), mean and reciprocal standard deviation.
    """
    if x.is_cuda:
        return torch.batch_norm_elemt(x, weight, bias, mean, invstd, 0.0)
    scale = invstd if weight is None else invstd * weight
    out, _, _ = aten.native_batch_norm.default(
        x, scale, bias, mean, torch.ones_like(invstd), False, 0.0, 0.0
    )
    return out


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


def _batch_norm(node: Node) -> list[Variant]:
    x, weight, bias, _, _, train, *_ = node.args
    elements = {cast(int, use.args[1]): use for use in node.users}
    if not train or not {1, 2} <= elements.keys():
        return []
    if not _is_dense(fake(cast(Node, x))):
        return []
    same = not isinstance(weight, Node) or fake(weight).dtype == fake(elements[2]).dtype
    exact = same and fake(elements[2]).device.type == "cpu"
    return [
        Variant(
            name="from statistics",
            target=normalize,
            args=(x, weight, bias, elements[1], elements[2]),
            creates=(0,),
            again_only=True,
            exactness=Exactness.EXACT if exact else Exactness.ROUNDED,
            note="" if exact else "scales in another order",
        )
    ]


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
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
