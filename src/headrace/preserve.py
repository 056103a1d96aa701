"""The user's objects around a run beside the user: whatever runs, they are afterwards as before.

A run or a trace of `forward` assigns attributes, appends to lists, counts in buffers, and swaps
parameters for traced ones. So all mutable objects that a model holds are copied shallowly before,
and afterwards those that differ are set back in place: an object that other code holds stays the
same object. Copies are of references, and of the values of small tensors that are no parameters.
"""

# pyright: reportPrivateUsage=false

import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import nn

_MOST_BYTES = 16 << 20
"""Of an array or tensor whose values are copied: what counts calls is small."""
MOST_DEPTH = 8
"""Objects within objects that are followed from a module: a configuration's own configuration and
its tables are; the data set behind a trainer that a module refers to is not."""
_ATOMS = (bool, int, float, complex, str, bytes, type, types.FunctionType, types.ModuleType)
_OPAQUE = (*_ATOMS, types.BuiltinFunctionType, torch.Generator)

_Restore = Callable[[], None]


@contextmanager
def objects_preserved(
    *roots: Any, tensors: bool = True, opaque: Callable[[Any], bool] = lambda _: False
) -> Generator[None]:
    """Leave objects as they are, with all that they refer to: whatever the block does or raises.

    Parameters
    ----------
    roots : modules, optimizers and others. With their parameters, buffers and other tensors,
        attributes, modes, hooks, lists, dictionaries, sets, arrays and other objects.
    tensors : whether tensors are set back: identity, gradient and hooks, and the values of those
        that are no parameters.
    opaque : whether an object is left as it is, with all that it refers to.
    """
    with _Snapshot(roots, tensors=tensors, opaque=opaque).restored():
        yield


class _Snapshot:
    """Functions that set back the mutable objects behind some roots."""

    def __init__(
        self, roots: Iterable[Any], *, tensors: bool, opaque: Callable[[Any], bool]
    ) -> None:
        self.restores: list[_Restore] = []
        self._tensors = tensors
        self._opaque = opaque
        self._seen: dict[int, Any] = {}  # with the objects, so that no number is used twice
        for root in roots:
            self._add(root, 0)

    @contextmanager
    def restored(self) -> Generator[None]:
        """Set the objects back behind a block, and let an interrupt (Ctrl-C) pass only then."""
        try:
            yield
        finally:
            interrupt = self._interrupted()
            while interrupt is not None and (further := self._interrupted()) is not None:
                interrupt = further
            if interrupt is not None:
                raise interrupt

    def _interrupted(self) -> KeyboardInterrupt | None:
        """Set all objects back that differ, and return what interrupted that, if anything."""
        try:
            for restore in self.restores:
                restore()
        except KeyboardInterrupt as interrupt:
            return interrupt
        return None

    def _add(self, value: Any, depth: int) -> None:
        if value is None or self._opaque(value) or isinstance(value, _OPAQUE):
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            depth = 0
        if depth > MOST_DEPTH:
            return
        if isinstance(value, torch.Tensor):
            if self._tensors:
                self._add_tensor(value)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= _MOST_BYTES:
                self.restores.append(_array_restore(cast(np.ndarray[Any, Any], value)))
        elif isinstance(value, dict | list | set | deque):
            self._add_container(cast(Any, value), depth)
        elif isinstance(value, tuple | frozenset):
            for element in cast(Iterable[Any], value):
                self._add(element, depth + 1)
        elif isinstance(value, types.MethodType):
            self._add(value.__self__, depth + 1)
        elif (state := random_state(value)) is not None:
            self.restores.append(_random_restore(value, state))
        else:
            self._add_object(value, depth)

    def _add_container(self, value: Any, depth: int) -> None:
        self.restores.append(_RESTORES[_kind(value)](value))
        parts = value.values() if isinstance(value, dict) else value
        for part in tuple(cast(Iterable[Any], parts)):
            self._add(part, depth + 1)

    def _add_object(self, value: Any, depth: int) -> None:
        """Add the attributes of an object, in its dictionary or in slots."""
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            self._add(attributes, depth)
            self.restores.append(_class_restore(value))
        for name in slots_of(type(value)):
            try:
                content = getattr(value, name)
            except AttributeError:
                continue
            self.restores.append(_slot_restore(value, name, content))
            self._add(content, depth + 1)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        self.restores.append(_tensor_restore(tensor))
        if not isinstance(tensor, nn.Parameter):
            self.restores.append(_value_restore(tensor))
        if tensor.__dict__:
            self._add(tensor.__dict__, 1)


def _kind(value: Any) -> type:
    return next(kind for kind in _RESTORES if isinstance(value, kind))


def slots_of(kind: type) -> list[str]:
    """Return the names of an object's attributes that are not in a dictionary."""
    if kind.__module__ in ("builtins", "torch", "torch._C"):
        return []
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _dict_restore(value: dict[Any, Any]) -> _Restore:
    before = list(value.items())
    own: Any = OrderedDict if isinstance(value, OrderedDict) else dict

    def restore() -> None:
        now = list(value.items())
        if len(now) != len(before) or any(
            a is not x or b is not y for (a, b), (x, y) in zip(now, before, strict=True)
        ):
            own.clear(value)
            for key, content in before:
                own.__setitem__(value, key, content)

    return restore


def _sequence_restore(value: Any) -> _Restore:
    before = list(value)

    def restore() -> None:
        if len(value) != len(before) or any(
            now is not element for now, element in zip(value, before, strict=True)
        ):
            value.clear()
            value.extend(before)

    return restore


def _set_restore(value: set[Any]) -> _Restore:
    before = set(value)

    def restore() -> None:
        if value != before:
            value.clear()
            value.update(before)

    return restore


_RESTORES: dict[type, Callable[[Any], _Restore]] = {
    dict: _dict_restore,
    list: _sequence_restore,
    deque: _sequence_restore,
    set: _set_restore,
}


def _class_restore(value: Any) -> _Restore:
    before = type(value)

    def restore() -> None:
        if type(value) is not before:
            value.__class__ = before

    return restore


def _slot_restore(value: Any, name: str, before: Any) -> _Restore:
    def restore() -> None:
        if getattr(value, name, None) is not before:
            object.__setattr__(value, name, before)

    return restore


def random_state(value: Any) -> Any:
    """Return the state of a random generator of NumPy or Python; None of what is no such one."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    return None


def _random_restore(value: Any, before: Any) -> _Restore:
    def restore() -> None:
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = before
        elif isinstance(value, np.random.RandomState):
            value.set_state(before)
        else:
            value.setstate(before)

    return restore


def _array_restore(value: np.ndarray[Any, Any]) -> _Restore:
    before = value.copy()

    def restore() -> None:
        if value.flags.writeable:
            np.copyto(value, before)

    return restore


def _value_restore(tensor: torch.Tensor) -> _Restore:
    """Return a function that resets a tensor if an operator has written into it."""
    has_values = tensor.device.type != "meta" and tensor.layout == torch.strided
    if not has_values or tensor.is_inference() or tensor.nbytes > _MOST_BYTES:
        return lambda: None
    try:
        version, before = tensor._version, _without_repeats(tensor).detach().clone()
    except NotImplementedError:  # of a library's own class, such as states of 8 bits
        return lambda: None

    def restore() -> None:
        nonlocal version
        if tensor._version != version:
            with torch.no_grad():
                _without_repeats(tensor).copy_(before)
            version = tensor._version

    return restore


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with each of its numbers once: torch writes into no expanded one."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    repeats = [size > 1 and stride == 0 for size, stride in sizes]
    if not any(repeats):
        return tensor
    return tensor[tuple(slice(0, 1) if repeated else slice(None) for repeated in repeats)]


def _tensor_restore(tensor: torch.Tensor) -> _Restore:
    requires_grad, is_leaf = tensor.requires_grad, tensor.is_leaf
    gradient = tensor.grad if is_leaf else None
    hooks = tensor._backward_hooks
    hook_items = None if hooks is None else list(hooks.items())

    def restore() -> None:
        if not is_leaf:
            return
        if tensor.grad is not gradient:
            tensor.grad = gradient
        if hooks is not None and list(hooks.items()) != hook_items:
            hooks.clear()
            hooks.update(hook_items or ())
        elif hooks is None and tensor._backward_hooks:
            tensor._backward_hooks.clear()
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)

    return restore
