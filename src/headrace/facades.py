"""Facades: modules with ``__all__``, through which public names are imported and pickled.

A public class has its facade as its ``__module__``, so pickles, tracebacks and `repr` name the
facade, and the module that defines the class can be renamed.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class", bound=type)


def offered_by(facade: str) -> Callable[[_Class], _Class]:
    """Return a decorator that names `facade` as the module of a public class.

    It comes first, above ``@dataclass(slots=True)``, which makes another class.
    """

    def name_facade(offered: _Class) -> _Class:
        offered.__module__ = facade
        return offered

    return name_facade


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def public_value(
    facade: str,
    *,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - as of dataclass
) -> Callable[[_Class], _Class]:
    """Return a decorator of a public value: a frozen dataclass with slots and keywords alone.

    `facade` offers it; `eq` and `repr` are as of `dataclass`. Fields that a later version adds are
    the last ones and have a default, which they get in pickles of versions before it.
    """
    as_dataclass = dataclass(frozen=True, slots=True, kw_only=True, eq=eq, repr=repr)

    def make(value: _Class) -> _Class:
        public = as_dataclass(value)
        public.__setstate__ = set_fields
        return offered_by(facade)(public)

    return make


def set_fields(value: Any, state: Sequence[object]) -> None:
    """Set the fields of an unpickled value: by default those that its pickle does not have yet."""
    slots = fields(value)
    contents = [*state, *(slot.default for slot in slots[len(state) :])]
    for slot, content in zip(slots, contents, strict=True):
        if content is not MISSING:
            object.__setattr__(value, slot.name, content)


def deferred_names(
    facade: str,
    public: Sequence[str],
    modules: Mapping[str, str],
    extras: Mapping[str, Callable[[str], None]] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a facade that imports names at their first use.

    Parameters
    ----------
    public : all names of the facade, its ``__all__``.
    modules : of the names that are imported later: the module below `facade` that defines each.
    extras : of those that need one: raises an error that names it if the extra is not installed.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {facade!r} has no attribute {name!r}")
        if extras is not None and name in extras:
            extras[name](name)
        return getattr(import_module(f"{facade}.{modules[name]}"), name)

    return load, lambda: sorted({*vars(sys.modules[facade]), *public})
