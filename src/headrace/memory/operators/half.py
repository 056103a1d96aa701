"""Activations in bfloat16 between the passes, on request: half the bytes, and rounded gradients.

A forward operator creates its result and a rounded copy, and operators of the backward pass read
the copy; with the forward pass's last read the result itself is freed. Only float32 is stored so,
and only first outputs: others are statistics, which gradients depend on closely.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from headrace.memory.exactness import Exactness
from headrace.memory.operators.variant import Intermediate, Variant, dense_strides, target_name

_NOTE = "activations are rounded to 8 bits of mantissa"
_Chain = tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...]
"""Views in order, each with its arguments after the tensor."""


@dataclass(frozen=True, slots=True)
class WithHalf:
    """An operator that returns a rounded copy of its first output, too."""

    target: Callable[..., Any]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def __name__(self) -> str:
        """Name in a graph's code."""
        return "with_half"

    def __str__(self) -> str:
        """Return it in words that are the same in every process: costs are kept by them."""
        return f"with bf16 {target_name(self.target)}{self.kwargs}"

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Return the tensors that it creates, and the copy."""
        first, *others = _tensors(self.target(*args, **dict(self.kwargs)))
        return (first, *others, first.to(torch.bfloat16))


@dataclass(frozen=True, slots=True)
class FromHalf:
    """An operator that reads rounded copies.

    Attributes
    ----------
    spec : structure of its arguments, which are given as leaves.
    views : leaves that are copies, with the views of them that it reads.
    """

    target: Callable[..., Any]
    kwargs: tuple[tuple[str, Any], ...]
    spec: pytree.TreeSpec
    views: tuple[tuple[int, _Chain], ...]

    @property
    def __name__(self) -> str:
        """Name in a graph's code."""
        return "from_half"

    def __str__(self) -> str:
        """Return it in words that are the same in every process: costs are kept by them."""
        views = [
            (place, [(target_name(view), args) for view, args in chain])
            for place, chain in self.views
        ]
        return f"from bf16 {target_name(self.target)}{self.kwargs} of {views} in {self.spec}"

    def __call__(self, *leaves: Any) -> Any:
        """Return the tensors that it creates."""
        values = list(leaves)
        for place, chain in self.views:
            value = values[place].to(torch.float32)
            for view, args in chain:
                value = view(value, *args)
            values[place] = value
        made = _tensors(self.target(*pytree.tree_unflatten(values, self.spec), **dict(self.kwargs)))
        return made[0] if len(made) == 1 else made


def _tensors(made: Any) -> tuple[Tensor, ...]:
    values: Iterable[Any] = made if isinstance(made, list | tuple) else (made,)
    return tuple(each for each in values if isinstance(each, Tensor))


def half_variants(
    forward: Iterable[Node], backward: Iterable[Node], root: Mapping[Node, Node]
) -> dict[Node, list[Variant]]:
    """Return the variants of operators that create or read activations in bfloat16.

    Parameters
    ----------
    forward, backward : operators of each pass.
    root : of nodes that are tensors, the operator whose first output their memory is.
    """
    stored = {node: half for node in forward if (half := _half(node)) is not None}
    found: dict[Node, list[Variant]] = {}
    for node in backward:
        variant = _reader(node, stored, root)
        if variant is None:
            continue
        found[node] = [variant]
        for read in variant.reads:
            if isinstance(read, Intermediate):
                found.setdefault(read.node, [_creator(read.node, read)])
    return found


def _half(node: Node) -> Intermediate | None:
    """Return the copy of a node's first output; None if it has none to copy."""
    first = next(iter(_values(node)), None)
    if not isinstance(first, Tensor) or first.dtype != torch.float32 or first.dim() == 0:
        return None
    if first.stride() != dense_strides(first) or first.storage_offset():
        return None
    if any(isinstance(each, Node) for each in pytree.tree_leaves(node.kwargs)):
        return None
    made = torch.empty_like(first, dtype=torch.bfloat16)
    return Intermediate(node=node, name="bf16", value=made)


def _values(node: Node) -> list[Any]:
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _creates(node: Node) -> tuple[int, ...]:
    return tuple(i for i, each in enumerate(_values(node)) if isinstance(each, Tensor))


def _creator(node: Node, half: Intermediate) -> Variant:
    return Variant(
        name="with bf16",
        target=WithHalf(cast(Callable[..., Any], node.target), tuple(node.kwargs.items())),
        args=node.args,
        creates=(*_creates(node), half),
        exactness=Exactness.LOSSY,
        note=_NOTE,
    )


def _reader(
    node: Node, stored: Mapping[Node, Intermediate], root: Mapping[Node, Node]
) -> Variant | None:
    leaves, spec = pytree.tree_flatten(node.args)
    if any(isinstance(each, Node) for each in pytree.tree_leaves(node.kwargs)):
        return None
    views: list[tuple[int, _Chain]] = []
    for place, leaf in enumerate(leaves):
        made = root.get(leaf) if isinstance(leaf, Node) else None
        chain = _chain(leaf, made) if made in stored else None
        if chain is not None:
            views.append((place, chain))
            leaves[place] = stored[cast(Node, made)]
    if not views:
        return None
    target = cast(Callable[..., Any], node.target)
    return Variant(
        name="from bf16",
        target=FromHalf(target, tuple(node.kwargs.items()), spec, tuple(views)),
        args=tuple(leaves),
        creates=_creates(node),
        exactness=Exactness.LOSSY,
        note=_NOTE,
    )


def _chain(node: Any, made: Node | None) -> _Chain | None:
    """Return the views from a node's first output to a value; None if one depends on others."""
    found: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    while node is not made:
        source, *args = node.args
        if node.target is getitem and source is made:
            break
        if len(node.all_input_nodes) != 1 or node.kwargs or node.target is getitem:
            return None
        found.append((node.target, tuple(args)))
        node = source
    return tuple(reversed(found))
