"""Max pooling: backward from an 8-bit index within the window, instead of 64 bits in the plane.

The index of the maximum within its window, of at most 256 positions, is stored as a byte (4.4:
intermediate-activated). The default backward also reads the pooling's input, of which it uses the
shape alone; here a tensor without values stands for it, in blocks of samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Window:
    """Arguments of a pooling in two dimensions, and the shape of its input."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil_mode: bool
    shape: tuple[int, ...]

    @property
    def options(self) -> tuple[Any, ...]:
        """Arguments after the input, as ATen takes them."""
        pairs = (self.size, self.stride, self.padding, self.dilation)
        return (*map(list, pairs), self.ceil_mode)


def max_pool_with_bytes(x: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return the maxima, and their positions within their windows: row * width + column."""
    out, indices = aten.max_pool2d_with_indices.default(x, *window.options)
    rows, columns = _origins(out, window)
    width = window.shape[-1]
    column = indices % width
    row = indices.sub_(column).floor_divide_(width).sub_(rows).floor_divide_(window.dilation[0])
    column = column.sub_(columns).floor_divide_(window.dilation[1])
    return out, row.mul_(window.size[1]).add_(column).to(torch.uint8)


def max_pool_backward_from_bytes(
    grad: Tensor, positions: Tensor, window: Window, strides: tuple[int, ...]
) -> Tensor:
    """Return the gradient of the input from `max_pool_with_bytes`'s positions."""
    rows, columns = _origins(positions, window)
    width = window.size[1]

    def indices(block: slice) -> Tensor:
        position = positions[block].to(torch.int64)
        column = position % width
        row = position.sub_(column).floor_divide_(width).mul_(window.dilation[0]).add_(rows)
        column.mul_(window.dilation[1]).add_(columns)
        return row.mul_(window.shape[-1]).add_(column)

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
    made = grad.new_empty_strided(window.shape, strides)
    for block in sample_blocks(made, made.nbytes + 24 * grad.numel()):
        written = made[block]
        aten.max_pool2d_with_indices_backward.grad_input(
            grad[block],
            torch.empty_like(written),
            *window.options,
            indices(block),
            grad_input=written,
        )
    return made


def _origins(out: Tensor, window: Window) -> tuple[Tensor, Tensor]:
    """Return the first row and the first column, inside of the input, of every window's lattice."""
    rows, columns = (
        torch.arange(out.shape[axis], device=out.device) * window.stride[axis]
        - window.padding[axis]
        for axis in (-2, -1)
    )
    return rows[:, None], columns


def _pair(value: Any) -> tuple[int, int]:
    first, second = (*value, *value)[:2]
    return int(first), int(second)


def _window(node: Node) -> Window:
    x = fake(cast(Node, node.args[0]))
    size = _pair(argument(node, "kernel_size"))
    return Window(
        size=size,
        stride=_pair(argument(node, "stride") or size),
        padding=_pair(argument(node, "padding")),
        dilation=_pair(argument(node, "dilation")),
        ceil_mode=argument(node, "ceil_mode"),
        shape=tuple(x.shape),
    )


def _positions(node: Node) -> Intermediate:
    out, _ = node.meta["val"]
    made = torch.empty_like(out, dtype=torch.uint8)
    window = _window(node)  # a position that no padding covers: of the first window, its corner
    fill = sum(
        -(-padding // dilation) * step
        for padding, dilation, step in zip(
            window.padding, window.dilation, (window.size[1], 1), strict=True
        )
    )
    return Intermediate(node=node, name="positions", value=made, fill=fill)


def _max_pool(node: Node) -> list[Variant]:
    window = _window(node)
    if window.size[0] * window.size[1] > 256 or any(
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
    backward = aten.max_pool2d_with_indices_backward.default
    return all(use.target is backward for use in indices.users)


def _max_pool_backward(node: Node) -> list[Variant]:
    grad, indices = node.args[0], argument(node, "indices")
    forward = indices.args[0]
    if forward.target is not aten.max_pool2d_with_indices.default:
        return []
    window = _window(forward)
    strides = fake(node).stride()
    ways: list[tuple[str, Callable[..., Any], Any]] = [
        ("from indices", max_pool_backward_from_indices, indices)
    ]
    if window.size[0] * window.size[1] <= 256:
        ways.append(("from bytes", max_pool_backward_from_bytes, _positions(forward)))
    return [
        Variant(name=name, target=target, args=(grad, read, window, strides), creates=(0,))
        for name, target, read in ways
    ]


OFFERS: dict[Any, Offers] = {
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
}
