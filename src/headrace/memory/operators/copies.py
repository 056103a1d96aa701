"""Copies of activations between the passes, on request: in bfloat16, or in the host's memory.

A forward operator creates its result and a copy, and operators of the backward pass read the copy;
with the forward pass's last read the result itself is freed. Only first outputs are copied: others
are statistics, which are small, and which gradients depend on closely.

- bfloat16 takes half the bytes of float32, and rounds gradients.
- The host's memory takes none of the device's. An operator takes longer by the transfer, on the
  same stream: nothing is assumed to overlap. Results are the same.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from headrace.facades import offered_by
from headrace.memory.exactness import Exactness
from headrace.memory.operators.variant import Intermediate, Variant, dense_strides, target_name

LEAST_OFFLOADED = 1 << 20
"""Bytes of the least activation that is copied to the host."""
_Chain = tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...]
"""Views in order, each with its arguments after the tensor."""


@offered_by("headrace.memory.operators")
@dataclass(frozen=True, slots=True)
class CopyStore:
    """A kind of copy.

    Attributes
    ----------
    name : bf16 or host.
    device : of the activations.
    """

    name: str
    device: torch.device

    def __str__(self) -> str:
        """Return it in words that are the same in every process."""
        return self.name if self.device.type == "cpu" else f"{self.name} of {self.device.type}"

    @property
    def on_host(self) -> bool:
        """True if copies take none of the device's memory."""
        return self.name == "host"

    def takes(self, tensor: Tensor) -> bool:
        """Return whether an activation may be copied."""
        if self.on_host:
            return tensor.nbytes >= LEAST_OFFLOADED
        return tensor.dtype == torch.float32

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy, on a device once its stream has come to it."""
        if not self.on_host:
            return tensor.to(torch.bfloat16)
        pinned = self.device.type != "cpu"
        pinned_copy = torch.empty(
            tensor.numel(), dtype=tensor.dtype, device="cpu", pin_memory=pinned
        )
        return pinned_copy.as_strided(tensor.shape, tensor.stride()).copy_(
            tensor, non_blocking=True
        )

    def traced(self, tensor: Tensor) -> Tensor:
        """Return the fake copy of a fake tensor."""
        return tensor.cpu() if self.on_host else tensor.to(torch.bfloat16)

    def original(self, copy: Tensor) -> Tensor:
        """Return the activation of a copy."""
        if not self.on_host:
            return copy.to(torch.float32)
        tensor = torch.empty_strided(
            copy.shape, copy.stride(), dtype=copy.dtype, device=self.device
        )
        return tensor.copy_(copy, non_blocking=True)


def bfloat16_store(device: torch.device) -> CopyStore:
    """Return the store of rounded copies."""
    return CopyStore("bf16", device)


def host_store(device: torch.device) -> CopyStore:
    """Return the store of copies in the host's memory."""
    return CopyStore("host", device)


@dataclass(frozen=True, slots=True)
class WithCopy:
    """An operator that returns a copy of its first output, too."""

    store: CopyStore
    target: Callable[..., Any]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def __name__(self) -> str:
        """Name in a graph's code."""
        return f"with_{self.store.name}"

    def __str__(self) -> str:
        """Return it in words that are the same in every process: costs are kept by them."""
        return f"with {self.store} {target_name(self.target)}{self.kwargs}"

    def __call__(self, *args: Any) -> tuple[Tensor, ...]:
        """Return the tensors that it creates, and the copy."""
        first, *others = _tensors(self.target(*args, **dict(self.kwargs)))
        return (first, *others, self.store.copy(first))


@dataclass(frozen=True, slots=True)
class FromCopy:
    """An operator that reads copies.

    Attributes
    ----------
    spec : structure of its arguments, which are given as leaves.
    views : leaves that are copies, with the views of them that it reads.
    """

    store: CopyStore
    target: Callable[..., Any]
    kwargs: tuple[tuple[str, Any], ...]
    spec: pytree.TreeSpec
    views: tuple[tuple[int, _Chain], ...]

    @property
    def __name__(self) -> str:
        """Name in a graph's code."""
        return f"from_{self.store.name}"

    def __str__(self) -> str:
        """Return it in words that are the same in every process: costs are kept by them."""
        views = [
            (place, [(target_name(view), args) for view, args in chain])
            for place, chain in self.views
        ]
        target = f"{target_name(self.target)}{self.kwargs}"
        return f"from {self.store} {target} of {views} in {self.spec}"

    def __call__(self, *leaves: Any) -> Any:
        """Return the tensors that it creates."""
        values, originals = list(leaves), dict[int, Tensor]()
        for place, chain in self.views:
            copy = values[place]
            if id(copy) not in originals:
                originals[id(copy)] = self.store.original(copy)
            value = originals[id(copy)]
            for view, args in chain:
                value = view(value, *args)
            values[place] = value
        del originals
        outputs = self.target(*pytree.tree_unflatten(values, self.spec), **dict(self.kwargs))
        return outputs if isinstance(outputs, Tensor) else _tensors(outputs)


def _tensors(outputs: Any) -> tuple[Tensor, ...]:
    values: Iterable[Any] = outputs if isinstance(outputs, list | tuple) else (outputs,)
    return tuple(output for output in values if isinstance(output, Tensor))


def copy_variants(
    store: CopyStore, forward: Iterable[Node], backward: Iterable[Node], root: Mapping[Node, Node]
) -> dict[Node, list[Variant]]:
    """Return the variants of operators that create or read copies of activations.

    Parameters
    ----------
    forward, backward : operators of each pass.
    root : of nodes that are tensors, the operator whose first output their memory is.
    """
    stored = {node: copy for node in forward if (copy := _copy(store, node)) is not None}
    variants: dict[Node, list[Variant]] = {}
    for node in backward:
        variant = _reader(store, node, stored, root)
        if variant is None:
            continue
        variants[node] = [variant]
        for read in variant.reads:
            if isinstance(read, Intermediate):
                variants.setdefault(read.node, [_creator(store, read.node, read)])
    return variants


def _copy(store: CopyStore, node: Node) -> Intermediate | None:
    """Return the copy of a node's first output; None if it has none to copy."""
    first = next(iter(_values(node)), None)
    if not isinstance(first, Tensor) or first.dim() == 0 or not store.takes(first):
        return None
    if first.stride() != dense_strides(first) or first.storage_offset():
        return None
    if any(isinstance(leaf, Node) for leaf in pytree.tree_leaves(node.kwargs)):
        return None
    copy = store.traced(first)
    return Intermediate(node=node, name=store.name, value=copy, on_host=store.on_host)


def _values(node: Node) -> list[Any]:
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _creates(node: Node) -> tuple[int, ...]:
    return tuple(i for i, output in enumerate(_values(node)) if isinstance(output, Tensor))


def _creator(store: CopyStore, node: Node, copy: Intermediate) -> Variant:
    target = cast(Callable[..., Any], node.target)
    return Variant(
        name=f"with {store.name}",
        target=WithCopy(store, target, tuple(node.kwargs.items())),
        args=node.args,
        creates=(*_creates(node), copy),
        **_exactness(store),
    )


def _exactness(store: CopyStore) -> dict[str, Any]:
    if store.on_host:
        return {"exactness": Exactness.EXACT}
    note = "activations are rounded to 8 bits of mantissa"
    return {"exactness": Exactness.LOSSY, "note": note}


def _reader(
    store: CopyStore, node: Node, stored: Mapping[Node, Intermediate], root: Mapping[Node, Node]
) -> Variant | None:
    leaves, spec = pytree.tree_flatten(node.args)
    if any(isinstance(leaf, Node) for leaf in pytree.tree_leaves(node.kwargs)):
        return None
    views: list[tuple[int, _Chain]] = []
    for place, leaf in enumerate(leaves):
        origin = root.get(leaf) if isinstance(leaf, Node) else None
        chain = _chain(leaf, origin) if origin in stored else None
        if chain is not None:
            views.append((place, chain))
            leaves[place] = stored[cast(Node, origin)]
    if not views:
        return None
    target = cast(Callable[..., Any], node.target)
    return Variant(
        name=f"from {store.name}",
        target=FromCopy(store, target, tuple(node.kwargs.items()), spec, tuple(views)),
        args=tuple(leaves),
        creates=_creates(node),
        **_exactness(store),
    )


def _chain(node: Any, root: Node | None) -> _Chain | None:
    """Return the views from a node's first output to a value; None if one depends on others."""
    views: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    while node is not root:
        source, *args = node.args
        if node.target is getitem and source is root:
            break
        if len(node.all_input_nodes) != 1 or node.kwargs or node.target is getitem:
            return None
        views.append((node.target, tuple(args)))
        node = source
    return tuple(reversed(views))
