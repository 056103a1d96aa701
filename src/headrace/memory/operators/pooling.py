"""Max pooling: backward from an 8-bit index within the window, instead of 64 bits in the plane.

The index of the maximum within its window, of at most 256 positions, is stored as a byte (4.4:
intermediate-activated). The default backward also reads the pooling's input, of which it uses the
shape alone; here a tensor without values stands for it, in blocks of samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from headrace.memory.operators.variant import (
    Intermediate,
    Offers,
    Variant,
    argument,
    aten,
    fake,
    sample_blocks,
)

_FORWARD = {2: aten.max_pool2d_with_indices.default, 3: aten.max_pool3d_with_indices.default}
_BACKWARD = {
    2: aten.max_pool2d_with_indices_backward.default,
    3: aten.max_pool3d_with_indices_backward.default,
}
_BACKWARD_INTO = {
    2: aten.max_pool2d_with_indices_backward.grad_input,
    3: aten.max_pool3d_with_indices_backward.grad_input,
}


@dataclass(frozen=True, slots=True)
class Window:
    """Arguments of a pooling in two or three dimensions, and the shape of its input."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    shape: tuple[int, ...]

    @property
    def dimensions(self) -> int:
        """Dimensions of the window."""
        return len(self.size)

    @property
    def options(self) -> tuple[Any, ...]:
        """Arguments after the input, as ATen takes them."""
        lists = (self.size, self.stride, self.padding, self.dilation)
        return (*map(list, lists), self.ceil_mode)


def max_pool_with_bytes(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return the maxima, and their positions within their windows, the last dimension fastest."""
    out, left = _FORWARD[window.dimensions](x, *window.options)
    positions, step = torch.zeros_like(left), 1
    for axis in range(-1, -window.dimensions - 1, -1):
        within = left % window.shape[axis]
        left.sub_(within).floor_divide_(window.shape[axis])
        within.sub_(_origins(out, window, axis)).floor_divide_(window.dilation[axis])
        positions.add_(within, alpha=step)
        step *= window.size[axis]
    return out, positions.to(torch.uint8)


def max_pool_backward_from_bytes(
    grad: Tensor, positions: Tensor, window: Window, strides: tuple[int, ...]
) -> Tensor:
    """Return the gradient of the input from `max_pool_with_bytes`'s positions."""

    def indices(block: slice) -> Tensor:
        left = positions[block].to(torch.int64)
        indices, step = torch.zeros_like(left), 1
        for axis in range(-1, -window.dimensions - 1, -1):
            within = left % window.size[axis]
            left.sub_(within).floor_divide_(window.size[axis])
            within.mul_(window.dilation[axis]).add_(_origins(positions, window, axis))
            indices.add_(within, alpha=step)
            step *= window.shape[axis]
        return indices

    return _backward(grad, indices, window, strides)


def max_pool_backward_from_indices(
    grad: Tensor, indices: Tensor, window: Window, strides: tuple[int, ...]
) -> Tensor:
    """Return the gradient of the input, without the input."""
    return _backward(grad, indices.__getitem__, window, strides)


def _backward(
    grad: Tensor, indices: Callable[[slice], Tensor], window: Window, strides: tuple[int, ...]
) -> Tensor:
    """Run ATen's kernel in blocks of samples."""
    gradient = grad.new_empty_strided(window.shape, strides)
    for block in sample_blocks(gradient, gradient.nbytes + 24 * grad.numel()):
        written = gradient[block]
        _BACKWARD_INTO[window.dimensions](
            grad[block],
            torch.empty_like(written),
            *window.options,
            indices(block),
            grad_input=written,
        )
    return gradient


def _origins(out: Tensor, window: Window, axis: int) -> Tensor:
    """Return the first place of every window's lattice along an axis; it may be in the padding."""
    places = torch.arange(out.shape[axis], device=out.device) * window.stride[axis]
    return places.sub_(window.padding[axis]).view(-1, *[1] * (-1 - axis))


def _window(node: Node) -> Window:
    x = fake(cast(Node, node.args[0]))
    dimensions = next(
        dimensions for dimensions, target in _FORWARD.items() if node.target is target
    )

    def listed(value: Any) -> tuple[int, ...]:
        return tuple(map(int, (*value, *value, *value)[:dimensions]))

    size = listed(argument(node, "kernel_size"))
    return Window(
        size=size,
        stride=listed(argument(node, "stride") or size),
        padding=listed(argument(node, "padding")),
        dilation=listed(argument(node, "dilation")),
        ceil_mode=argument(node, "ceil_mode"),
        shape=tuple(x.shape),
    )


def _positions(node: Node) -> Intermediate:
    out, _ = node.meta["val"]
    positions = torch.empty_like(out, dtype=torch.uint8)
    window = _window(node)  # a position that no padding covers: of the first window, its corner
    fill = 0
    for padding, dilation, size in zip(window.padding, window.dilation, window.size, strict=True):
        fill = fill * size - (-padding // dilation)
    return Intermediate(node=node, name="positions", value=positions, fill=fill)


def _max_pool(node: Node) -> list[Variant]:
    window = _window(node)
    if prod(window.size) > 256 or any(
        use.args[1] == 1 and not _only_backward_reads(use) for use in node.users
    ):
        return []
    return [
        Variant(
            name="with bytes",
            target=max_pool_with_bytes,
            args=(node.args[0], window),
            creates=(0, _positions(node)),
        )
    ]


def _only_backward_reads(indices: Node) -> bool:
    return all(use.target in _BACKWARD.values() for use in indices.users)


def _max_pool_backward(node: Node) -> list[Variant]:
    grad, indices = node.args[0], argument(node, "indices")
    forward = indices.args[0]
    if forward.target not in _FORWARD.values():
        return []
    window = _window(forward)
    strides = fake(node).stride()
    ways: list[tuple[str, Callable[..., Any], Any]] = [
        ("from indices", max_pool_backward_from_indices, indices)
    ]
    if prod(window.size) <= 256:
        ways.append(("from bytes", max_pool_backward_from_bytes, _positions(forward)))
    return [
        Variant(name=name, target=target, args=(grad, read, window, strides), creates=(0,))
        for name, target, read in ways
    ]


OFFERS: dict[Any, Offers] = {
    **dict.fromkeys(_FORWARD.values(), _max_pool),
    **dict.fromkeys(_BACKWARD.values(), _max_pool_backward),
}
