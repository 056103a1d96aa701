"""Alternative implementations of a node of the joint graph: values."""

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from headrace.facades import public_value
from headrace.memory.exactness import Exactness

aten = torch.ops.aten
_COMMUNICATION = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor", "symm_mem")
"""Namespaces of torch's operators between ranks."""


@public_value("headrace.memory.operators")
class Intermediate:
    """A tensor that a forward operator creates for its backward operator, beside its outputs.

    Attributes
    ----------
    node : the forward node.
    name : such as ``signs``; with `node` it tells intermediates apart.
    value : fake tensor of its shape, strides, type and device.
    fill : a value that is valid in every element; kernels of indices trust what they read.
    on_host : whether it takes none of the device's memory.
    """

    node: Node
    name: str
    value: torch.Tensor = field(compare=False, repr=False)
    fill: int = field(default=0, compare=False)
    on_host: bool = field(default=False, compare=False)


Creation = int | Intermediate
"""Index of an output of the node (0 if it has one), or an intermediate."""


@public_value("headrace.memory.operators")
class Variant:
    """One implementation of a node beside its default, which is the node's own operator.

    Attributes
    ----------
    name : such as ``from signs``.
    target : function of `args`. It returns a tensor if the node does and `creates` has one element,
        else a tuple of tensors in the order of `creates`; each has the strides that were traced.
    args : nodes of the joint graph, intermediates and constants, nested in tuples or lists.
    creates : contents of what `target` returns. Outputs of the node that are not in it have no
        reader in the graph.
    overwrites : node or intermediate of `args` in whose memory the first of `creates` is, or None.
    exactness : against the default.
    note : reason for rounding or loss, and the condition of use; empty if exact everywhere.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    creates: tuple[Creation, ...]
    overwrites: Node | Intermediate | None = None
    exactness: Exactness = Exactness.EXACT
    note: str = ""

    @property
    def reads(self) -> tuple[Node | Intermediate, ...]:
        """Nodes and intermediates in `args`, each once."""
        return tuple(dict.fromkeys(_operands(self.args)))


Offers = Callable[[Node], list[Variant]]
"""Node -> its variants; empty if none applies."""


def _operands(value: Any) -> list[Node | Intermediate]:
    if isinstance(value, Node | Intermediate):
        return [value]
    if isinstance(value, list | tuple):
        return [operand for element in value for operand in _operands(element)]
    return []


def fake(node: Node) -> torch.Tensor:
    """Return the fake tensor of a node with one output."""
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor), node
    return value


def source(value: Any) -> Any:
    """Return the node that `value` is an alias of: autograd saves outputs through `detach`."""
    while isinstance(value, Node) and value.target in (aten.detach.default, aten.alias.default):
        value = value.args[0]
    return value


def argument(node: Node, name: str) -> Any:
    """Return an argument of an ATen node by its name in the schema, or its default."""
    if name in node.kwargs:
        return node.kwargs[name]
    target = node.target
    assert isinstance(target, OpOverload)
    for index, parameter in enumerate(target._schema.arguments):  # pyright: ignore[reportPrivateUsage]
        if parameter.name == name:
            return node.args[index] if index < len(node.args) else parameter.default_value
    raise KeyError(name)


def communicates(target: object) -> bool:
    """Return whether an operator exchanges tensors with other ranks."""
    return isinstance(target, OpOverload) and target.namespace in _COMMUNICATION


def target_name(target: Callable[..., Any]) -> str:
    """Return the name of an operator or a function, the same in every process."""
    return getattr(target, "__qualname__", None) or str(target)


def laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor in a layout, itself if it has that."""
    same = tensor.stride() == strides
    return tensor if same else tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def as_traced(tensor: torch.Tensor, strides: tuple[int, ...], nbytes: int) -> torch.Tensor:
    """Return a kernel's result in the layout that was traced, and in no more memory.

    Parameters
    ----------
    nbytes : of the storage that was traced.
    """
    if tensor.dim() != len(strides):  # a gradient that is not wanted
        return tensor
    layout = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if not all(n == 1 or a == b for n, a, b in layout):
        return laid_out(tensor, strides)
    if tensor.untyped_storage().nbytes() <= nbytes:
        return tensor
    # a single number of `mse_loss` is in the bytes of its input, `copy` of a slice in its base's
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return strides of a dense tensor of the same shape and order of dimensions."""
    return torch.empty_like(tensor).stride()


def overwritable(operand: Any, out: torch.Tensor) -> bool:
    """Return whether a result fits in the memory of an operand.

    An input of the step is not overwritten, nor a tangent; nor a part of a storage.
    """
    if not isinstance(operand, Node) or operand.op != "call_function":
        return False
    old = fake(operand)
    return (
        old.shape == out.shape
        and old.stride() == out.stride()
        and old.dtype == out.dtype
        and old.stride() == dense_strides(old)
        and old.untyped_storage().nbytes() == old.numel() * old.element_size()
    )


BLOCK_BYTES = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Of samples that functions in several steps go through at once: in the cache, or a few kernels'
launches."""


def sample_blocks(x: torch.Tensor, nbytes: int) -> Iterator[slice]:
    """Yield slices of samples, the first dimension of x.

    Parameters
    ----------
    nbytes : that all samples take; a block takes at most `BLOCK_BYTES`, or is of one sample.
    """
    samples = max(x.shape[0], 1)
    step = max(BLOCK_BYTES.get(x.device.type, BLOCK_BYTES["cpu"]) * samples // max(nbytes, 1), 1)
    for begin in range(0, x.shape[0], step):
        yield slice(begin, min(begin + step, x.shape[0]))
