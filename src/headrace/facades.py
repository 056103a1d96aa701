"""Facades: modules with ``__all__``, through which public names are imported and pickled.

A public class has its facade as its ``__module__``, so pickles, tracebacks and `repr` name the
facade, and the module that defines the class can be renamed. Pickles of earlier versions name the
defining modules of their time: `FORMER_MODULES` leads these to the facades.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class", bound=type)

FORMER_MODULES: Mapping[str, str] = {
    f"headrace.{module}": f"headrace.{facade}".removesuffix(".")
    for module, facade in {
        "collectives.demand": "collectives",
        "collectives.measure.pcie.probes": "collectives",
        "collectives.plan.book": "collectives",
        "collectives.plan.bound.bound": "collectives.plan.bound",
        "collectives.plan.cost.model": "collectives.plan.cost",
        "collectives.plan.generators.orbits.plan": "collectives",
        "collectives.plan.plan": "collectives",
        "collectives.program": "collectives",
        "collectives.run.executor": "executor",
        "collectives.run.shared_buffer": "executor",
        "collectives.run.statistics": "executor",
        "collectives.settings": "collectives",
        "compression.adapt.accordion": "compression",
        "compression.adapt.auto": "compression",
        "compression.adapt.controls": "compression",
        "compression.families": "compression",
        "compression.plan.advice": "compression",
        "compression.plan.network": "compression",
        "compression.plan.plan": "compression",
        "compression.policy": "compression",
        "compression.profile": "compression",
        "errors": "",
        "index.configuration": "index",
        "index.plan.plan": "index",
        "index.profile": "index",
        "index.trace": "index",
        "memory.errors": "memory",
        "memory.graph": "memory",
        "memory.plan.plan": "memory",
        "memory.profile": "memory",
        "memory.schedule": "memory",
        "settings": "",
        "solver.parameters": "solver",
        "testbed.spec": "testbed",
        "topology.importers.machine": "topology.importers",
        "topology.profile": "topology",
        "topology.topology": "topology",
    }.items()
}
"""Modules that pickles of earlier versions name -> the facades that offer their classes.

A module may be renamed without a change here: what no longer exists is taken from its facade.
"""


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


class _FormerModules:
    """Finder and loader of modules of `FORMER_MODULES` that no longer exist.

    It has no base of `importlib.abc`, whose import takes long.
    """

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _reloaded: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return the specification of a former module, or of a package that held one."""
        is_package = any(module.startswith(f"{name}.") for module in FORMER_MODULES)
        if name not in FORMER_MODULES and not is_package:
            return None
        loader: Any = self
        return ModuleSpec(name, loader, is_package=is_package)

    def create_module(self, _specification: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module the attributes of its facade, loaded when they are asked for."""
        facade = FORMER_MODULES.get(module.__name__)
        if facade is not None:
            module.__getattr__ = lambda name: getattr(import_module(facade), name)


def find_former_modules() -> None:
    """Let imports of former modules find their facades, after every other finder."""
    if not any(isinstance(finder, _FormerModules) for finder in sys.meta_path):
        sys.meta_path.append(_FormerModules())
