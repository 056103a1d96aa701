"""All that models, optimizers and random generators hold, in a form that can be compared.

Objects are walked here without any code of `headrace.memory.measure.preserve`, whose work this
checks, and without a limit of depth.
"""

import random
import types
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

_VALUES = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """An object, which is equal to itself alone; a reference, so that its number stays its own."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def state_of_objects(*roots: Any) -> dict[str, Hashable]:
    """Return what objects hold: identities, contents and values, by the path from the roots.

    With the default random generators of Python, NumPy and torch.
    """
    walk = _Walk()
    walk.parts["generator of Python"] = random.getstate()
    walk.parts["generator of NumPy"] = repr(np.random.get_state())
    walk.parts["generator of torch"] = torch.get_rng_state().numpy().tobytes()
    for index, root in enumerate(roots):
        walk.visit(f"{index}:{type(root).__name__}", root)
    return walk.parts


def differences(before: Mapping[str, Hashable], after: Mapping[str, Hashable]) -> list[str]:
    """Return the paths of what two states do not have in common."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


@dataclass(slots=True)
class _Walk:
    parts: dict[str, Hashable] = field(default_factory=dict[str, Hashable])
    visited: set[Identity] = field(default_factory=set[Identity])

    def visit(self, path: str, value: Any) -> None:
        self.parts[path] = _token(value)
        if value is None or isinstance(value, (*_VALUES, *_CODE)):
            return
        if Identity(value) in self.visited:
            return
        self.visited.add(Identity(value))
        self.parts[f"{path} class"] = type(value)
        if isinstance(value, torch.Tensor):
            self._visit_tensor(path, value)
        elif isinstance(value, np.ndarray):
            array = cast("np.ndarray[Any, Any]", value)
            self.parts[f"{path} values"] = (array.shape, array.tobytes())
        elif isinstance(value, torch.Generator):
            self.parts[f"{path} state"] = value.get_state().numpy().tobytes()
        elif isinstance(value, dict):
            entries = cast("dict[Any, Any]", value)
            self.parts[f"{path} keys"] = tuple(map(_token, entries))
            self._visit_all(path, entries.items())
        elif isinstance(value, list | tuple | deque):
            elements = cast("list[Any]", value)
            self.parts[f"{path} length"] = len(elements)
            self._visit_all(path, enumerate(elements))
        elif isinstance(value, set | frozenset):
            self.parts[f"{path} elements"] = frozenset(map(_token, cast("set[Any]", value)))
        elif isinstance(value, types.MethodType):
            self.visit(f"{path} object", value.__self__)
        self._visit_attributes(path, value)

    def _visit_all(self, path: str, items: Iterable[tuple[Any, Any]]) -> None:
        for position, (key, value) in enumerate(items):
            name = key if isinstance(key, int | str) else position
            self.visit(f"{path}[{name!r}]", value)

    def _visit_attributes(self, path: str, value: Any) -> None:
        for name, attribute in dict(getattr(value, "__dict__", {})).items():
            self.visit(f"{path}.{name}", attribute)
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else tuple(slots):
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    self.visit(f"{path}.{name}", getattr(value, name))

    def _visit_tensor(self, path: str, tensor: torch.Tensor) -> None:
        self.parts[f"{path} layout"] = (tensor.shape, tensor.stride(), tensor.dtype)
        self.parts[f"{path} requires_grad"] = tensor.requires_grad
        # a traced or fake tensor, which a model must not have, has no values
        if type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            elements = tensor.detach().cpu().reshape(-1).view(torch.uint8)
            self.parts[f"{path} values"] = elements.numpy().tobytes()
        if tensor.is_leaf:
            self.visit(f"{path}.grad", tensor.grad)
            self.visit(f"{path} hooks", tensor._backward_hooks or None)


def _token(value: Any) -> Hashable:
    """Return a value with its type, or an object as itself."""
    return (type(value), repr(value)) if isinstance(value, _VALUES) else Identity(value)
