"""Attention: its probabilities stored, in place of the kernel that computes them again.

ATen's kernels keep the logarithm of each row's sum, and in the backward pass compute the
probabilities again from queries and keys. With the probabilities stored the backward pass has a
product fewer, and needs no output; they take queries times keys elements. Without dropout alone:
kernels do not say what they dropped.
"""

# pyright: reportPrivateUsage=false

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from headrace.memory.exactness import Exactness
from headrace.memory.operators.variant import (
    Intermediate,
    Offers,
    Variant,
    argument,
    aten,
    fake,
    laid_out,
)

_NOTE = "products and sums are in another order than in the kernel"


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Constants of an attention.

    Attributes
    ----------
    causal : whether queries see no later keys; there are as many of both.
    scale : of products of queries and keys.
    """

    causal: bool
    scale: float


def attention_with_probabilities(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
    strides: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    """Return the attention in a layout, and its probabilities (batch, heads, queries, keys).

    Parameters
    ----------
    query, key, value : (batch, heads, queries or keys, channels).
    mask : added to the scaled products, or, if boolean, of those that count; or None.
    """
    scores = (query @ key.transpose(-2, -1)).mul_(options.scale)
    if options.causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(later, float("-inf"))
    if mask is not None and mask.dtype == torch.bool:
        scores.masked_fill_(~mask, float("-inf"))
    elif mask is not None:
        scores.add_(mask)
    probabilities = aten._safe_softmax.default(scores, -1)
    return laid_out(probabilities @ value, strides), probabilities


def attention_backward_from_probabilities(
    grad: Tensor,
    probabilities: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: AttentionOptions,
    strides: tuple[tuple[int, ...], ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, each in a layout."""
    of_value = laid_out(probabilities.transpose(-2, -1) @ grad, strides[2])
    scores = grad @ value.transpose(-2, -1)
    scores = aten._softmax_backward_data.default(scores, probabilities, -1, scores.dtype)
    scores.mul_(options.scale)
    of_query = laid_out(scores @ key, strides[0])
    of_key = laid_out(scores.transpose(-2, -1) @ query, strides[1])
    return of_query, of_key, of_value


_FORWARD = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: "attn_mask",
    aten._scaled_dot_product_flash_attention.default: None,
    aten._scaled_dot_product_efficient_attention.default: "attn_bias",
}
"""Kernels, each with the name of its mask."""
_BACKWARD = {
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: "grad_out",
    aten._scaled_dot_product_flash_attention_backward.default: "grad_out",
    aten._scaled_dot_product_efficient_attention_backward.default: "grad_out_",
}
"""Kernels of the backward pass, each with the name of the gradient that it is given."""


def _operands(node: Node) -> tuple[Node, Node, Node]:
    query, key, value = (argument(node, name) for name in ("query", "key", "value"))
    return query, key, value


def _options(node: Node) -> AttentionOptions | None:
    """Return the constants of a kernel's node; None if it drops, or heads differ in number."""
    query, key, _ = map(fake, _operands(node))
    causal = cast(bool, argument(node, "is_causal"))
    if argument(node, "dropout_p") or query.dim() != 4 or query.shape[1] != key.shape[1]:
        return None
    if causal and query.shape[-2] != key.shape[-2]:
        return None
    scale = cast(float | None, argument(node, "scale"))
    return AttentionOptions(causal, query.shape[-1] ** -0.5 if scale is None else scale)


def _probabilities(node: Node) -> Intermediate:
    query, key, _ = map(fake, _operands(node))
    probabilities = query.new_empty((*query.shape[:-1], key.shape[-2]))
    return Intermediate(node=node, name="probabilities", value=probabilities)


def _attention(node: Node) -> list[Variant]:
    options, mask = _options(node), _FORWARD[cast(OpOverload, node.target)]
    if options is None:
        return []
    bias = argument(node, mask) if mask else None
    return [
        Variant(
            name="with probabilities",
            target=attention_with_probabilities,
            args=(*_operands(node), bias, options, node.meta["val"][0].stride()),
            creates=(0, _probabilities(node)),
            exactness=Exactness.ROUNDED,
            note=_NOTE,
        )
    ]


def _attention_backward(node: Node) -> list[Variant]:
    statistic = argument(node, "logsumexp")
    forward = statistic.args[0] if isinstance(statistic, Node) and statistic.args else None
    if not isinstance(forward, Node) or forward.target not in _FORWARD:
        return []
    options, gradients = _options(forward), node.meta["val"]
    if options is None or any(cast(int, use.args[1]) > 2 for use in node.users):  # of the mask
        return []
    grad = argument(node, _BACKWARD[cast(OpOverload, node.target)])
    strides = tuple(gradient.stride() for gradient in gradients[:3])
    return [
        Variant(
            name="from probabilities",
            target=attention_backward_from_probabilities,
            args=(grad, _probabilities(forward), *_operands(node), options, strides),
            creates=(0, 1, 2),
            exactness=Exactness.ROUNDED,
            note=_NOTE,
        )
    ]


OFFERS: dict[Any, Offers] = {
    **dict.fromkeys(_FORWARD, _attention),
    **dict.fromkeys(_BACKWARD, _attention_backward),
}
