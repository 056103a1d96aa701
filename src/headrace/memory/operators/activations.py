"""Activations: backward from output, from packed signs, and in place.

``relu``, ``hardtanh`` (ReLU6) and ``leaky_relu`` have gradients that depend on which side of a
threshold the input is; output and input are on the same side (4.4: output-activated), one bit says
which (4.4: intermediate-activated). NaN counts as above, as in ATen; only in `hardtanh_backward`
ATen's vectorized CPU kernel takes it as outside, and its scalar kernels do not.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from math import frexp
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from headrace.memory.operators import bits
from headrace.memory.operators.variant import (
    Creation,
    Intermediate,
    Offers,
    Variant,
    argument,
    aten,
    dense_strides,
    fake,
    overwritable,
    source,
)


def with_signs(
    x: Tensor, strides: tuple[int, ...], low: float = 0.0, high: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return ReLU or ``clamp(x, low, high)``, and bits of elements of no gradient, in a layout."""
    out = torch.relu(x) if high is None else aten.hardtanh.default(x, low, high)
    return out, _zeroed(out, strides, low, high)


def in_place_with_signs(
    x: Tensor, strides: tuple[int, ...], low: float = 0.0, high: float | None = None
) -> tuple[Tensor, Tensor]:
    """Overwrite a tensor with what `with_signs` returns; return it, and the bits."""
    out = torch.relu_(x) if high is None else aten.hardtanh_.default(x, low, high)
    return out, _zeroed(out, strides, low, high)


def _zeroed(x: Tensor, strides: tuple[int, ...], low: float, high: float | None) -> Tensor:
    """Return bits of the elements whose gradient is 0."""

    def flags(elements: Tensor, out: Tensor) -> None:
        torch.le(elements, low, out=out)
        if high is not None:
            out.logical_or_(elements >= high)

    return bits.pack_flags(flags, bits.in_memory_order(x, strides))


def zero_where_flagged(
    grad: Tensor, packed: Tensor, strides: tuple[int, ...], out_strides: tuple[int, ...]
) -> Tensor:
    """Return `grad`, or 0 where a bit is set; see `bits.by_blocks` for the strides."""
    zero = grad.new_zeros(())

    def change(elements: Tensor, flags: Tensor) -> Tensor:
        return torch.where(flags, zero, elements)

    return bits.by_blocks(change, grad, packed, strides, out_strides)


def zero_where_flagged_in_place(grad: Tensor, packed: Tensor) -> Tensor:
    """Set elements of `grad` to 0 where a bit is set; the bits are in its order of memory."""
    write = grad.as_strided((grad.numel(),), (1,))
    for block in bits.aligned_slices(write.numel(), grad.device):
        write[block].masked_fill_(bits.unpack(packed, block), 0)
    return grad


def threshold_backward_in_place(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """Overwrite `grad` with 0 where `x` is at or below the threshold."""
    return aten.threshold_backward.grad_input(grad, x, threshold, grad_input=grad)


def hardtanh_backward_in_place(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Overwrite `grad` with 0 where `x` is not between the two."""
    return aten.hardtanh_backward.grad_input(grad, x, low, high, grad_input=grad)


def leaky_relu_backward_in_place(grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Tensor:
    """Overwrite `grad` with the gradient of the input."""
    return aten.leaky_relu_backward.grad_input(grad, x, slope, is_result, grad_input=grad)


def gelu_backward_in_place(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    """Overwrite `grad` with the gradient of the input."""
    return aten.gelu_backward.grad_input(grad, x, approximate=approximate, grad_input=grad)


def silu_backward_in_place(grad: Tensor, x: Tensor) -> Tensor:
    """Overwrite `grad` with the gradient of the input."""
    return aten.silu_backward.grad_input(grad, x, grad_input=grad)


def softmax_backward_in_place(
    grad: Tensor, out: Tensor, dim: int, dtype: torch.dtype, of_logarithms: bool
) -> Tensor:
    """Overwrite `grad` with the gradient of the input, row by row."""
    if of_logarithms:
        return aten._log_softmax_backward_data.out(grad, out, dim, dtype, out=grad)
    return aten._softmax_backward_data.out(grad, out, dim, dtype, grad_input=grad)


def add_in_place(x: Tensor, y: Tensor) -> Tensor:
    """Overwrite `x` with the sum."""
    return x.add_(y)


def _signs(node: Node) -> Intermediate:
    """Return the packed signs of an activation, which is their layout's owner."""
    out = fake(node)
    packed = out.new_empty(bits.packed_bytes(out.numel()), dtype=torch.uint8)
    return Intermediate(node=node, name="signs", value=packed)


def _forward(in_place: Callable[..., Any], *names: str) -> Offers:
    """Return offers of an activation with limits: in place, with signs, and both."""

    def offers(node: Node) -> list[Variant]:
        x = cast(Node, node.args[0])
        limits = tuple(argument(node, name) for name in names)
        creates = (0, _signs(node))
        args = (x, dense_strides(fake(node)), *limits)
        plain = Variant(name="with signs", target=with_signs, args=args, creates=creates)
        return [
            plain,
            *_only_in_place(node, "in place", (x, *limits), in_place),
            *_only_in_place(node, "in place with signs", args, in_place_with_signs, creates),
        ]

    return offers


def _from_signs(node: Node, forward: Node) -> list[Variant]:
    grad = cast(Node, node.args[0])
    strides = dense_strides(fake(forward))
    signs = _signs(forward)
    out_strides = fake(node).stride()
    args = (grad, signs, strides, out_strides)
    variants = [Variant(name="from signs", target=zero_where_flagged, args=args, creates=(0,))]
    if strides == out_strides:
        name, target = "from signs in place", zero_where_flagged_in_place
        variants += _only_in_place(node, name, (grad, signs), target)
    return variants


def _with_in_place(
    node: Node, name: str, args: tuple[Any, ...], in_place: Callable[..., Any]
) -> list[Variant]:
    """Return a backward implementation, and the same in place."""
    target = cast(Callable[..., Any], node.target)
    variants = [Variant(name=name, target=target, args=args, creates=(0,))]
    return variants + _only_in_place(node, f"{name} in place", args, in_place)


def _only_in_place(
    node: Node,
    name: str,
    args: tuple[Any, ...],
    in_place: Callable[..., Any],
    creates: tuple[Creation, ...] = (0,),
) -> list[Variant]:
    """Return an implementation that overwrites its first argument, where that has the layout."""
    over = args[0]
    if not overwritable(over, fake(node)):
        return []
    return [Variant(name=name, target=in_place, args=args, creates=creates, overwrites=over)]


def _threshold_backward(node: Node) -> list[Variant]:
    grad, saved, threshold = node.args
    variants = _only_in_place(node, "in place", node.args, threshold_backward_in_place)
    forward = source(saved)
    if not _is(forward, aten.relu.default) or threshold != 0:
        return variants
    variants += _with_in_place(
        node, "from input", (grad, forward.args[0], threshold), threshold_backward_in_place
    )
    return variants + _from_signs(node, forward)


def _hardtanh_backward(node: Node) -> list[Variant]:
    grad, x, low, high = node.args
    if fake(cast(Node, grad)).stride() != fake(node).stride():
        return []  # torch traces the strides of x where its kernels return those of the gradient
    variants = _only_in_place(node, "in place", node.args, hardtanh_backward_in_place)
    if any(_rounds(fake(node).dtype, cast(float, limit)) for limit in (low, high)):
        return variants  # kernels clamp at the rounded limit, and compare with the other
    for forward in _uses(x, aten.hardtanh.default):
        if (argument(forward, "min_val"), argument(forward, "max_val")) == (low, high):
            args = (grad, forward, low, high)
            variants += _with_in_place(node, "from output", args, hardtanh_backward_in_place)
            variants += _from_signs(node, forward)
            break
    return variants


def _rounds(dtype: torch.dtype, limit: float) -> bool:
    """Return whether a type of 16 bits rounds a limit."""
    mantissa, _ = frexp(limit)
    return dtype.itemsize == 2 and not (2 * mantissa / torch.finfo(dtype).eps).is_integer()


def _leaky_relu_backward(node: Node) -> list[Variant]:
    grad, x, slope, is_result = node.args
    variants = _only_in_place(node, "in place", node.args, leaky_relu_backward_in_place)
    if is_result or cast(float, slope) <= 0:
        return variants
    for forward in _uses(x, aten.leaky_relu.default):
        if argument(forward, "negative_slope") == slope:
            args = (grad, forward, slope, True)
            return variants + _with_in_place(
                node, "from output", args, leaky_relu_backward_in_place
            )
    return variants


def _leaky_relu(node: Node) -> list[Variant]:
    args = (node.args[0], argument(node, "negative_slope"))
    return _only_in_place(node, "in place", args, aten.leaky_relu_.default)


def _gelu_backward(node: Node) -> list[Variant]:
    args = (*node.args, argument(node, "approximate"))
    return _only_in_place(node, "in place", args, gelu_backward_in_place)


def _silu_backward(node: Node) -> list[Variant]:
    return _only_in_place(node, "in place", node.args, silu_backward_in_place)


def _softmax_backward(node: Node) -> list[Variant]:
    dim = node.args[2]
    gradient, args = (
        fake(node),
        (*node.args, node.target is aten._log_softmax_backward_data.default),
    )
    last = (
        dim in (-1, gradient.dim() - 1)
        and gradient.is_contiguous()
        and gradient.device.type == "cpu"
    )
    # other kernels go through a row more than once, or have not been tried
    return _only_in_place(node, "in place", args, softmax_backward_in_place) if last else []


def _add(node: Node) -> list[Variant]:
    """Return sums in place of each term that has the sum's layout: addition commutes."""
    first, second = node.args
    if argument(node, "alpha") != 1 or not isinstance(second, Node):
        return []
    terms = (("first", first, second), ("second", second, first))
    return [
        Variant(
            name=f"in place of the {name}",
            target=add_in_place,
            args=(over, addend),
            creates=(0,),
            overwrites=cast(Node, over),
        )
        for name, over, addend in terms
        if overwritable(over, fake(node)) and not _share(over, addend)
    ]


def _share(first: Any, second: Any) -> bool:
    first_storage, second_storage = (
        fake(cast(Node, term)).untyped_storage() for term in (first, second)
    )
    return first_storage._cdata == second_storage._cdata


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target


def _uses(x: Any, target: Any) -> list[Node]:
    """Return the nodes of an operator whose first argument is `x`."""
    sources = [x] if isinstance(x, Node) else []
    return [
        use for operand in sources for use in operand.users if _is(use, target) and use.args[0] is x
    ]


OFFERS: dict[Any, Offers] = {
    aten.relu.default: _forward(aten.relu_.default),
    aten.hardtanh.default: _forward(aten.hardtanh_.default, "min_val", "max_val"),
    aten.leaky_relu.default: _leaky_relu,
    aten.threshold_backward.default: _threshold_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.leaky_relu_backward.default: _leaky_relu_backward,
    aten.gelu_backward.default: _gelu_backward,
    aten.silu_backward.default: _silu_backward,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.add.Tensor: _add,
}
