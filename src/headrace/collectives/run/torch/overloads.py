"""Overloads of torch's methods of process groups, and the arguments that they stand for.

torch declares most collectives several times: for lists and an options object, as its Python layer
calls them, and for one tensor with `op`, `root` and `timeout`, as programs do that call a group
directly. In C++ pybind11 chooses by the arguments. A method written in Python replaces all of them,
so the choice is made here, from a table of torch's own signatures. The first overload of a method
is the one that `Calls` implements.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed.distributed_c10d import (
    AllgatherOptions,  # pyright: ignore[reportPrivateImportUsage]
    AllToAllOptions,
    BarrierOptions,
)


def _is_tensors(value: Any) -> bool:
    return _is_sequence(value) and all(isinstance(member, Tensor) for member in value)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


_ACCEPTS: Mapping[str, Callable[[Any], bool]] = {
    "tensor": lambda value: isinstance(value, Tensor),
    "tensors": _is_tensors,
    "lists": lambda value: _is_sequence(value) and all(map(_is_tensors, value)),
    "sizes": _is_sequence,
    "number": lambda value: hasattr(value, "__index__") and not isinstance(value, Tensor),
    "op": lambda value: isinstance(value, (ReduceOp, ReduceOp.RedOpType)),
    "root": lambda value: hasattr(value, "__index__") and not isinstance(value, Tensor),
    "timeout": lambda value: value is None or isinstance(value, timedelta),
    "opts": lambda value: hasattr(value, "asyncOp"),
}
"""Kind of a parameter -> whether it accepts a value."""

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Parameter -> the field of the options object that has its value."""

_OPTIONAL = frozenset({"op", "timeout", "opts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One signature: names of its parameters in order, and their kinds (see `_ACCEPTS`)."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the values by name, or None if this signature does not accept them."""
        if len(args) > len(self.names):
            return None
        values = dict(zip(self.names, args, strict=False))
        if values.keys() & kwargs.keys() or not kwargs.keys() <= set(self.names):
            return None
        values |= kwargs
        for name, kind in zip(self.names, self.kinds, strict=True):
            if not _ACCEPTS[kind](values[name]) if name in values else kind not in _OPTIONAL:
                return None
        return values

    def __str__(self) -> str:
        members = zip(self.names, self.kinds, strict=True)
        return ", ".join(name if name == kind else f"{name}: {kind}" for name, kind in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadedMethod:
    """The signatures of one method.

    Attributes
    ----------
    options : type of its options object, which `Calls` takes as the last argument; None without.
    overloads : the first is that of `Calls`.
    """

    options: type | None
    overloads: tuple[Overload, ...]

    @property
    def last(self) -> type:
        """Type of the last argument of the first overload."""
        return self.options or int

    @property
    def count(self) -> int:
        """Arguments of the first overload."""
        return len(self.overloads[0].names)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the positional arguments of the first overload for those of any.

        Raises
        ------
        TypeError : no overload accepts these, as from torch's own groups.
        """
        for overload in self.overloads:
            values = overload.bind(args, kwargs)
            if values is not None:
                return self._arguments(overload, values)
        types = [type(value).__name__ for value in args]
        types += [f"{name}={type(value).__name__}" for name, value in kwargs.items()]
        signatures = " or ".join(f"({overload})" for overload in self.overloads)
        raise TypeError(f"incompatible arguments ({', '.join(types)}), needs {signatures}")

    def _arguments(self, overload: Overload, values: dict[str, Any]) -> list[Any]:
        arguments: list[Any] = []
        signature = zip(overload.names, overload.kinds, strict=True)
        for (name, kind), as_called in zip(signature, self.overloads[0].kinds, strict=False):
            if kind in _FIELDS or kind == "opts":
                break
            # one tensor for a list of one, and a list for a list of one list
            arguments.append(values[name] if kind == as_called else [values[name]])
        if self.options is None:
            return arguments
        options = values.get("opts") or self.options()
        for name, field in _FIELDS.items():
            if values.get(name) is not None:
                value = values[name]
                setattr(options, field, operator.index(value) if name == "root" else value)
        return [*arguments, options]


def _method(options: type | None, *signatures: str) -> OverloadedMethod:
    """Read signatures: "name: kind" or "kind", with commas between."""
    overloads: list[Overload] = []
    for signature in signatures:
        pairs = [parameter.partition(": ") for parameter in signature.split(", ")]
        overloads.append(
            Overload(
                names=tuple(name for name, _, _ in pairs),
                kinds=tuple(kind or name for name, _, kind in pairs),
            )
        )
    return OverloadedMethod(options=options, overloads=tuple(overloads))


_SPLIT = "output_split_sizes: sizes, input_split_sizes: sizes"

METHODS: Mapping[str, OverloadedMethod] = {
    "allreduce": _method(
        AllreduceOptions,
        "tensors, opts",
        "tensors, op, timeout",
        "tensor, op, timeout",
    ),
    "allreduce_coalesced": _method(AllreduceCoalescedOptions, "tensors, opts"),
    "broadcast": _method(BroadcastOptions, "tensors, opts", "tensor, root, timeout"),
    "reduce": _method(ReduceOptions, "tensors, opts", "tensor, root, op, timeout"),
    "allgather": _method(
        AllgatherOptions,
        "output_tensors: lists, input_tensors: tensors, opts",
        "output_tensors: tensors, input_tensor: tensor, timeout",
    ),
    "all_gather_single": _method(AllgatherOptions, "output: tensor, input: tensor, opts"),
    "allgather_coalesced": _method(
        AllgatherOptions, "output_lists: lists, input_list: tensors, opts"
    ),
    "all_gather_single_coalesced": _method(
        AllgatherOptions, "outputs: tensors, inputs: tensors, opts"
    ),
    "gather": _method(
        GatherOptions,
        "output_tensors: lists, input_tensors: tensors, opts",
        "output_tensors: tensors, input_tensor: tensor, root, timeout",
    ),
    "gather_single": _method(GatherOptions, "output: tensor, input: tensor, opts"),
    "scatter": _method(
        ScatterOptions,
        "output_tensors: tensors, input_tensors: lists, opts",
        "output_tensor: tensor, input_tensors: tensors, root, timeout",
    ),
    "reduce_scatter": _method(
        ReduceScatterOptions,
        "output_tensors: tensors, input_tensors: lists, opts",
        "output: tensor, input: tensors, op, timeout",
        "output_tensors: tensor, input_tensor: tensors, op, timeout",
    ),
    "reduce_scatter_single": _method(
        ReduceScatterOptions, "outputTensor: tensor, inputTensor: tensor, opts"
    ),
    "reduce_scatter_single_coalesced": _method(
        ReduceScatterOptions, "outputs: tensors, inputs: tensors, opts"
    ),
    "alltoall": _method(
        AllToAllOptions,
        "output_tensors: tensors, input_tensors: tensors, opts",
        "output_tensor: tensors, input_tensor: tensors, opts",
    ),
    "all_to_all_single": _method(
        AllToAllOptions,
        f"output: tensor, input: tensor, {_SPLIT}, opts",
        f"output: tensor, input: tensor, {_SPLIT}, timeout",
        f"output_tensor: tensor, input_tensor: tensor, {_SPLIT}, opts",
    ),
    "barrier": _method(BarrierOptions, "opts", "timeout"),
    "send": _method(None, "tensors, dstRank: number, tag: number"),
    "recv": _method(None, "tensors, srcRank: number, tag: number"),
    "recv_anysource": _method(None, "arg0: tensors, arg1: number"),
}
"""Name of a method of `Calls` -> its signatures in torch, for groups and backends."""


def overloaded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call`, which takes the first overload's arguments, as a method with all overloads."""
    signatures = METHODS[name]
    count, last = signatures.count, signatures.last

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # checked before anything else: torch itself calls the first overload
        if kwargs or len(args) != count or type(args[-1]) is not last:
            args = tuple(signatures.arguments(args, kwargs))
        return call(self, *args)

    return method
