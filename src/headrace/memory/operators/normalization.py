"""Normalizations: their backward passes from their outputs (4.4).

The output ``weight * z + bias`` of a normalized z determines z where no weight is near 0. It is
mostly stored anyway, for the linear layer or activation behind it, and the input is not.

``RMSNorm`` is one ATen operator on a GPU, and on the CPU some of them, of which those of the
backward pass that read the input or z read the output in their place.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph as FxGraph
from torch.fx import Node

from headrace.memory.errors import ImplementationError
from headrace.memory.exactness import Exactness
from headrace.memory.operators.variant import (
    Offers,
    Variant,
    argument,
    aten,
    dense_strides,
    fake,
    overwritable,
    sample_blocks,
    source,
)

_STATISTICS = (
    aten._native_batch_norm_legit_functional.default,
    aten.native_group_norm.default,
    aten.native_layer_norm.default,
)
LEAST_WEIGHT = 1e-3
"""Least magnitude of a weight, relative to that of the bias plus 1, to go back from the output."""


def drop_unread_statistics(graph: FxGraph) -> None:
    """Cut the inputs of batch normalization's backward that it does not read in training mode."""
    for node in graph.nodes:
        if node.target is aten.native_batch_norm_backward.default and node.args[7]:
            node.update_arg(3, None)
            node.update_arg(4, None)


def correct_statistics(graph: FxGraph) -> None:
    """Give statistics of a traced graph the types that the CPU's kernels return, in place.

    Of half-precision inputs with float32 weights, as under autocast, they are float32; torch traces
    the input's type.
    """
    corrected: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.target in _STATISTICS:
            value, weight = node.meta["val"], argument(node, "weight")
            wide = isinstance(weight, Node) and fake(weight).dtype == torch.float32
            if value[0].device.type == "cpu" and wide and value[0].dtype != torch.float32:
                with value[0].fake_mode:
                    statistics = tuple(statistic.to(torch.float32) for statistic in value[1:3])
                node.meta["val"] = (value[0], *statistics, *value[3:])
                for use in node.users:
                    if use.args[1] in (1, 2):
                        corrected[use] = use.meta["val"] = node.meta["val"][use.args[1]]
        elif node.target is aten.detach.default and node.args[0] in corrected:
            alias = corrected[node.args[0]]
            with alias.fake_mode:
                corrected[node] = node.meta["val"] = alias.detach()


def batch_norm_backward_from_output(
    grad: Tensor,
    out: Tensor,
    weight: Tensor,
    bias: Tensor,
    invstd: Tensor,
    output_mask: list[bool],
    in_place: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight and bias, as far as wanted, from the output.

    The first one is in place of `grad` if that is `in_place`.

    The output y = weight * z + bias of a normalized z has mean `bias` and standard deviation
    `weight`. So ATen's kernel runs on y with these, and with weight^2 * invstd as the weight:
    ``(grad - mean(grad) - z * mean(grad * z)) * weight * invstd`` comes out of it.

    Raises
    ------
    ImplementationError
        If a weight is too small for z to be known from y (`LEAST_WEIGHT`).
    """
    _refuse_small(weight, bias, "batch")
    scale, inverse = weight.square().mul_(invstd), weight.reciprocal()
    if in_place:
        return batch_norm_backward_in_place(grad, out, scale, bias, inverse, output_mask)
    gradients = aten.native_batch_norm_backward.default(
        grad, out, scale, None, None, bias, inverse, True, 0.0, output_mask
    )
    return _selected(gradients, output_mask)


def batch_norm_backward_in_place(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    output_mask: list[bool],
) -> tuple[Tensor, ...]:
    """Overwrite `grad` with the gradient of the input; return it, and those of weight and bias.

    ATen's kernel makes the sums, and the rest is by ``(grad - mean(grad) - z * mean(grad * z)) *
    weight * invstd``, block by block of the samples.
    """
    _, of_weight, of_bias = aten.native_batch_norm_backward.default(
        grad, x, weight, None, None, mean, invstd, True, 0.0, [False, True, True]
    )
    shape, count = (-1, *[1] * (x.dim() - 2)), grad.numel() // x.shape[1]
    centre, offset = mean.view(shape), of_bias.div(count).view(shape)
    slope = of_weight.mul(invstd).div_(count).view(shape)
    scale = (invstd if weight is None else weight * invstd).view(shape)
    for block in sample_blocks(x, 3 * x.nbytes):
        # centred first: a mean far above the deviation would cancel
        change = (x[block] - centre).mul_(slope).add_(offset)
        grad[block].sub_(change).mul_(scale)
    return _selected((grad, of_weight, of_bias), output_mask)


def layer_norm_backward_from_output(
    grad: Tensor,
    out: Tensor,
    shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of input, weight and bias, as far as wanted, from the output.

    ATen's kernel runs on z, whose mean is 0 and whose deviation is 1.

    Raises
    ------
    ImplementationError
        If a weight is too small for z to be known from the output (`LEAST_WEIGHT`).
    """
    gradients = aten.native_layer_norm_backward.default(
        grad,
        _normalized(out, weight, bias, "layer"),
        shape,
        torch.zeros_like(rstd),
        torch.ones_like(rstd),
        weight,
        bias,
        output_mask,
    )
    return _scaled(gradients, rstd, output_mask)


def rms_norm_backward_from_output(
    grad: Tensor,
    out: Tensor,
    shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor, ...]:
    """Return the gradients of input and weight, as far as wanted, from the output.

    Raises
    ------
    ImplementationError
        If a weight is too small for z to be known from the output (`LEAST_WEIGHT`).
    """
    z = _normalized(out, weight, None, "root mean square")
    gradients = aten._fused_rms_norm_backward.default(
        grad, z, shape, torch.ones_like(rstd), weight, output_mask
    )
    return _scaled(gradients, rstd, output_mask)


def _scaled(gradients: Any, rstd: Tensor, output_mask: list[bool]) -> tuple[Tensor, ...]:
    if output_mask[0]:
        gradients[0].mul_(rstd)
    return _selected(gradients, output_mask)


def _selected(gradients: Sequence[Tensor], output_mask: list[bool]) -> tuple[Tensor, ...]:
    return tuple(
        gradient for gradient, is_needed in zip(gradients, output_mask, strict=True) if is_needed
    )


def _normalized(out: Tensor, weight: Tensor | None, bias: Tensor | None, kind: str) -> Tensor:
    """Return z of an output ``weight * z + bias``."""
    if weight is None:
        return out
    _refuse_small(weight, bias, kind)
    return out / weight if bias is None else out.sub(bias).div_(weight)


def _refuse_small(weight: Tensor, bias: Tensor | None, kind: str) -> None:
    large = 1 if bias is None else bias.abs() + 1
    if bool((weight.abs() < LEAST_WEIGHT * large).any()):
        raise ImplementationError(
            f"a {kind} normalization has a weight near 0, so that its output does not determine "
            "its input; plan without conditional implementations"
        )


def product_from_output(
    factor: Tensor, out: Tensor, weight: Tensor | None, rstd: Tensor | None
) -> Tensor:
    """Return a factor times z, or times the input if `rstd` is given, from the output.

    Raises
    ------
    ImplementationError
        If a weight is too small for z to be known from the output (`LEAST_WEIGHT`).
    """
    product = factor * _normalized(out, weight, None, "root mean square")
    return product if rstd is None else product.div_(rstd)


def input_from_output(out: Tensor, weight: Tensor | None, rstd: Tensor) -> Tensor:
    """Return the input of a root mean square normalization from its output.

    Raises
    ------
    ImplementationError
        If a weight is too small for z to be known from the output (`LEAST_WEIGHT`).
    """
    return _normalized(out, weight, None, "root mean square") / rstd


def _is_dense(x: Tensor) -> bool:
    """Return whether x has a layout whose kernel scales by one product."""
    if x.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])


def _batch_norm_backward(node: Node) -> list[Variant]:
    grad, x, weight, _, _, mean, invstd, train, _, output_mask = node.args
    if not train or not _is_dense(fake(cast(Node, x))):
        return []
    in_place = _in_place(node)
    out = _output_beside(mean, aten._native_batch_norm_legit_functional.default)
    bias = out and cast(Node, out.args[0]).args[2]
    if not isinstance(weight, Node) or not isinstance(bias, Node):
        return in_place
    if fake(weight).dtype != fake(cast(Node, invstd)).dtype:
        return in_place
    args = (grad, out, weight, bias, invstd, output_mask)
    variants = [_from_output(batch_norm_backward_from_output, (*args, False), output_mask, weight)]
    variants += (
        replace(
            variants[0],
            name=f"from output, {variant.name}",
            args=(*args, True),
            overwrites=variant.overwrites,
        )
        for variant in in_place
    )
    return in_place + variants


def _in_place(node: Node) -> list[Variant]:
    """Return the gradient of the input in place of that of the output, of equal types.

    It is a choice, and not named as what always replaces the default: it rounds otherwise.
    """
    grad, x, weight, _, _, mean, invstd, _, _, output_mask = cast(Any, node.args)
    types = {fake(operand).dtype for operand in (grad, x, invstd)}
    if not output_mask[0] or len(types) > 1 or not overwritable(grad, node.meta["val"][0]):
        return []
    return [
        Variant(
            name="in place of the gradient",
            target=batch_norm_backward_in_place,
            args=(grad, x, weight, mean, invstd, output_mask),
            creates=_creates(output_mask),
            overwrites=grad,
            exactness=Exactness.ROUNDED,
            note="the terms of the gradient are added in another order",
        )
    ]


def _from_output(
    target: Callable[..., Any], args: tuple[Any, ...], output_mask: Any, weight: object
) -> Variant:
    """Return a variant, which has a condition where there are weights."""
    rounded = "the normalized input is rounded to the output's precision"
    condition = f"every |weight| is at least {LEAST_WEIGHT} (|bias| + 1); "
    return Variant(
        name="from output",
        target=target,
        args=args,
        creates=_creates(output_mask),
        exactness=Exactness.ROUNDED if weight is None else Exactness.CONDITIONAL,
        note=rounded if weight is None else condition + rounded,
    )


def _creates(output_mask: list[bool]) -> tuple[int, ...]:
    return tuple(index for index, is_needed in enumerate(output_mask) if is_needed)


def _backward(target: Callable[..., Any], forward: Any, rstd: int) -> Offers:
    """Return the offers of a backward operator from the first output of its forward operator.

    Parameters
    ----------
    rstd : index of that argument; it and the later ones are those of `target` behind the shape.
    """

    def offers(node: Node) -> list[Variant]:
        grad, _, shape, *_ = node.args
        operands = node.args[rstd:]
        out = _output_beside(operands[0], forward)
        if out is None or (operands[1] and fake(cast(Node, operands[1])).dtype != fake(out).dtype):
            return []
        if operands[1] is None and operands[2:-1] not in ((), (None,)):
            return []  # a bias without a weight
        return [_from_output(target, (grad, out, shape, *operands), operands[-1], operands[1])]

    return offers


def _output_beside(statistic: Any, target: Any) -> Node | None:
    """Return the first output of the normalization that a statistic is of."""
    statistic = source(statistic)
    forward = statistic.args[0] if isinstance(statistic, Node) and statistic.args else None
    if not isinstance(forward, Node) or forward.target is not target:
        return None
    return next((use for use in forward.users if use.args[1] == 0), None)


@dataclass(frozen=True, slots=True)
class _Rms:
    """Nodes of ``out = z * weight`` and ``z = x * rstd``; without a weight z is the output."""

    z: Node
    out: Node
    weight: Node | None
    rstd: Node

    @classmethod
    def of(cls, z: Any) -> "_Rms | None":
        """Return the normalization that a node is the normalized input of."""
        if not _is_product(z) or cast(Node, z.args[1]).target is not aten.rsqrt.default:
            return None
        x, rstd = z.args
        if fake(z).shape != fake(x).shape or fake(rstd).shape[-1] != 1:
            return None
        for use in z.users:
            weight = use.args[1] if _is_product(use) and use.args[0] is z else None
            if isinstance(weight, Node) and weight.op == "placeholder":
                return cls(z, use, weight, rstd)
        return cls(z, z, None, rstd)

    @classmethod
    def on(cls, x: Any) -> "_Rms | None":
        """Return the normalization of a node."""
        users = x.users if isinstance(x, Node) else ()
        norms = (cls.of(use) for use in users if _is_product(use) and use.args[0] is x)
        return next((norm for norm in norms if norm is not None), None)


def _is_product(node: Any) -> bool:
    return (
        isinstance(node, Node)
        and node.target is aten.mul.Tensor
        and all(isinstance(factor, Node) for factor in node.args)
    )


def _product(node: Node) -> list[Variant]:
    """Return a product of the backward pass with z or x, from the output."""
    factor, operand = node.args
    if not _is_product(node) or node.meta.get("partitioner_tag") != "is_backward":
        return []
    if fake(node).stride() != dense_strides(fake(node)):
        return []
    if (norm := _Rms.of(operand)) is not None and norm.out is not operand:
        args = (factor, norm.out, norm.weight, None)
    elif (norm := _Rms.on(operand)) is not None and factor is not norm.rstd:
        args = (factor, norm.out, norm.weight, norm.rstd)
    else:
        return []
    wide = torch.promote_types(fake(cast(Node, factor)).dtype, fake(norm.out).dtype)
    if wide != fake(node).dtype:  # by the weight
        return []
    return [_from_output(product_from_output, args, [True], norm.weight)]


def _power(node: Node) -> list[Variant]:
    """Return the first power of x, which the square's gradient reads, from the output."""
    x, exponent = node.args
    norm = _Rms.on(x)
    if norm is None or exponent != 1 or fake(norm.out).dtype != fake(node).dtype:
        return []
    args = (norm.out, norm.weight, norm.rstd)
    return [_from_output(input_from_output, args, [True], norm.weight)]


OFFERS: dict[Any, Offers] = {
    aten._fused_rms_norm_backward.default: _backward(
        rms_norm_backward_from_output, aten._fused_rms_norm.default, 3
    ),
    aten.mul.Tensor: _product,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm_backward.default: _backward(
        layer_norm_backward_from_output, aten.native_layer_norm.default, 4
    ),
    aten.pow.Tensor_Scalar: _power,
}
