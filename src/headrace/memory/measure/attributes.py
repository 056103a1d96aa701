"""Attributes of modules, which a trace reads as constants: what tells steps apart.

Numbers, texts and flags are compared by type and value; containers and objects with attributes,
such as configurations, by content; functions, modules and torch's objects by identity; tensors that
are neither parameters nor buffers by identity and version; random generators by state. Variables
outside of modules, attributes of classes, and what a function has in its closure are not compared.
"""

# pyright: reportPrivateUsage=false

import enum
import functools
import hashlib
import logging
import types
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from headrace.facades import public_value
from headrace.memory.errors import CaptureError
from headrace.memory.measure.arguments import named_parts, part_named
from headrace.memory.measure.probe import ValueProbe, is_probe
from headrace.preserve import MOST_DEPTH, random_state, slots_of

Name = tuple[str, str]
"""Of an attribute: its module's (`named_parts`), and its own."""
_SHARED = frozenset(vars(nn.Module())) | {"_flat_weights", "_flat_weight_refs"}
"""Attributes that are not compared: parameters, buffers, modes and hooks are elsewhere, and
recurrent layers collect their parameters at every call."""
_MOST_OBJECTS = 20_000
"""Containers and objects that are read; further ones are compared by identity."""
_MOST_ENTRIES = 10_000
"""Of a container; a larger one is compared by identity and length."""
_MOST_BYTES = 64 << 10
"""Of an array that is compared by content before every step."""
_MISSING = object()
_VALUES = (
    *(type(None), bool, int, complex, str, bytes, enum.Enum),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, range),
)
_CONTAINERS = (dict, types.MappingProxyType, list, tuple, deque, set, frozenset)
_BY_IDENTITY = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, nn.Module),
    *(torch.Generator, logging.Logger, weakref.ref),
)


class Identity:
    """An object that is compared by identity, and not kept alive where that can be avoided."""

    __slots__ = ("_number", "_reference")

    def __init__(self, value: object) -> None:
        self._number = id(value)
        try:
            self._reference: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Identity)
            and self._number == other._number
            and self._reference() is not None
            and self._reference() is other._reference()
        )

    def __hash__(self) -> int:
        return self._number

    def __deepcopy__(self, _copied: Mapping[int, Any]) -> "Identity":
        return self


@public_value("headrace.memory")
class AttributeChange:
    """Assignment of an attribute by a call of `forward`, or an addition to one that is an integer.

    Attributes
    ----------
    value : assigned; added if `adds`.
    repeats : whether a step can do the same.
    """

    name: tuple[str, str]
    value: Any = None
    adds: bool = False
    repeats: bool = True

    def apply(self, model: nn.Module) -> None:
        """Change the attribute in a model."""
        module, attribute = self.name
        attributes = vars(part_named(model, module))
        attributes[attribute] = attributes[attribute] + self.value if self.adds else self.value


class AttributeReader:
    """Reads the attributes of a model's modules, again only where they differ from the last time.

    Parameters
    ----------
    model : with its submodules as they are at each reading.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._rows: list[_Row] = []
        self._unchanged: list[Callable[[], bool]] = []
        self._contents: dict[Name, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeReader, (self._model,)

    def read(self, modules: list[nn.Module] | None = None) -> Mapping[Name, Any]:
        """Return the contents that are compared; the same object if nothing has changed.

        Parameters
        ----------
        modules : of the model, if they are at hand.
        """
        if (modules or list(self._model.modules())) != self._modules:
            return self._read_all()
        differing: list[tuple[_Row, int, Any]] = []
        for row in self._rows:
            if len(row.attributes) != row.count:
                return self._read_all()
            now = list(map(row.attributes.get, row.names, repeat(_MISSING)))
            if not all(map(is_, now, row.values)):
                differing += [
                    (row, place, value)
                    for place, value in enumerate(now)
                    if value is not row.values[place]
                ]
        if not all(same() for same in self._unchanged):
            return self._read_all()
        if any(not (_is_value(new) and _is_value(row.values[i])) for row, i, new in differing):
            return self._read_all()
        if differing:
            self._contents = dict(self._contents)
        for row, place, value in differing:
            row.values[place] = value
            self._contents[row.module_name, row.names[place]] = _value(value)
        return self._contents

    def _read_all(self) -> Mapping[Name, Any]:
        self._modules = list(self._model.modules())
        reader = _Reader(self._modules)
        self._rows = [_Row.of(name, module) for name, module in named_parts(self._model)]
        self._contents = {
            (row.module_name, name): reader.content(value, 0)
            for row in self._rows
            for name, value in zip(row.names, row.values, strict=True)
        }
        self._unchanged = reader.unchanged
        return self._contents


@dataclass(slots=True)
class _Row:
    """A module's own attributes as they were read."""

    module_name: str
    attributes: dict[str, Any]
    count: int
    names: list[str]
    values: list[Any]

    @classmethod
    def of(cls, module_name: str, module: nn.Module) -> "_Row":
        attributes = vars(module)
        names = [name for name in attributes if name not in _SHARED]
        values = [attributes[name] for name in names]
        return cls(module_name, attributes, len(attributes), names, values)


def _is_value(value: object) -> bool:
    return not is_probe(value) and isinstance(value, (*_VALUES, float, np.generic))


def _value(value: Any) -> tuple[Any, ...]:
    # texts of floats tell -0.0 from 0.0, and a NaN equals itself
    is_float = isinstance(value, float | complex | np.generic)
    return type(value), repr(value) if is_float else value


class _Reader:
    """Reads values into what they are compared by, and functions that tell whether they changed."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._registered = {
            id(tensor)
            for module in modules
            for tensors in (module._parameters, module._buffers)
            for tensor in tensors.values()
        }
        self._modules = set(map(id, modules))
        self._submodules = {id(module._modules) for module in modules}
        self._read: dict[int, tuple[Any, Any]] = {}  # with the objects: no number is used twice
        self.unchanged: list[Callable[[], bool]] = []

    def content(self, value: Any, depth: int) -> Any:
        if is_probe(value):
            return ValueProbe, Identity(value)
        if _is_value(value):
            return _value(value)
        if id(value) in self._read:
            return self._read[id(value)][1]
        self._read[id(value)] = value, Identity(value)  # where it refers to itself
        if depth > MOST_DEPTH or len(self._read) > _MOST_OBJECTS:
            return Identity(value)
        content = self._object(value, depth + 1)
        self._read[id(value)] = value, content
        return content

    def _object(self, value: Any, depth: int) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(cast(np.ndarray[Any, Any], value))
        if isinstance(value, nn.Module) and id(value) not in self._modules:
            return self._hidden_module(value, depth)
        if (state := random_state(value)) is not None:
            return self._generator(value, repr(state))
        if isinstance(value, _BY_IDENTITY) or _is_torch(value):
            return Identity(value)
        if isinstance(value, _CONTAINERS) and len(container := cast(Any, value)) > _MOST_ENTRIES:
            count = len(container)
            self.unchanged.append(lambda: len(container) == count)
            return type(container), Identity(container), count
        if isinstance(value, dict | types.MappingProxyType):
            return self._dict(cast(Any, value), depth)
        if isinstance(value, list | tuple | deque):
            return self._sequence(cast(Any, value), depth)
        if isinstance(value, set | frozenset):
            elements = cast(Any, value)
            before = frozenset(elements)
            self.unchanged.append(lambda: elements == before)
            return type(elements), frozenset(self.content(element, depth) for element in before)
        if isinstance(value, types.MethodType):
            return Identity(value.__func__), self.content(value.__self__, depth)
        if isinstance(value, functools.partial):
            parts = cast("functools.partial[Any]", value)
            return self.content((parts.func, parts.args, parts.keywords), depth)
        return self._attributes(value, depth)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if id(tensor) in self._registered or tensor.is_inference():
            return type(tensor), Identity(tensor)
        version = tensor._version
        self.unchanged.append(lambda: tensor._version == version)
        return type(tensor), Identity(tensor), version

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        if array.nbytes > _MOST_BYTES or array.dtype.hasobject:
            return Identity(array)
        before = array.tobytes()
        self.unchanged.append(lambda: array.tobytes() == before)
        return np.ndarray, array.dtype.str, array.shape, before

    def _generator(self, generator: Any, state: str) -> Any:
        self.unchanged.append(lambda: repr(random_state(generator)) == state)
        return type(generator), state

    def _hidden_module(self, module: nn.Module, depth: int) -> Any:
        """Return the content of a module that is no submodule of the model.

        One that shares a module's submodules is what `fit` made of it, whose plans change by steps.
        """
        if id(module._modules) in self._submodules:
            return Identity(module)
        contents: list[Any] = []
        for submodule in module.modules():
            own = {name: value for name, value in vars(submodule).items() if name not in _SHARED}
            contents.append((type(submodule), submodule.training, self._entries(own, depth)))
            self._watch(vars(submodule), {"training": submodule.training, **own})
        return Identity(module), tuple(contents)

    def _dict(self, value: Mapping[Any, Any], depth: int) -> Any:
        self._watch(value, dict(value))
        return type(value), self._entries(value, depth)

    def _entries(self, value: Mapping[Any, Any], depth: int) -> Any:
        return tuple(
            (self.content(key, depth), self.content(item, depth)) for key, item in value.items()
        )

    def _watch(self, value: Mapping[Any, Any], entries: Mapping[Any, Any]) -> None:
        keys, items, count = list(entries), list(entries.values()), len(value)
        get = value.get
        self.unchanged.append(
            lambda: len(value) == count and all(map(is_, map(get, keys, repeat(_MISSING)), items))
        )

    def _sequence(self, value: Any, depth: int) -> Any:
        before = list(value)
        if not isinstance(value, tuple):
            self.unchanged.append(
                lambda: len(value) == len(before) and all(map(is_, value, before))
            )
        return type(value), tuple(self.content(element, depth) for element in before)

    def _attributes(self, value: Any, depth: int) -> Any:
        """Return the content of an object with attributes, in its dictionary or in slots."""
        attributes = getattr(value, "__dict__", None)
        names = slots_of(type(value))
        if not isinstance(attributes, dict) and not names:
            return Identity(value)
        items = [getattr(value, name, None) for name in names]
        if names:
            self.unchanged.append(
                lambda: all(
                    getattr(value, name, None) is item
                    for name, item in zip(names, items, strict=True)
                )
            )
        own = self._dict(cast(Any, attributes), depth) if isinstance(attributes, dict) else ()
        return type(value), own, tuple(self.content(item, depth) for item in items)


def argument_content(argument: Any) -> Hashable:
    """Return the content of an argument that is no tensor: a trace reads it as a constant.

    As attributes are; arrays by a digest of all bytes, however many they are.
    """
    if isinstance(argument, np.ndarray) and not argument.dtype.hasobject:
        array = cast("np.ndarray[Any, Any]", argument)
        return np.ndarray, array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()
    return _Reader(()).content(argument, 0)


def _is_torch(value: object) -> bool:
    """Return whether an object is torch's: an optimizer's state changes at every step."""
    return type(value).__module__.partition(".")[0] == "torch" and not isinstance(
        value, dict | list | tuple | set | frozenset
    )


def differing_names(before: Mapping[Name, Any], after: Mapping[Name, Any]) -> list[Name]:
    """Return the attributes that differ between two readings."""
    if before is after:
        return []
    names = [name for name, content in after.items() if before.get(name) != content]
    return names + [name for name in before if name not in after]


def attribute_changes(
    model: nn.Module, before: Mapping[Name, Any], after: Mapping[Name, Any]
) -> tuple[AttributeChange, ...]:
    """Return the changes that a call of `forward` has made."""
    changes: list[AttributeChange] = []
    modules = dict(named_parts(model))
    for name in differing_names(before, after):
        module_name, attribute = name
        attributes: dict[str, Any] = vars(modules[module_name])
        value: Any = attributes.get(attribute)
        if is_probe(value) and value.name == name:
            change = AttributeChange(name=name, value=value.increment, adds=True)
        elif _is_value(value) and attribute in attributes and _was_value(before, name):
            change = AttributeChange(name=name, value=value)
        else:
            change = AttributeChange(name=name, repeats=False)
        changes.append(change)
    return tuple(changes)


def require_repeatable(changes: Sequence[AttributeChange]) -> None:
    """Raise a `CaptureError` for changes that a step cannot do."""
    if names := [change.name for change in changes if not change.repeats]:
        raise CaptureError(
            f"{described(names)} is changed by its forward pass, which captured steps would not "
            "do; use a buffer that is updated in place, an attribute that is a number or a text, "
            "random numbers of torch, or return what is needed; or leave the module outside of "
            "what is fitted"
        )


def require_equal_changes(calls: Sequence[tuple[AttributeChange, ...]]) -> None:
    """Raise a `CaptureError` unless the latest call from the same state does what the first did."""
    first, latest = (
        {
            change.name: (change.adds, change.repeats, _value(change.value))
            for change in calls[place]
        }
        for place in (0, -1)
    )
    if names := differing_names(first, latest):
        raise CaptureError(
            f"{described(names)} is changed otherwise by each call of its forward pass, which "
            "captured steps cannot repeat: keep times and the like outside of the model, or leave "
            "the module outside of what is fitted"
        )


def _was_value(before: Mapping[Name, Any], name: Name) -> bool:
    """Return whether an attribute was a number, a text or the like, or was not there."""
    content = before.get(name)
    if content is None:
        return True
    kind = content[0] if isinstance(content, tuple) else None
    return isinstance(kind, type) and issubclass(kind, (*_VALUES, float, np.generic, ValueProbe))


def type_of(contents: Mapping[Name, Any], name: Name) -> Any:
    """Return the type of an attribute's value, or what it is compared by."""
    content = contents.get(name)
    return content[0] if isinstance(content, tuple) and content else content


def is_replaceable(value: object) -> bool:
    """Return whether a value is one whose uses a `ValueProbe` sees.

    Flags, None and members of enumerations are compared by identity, and functions may be asked
    for nothing but whether they can be called.
    """
    return (
        not isinstance(value, bool | enum.Enum | nn.Module | type(None))
        and not callable(value)
        and (isinstance(value, torch.Tensor) or not _is_torch(value))
    )


def described(names: Iterable[Name]) -> str:
    """Return the names of attributes for a message."""
    return ", ".join(
        f"attribute {attribute!r} of {f'module {module!r}' if module else 'the model'}"
        for module, attribute in names
    )
