"""Dropout: the mask as bits, an eighth of the bytes of booleans."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from headrace.memory.operators import bits
from headrace.memory.operators.variant import (
    Intermediate,
    Offers,
    Variant,
    argument,
    aten,
    dense_strides,
    fake,
)


def dropout_with_bits(
    x: Tensor, probability: float, train: bool | None, strides: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return `x` after dropout, and bits of the elements that remain, in a layout.

    The same random numbers are drawn as by ``native_dropout``.
    """
    out, mask = aten.native_dropout.default(x, probability, train)
    return out, bits.pack_flags(
        lambda part, flags: flags.copy_(part), bits.in_memory_order(mask, strides)
    )


def dropout_backward_from_bits(
    grad: Tensor,
    packed: Tensor,
    scale: float,
    strides: tuple[int, ...],
    out_strides: tuple[int, ...],
) -> Tensor:
    """Return ``grad * scale`` where a bit is set, and 0 elsewhere; see `bits.by_blocks`."""

    def change(elements: Tensor, retained: Tensor) -> Tensor:
        return aten.native_dropout_backward.default(elements, retained, scale)

    return bits.by_blocks(change, grad, packed, strides, out_strides)


def _mask(node: Node) -> tuple[Intermediate, tuple[int, ...]]:
    """Return the packed mask, and the strides of its layout."""
    mask = node.meta["val"][1]
    packed = mask.new_empty(bits.packed_bytes(mask.numel()), dtype=torch.uint8)
    return Intermediate(node=node, name="mask", value=packed), dense_strides(mask)


def _dropout(node: Node) -> list[Variant]:
    backward = aten.native_dropout_backward.default
    readers = [use for element in node.users if element.args[1] == 1 for use in element.users]
    if any(use.target is not backward for use in readers):
        return []
    mask, strides = _mask(node)
    args = (node.args[0], argument(node, "p"), argument(node, "train"), strides)
    return [Variant(name="with bits", target=dropout_with_bits, args=args, creates=(0, mask))]


def _dropout_backward(node: Node) -> list[Variant]:
    grad, element, scale = node.args
    forward = element.args[0] if isinstance(element, Node) else None
    if not isinstance(forward, Node) or forward.target is not aten.native_dropout.default:
        return []
    mask, strides = _mask(forward)
    args = (grad, mask, scale, strides, fake(node).stride())
    return [Variant(name="from bits", target=dropout_backward_from_bits, args=args, creates=(0,))]


OFFERS: dict[Any, Offers] = {
    aten.native_dropout.default: _dropout,
    aten.native_dropout_backward.default: _dropout_backward,
}
