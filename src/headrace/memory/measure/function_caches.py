"""Caches of functions (`functools.lru_cache`) around a trace of a model that calls them.

A cached function, of a position embedding or a mask, would return tensors of an earlier call within
a trace, and tensors of a trace to later calls.
"""

import gc
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

_CACHED: Any = type(lru_cache(lambda: None))
_LIBRARIES = frozenset({"numpy", "torch", *sys.stdlib_module_names})
_MOST_DEPTH = 3
"""Containers within containers of a result in which tensors are looked for."""


@contextmanager
def caches_emptied(model: nn.Module) -> Generator[None]:
    """Empty caches that hold tensors before and behind a block.

    Of functions in the Python modules of the model's classes, and in modules that these have
    imported (but for torch, NumPy and the standard library), and of methods of classes there.
    """
    functions = list({id(cached): cached for cached in _cached_functions(model)}.values())
    _empty(functions)
    try:
        yield
    finally:
        _empty(functions)


def _empty(functions: Iterable[Any]) -> None:
    for function in functions:
        if function.cache_info().currsize and _has_tensors(
            [
                part
                for part in gc.get_referents(function)
                if part is not getattr(function, "__wrapped__", None)
            ]
        ):
            function.cache_clear()


def _has_tensors(value: object, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return True
    if depth > _MOST_DEPTH or not isinstance(value, dict | list | tuple):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return any(_has_tensors(part, depth + 1) for part in parts)


def _cached_functions(model: nn.Module) -> Iterator[Any]:
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    names = {kind.__module__ for kind in kinds if kind.__module__.partition(".")[0] != "torch"}
    modules = list(filter(None, map(sys.modules.get, names)))
    imported = [
        value
        for module in modules
        for value in list(vars(module).values())
        if _is(value, ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES
    ]
    for module in {id(module): module for module in (*modules, *imported)}.values():
        for value in list(vars(module).values()):
            yield from _cached_in(value)
            if _is(value, type):
                for attribute in vars(value).values():
                    yield from _cached_in(attribute)


def _is(value: object, *kinds: type) -> bool:
    """Return whether a value is of a type, without asking one that stands for another (a proxy)."""
    return issubclass(type(value), kinds)


def _cached_in(value: Any) -> Iterator[Any]:
    """Yield a cached function, or the ones that a function calls as its closure."""
    if _is(value, staticmethod, classmethod):
        value = value.__func__
    elif _is(value, property):
        value = value.fget
    if _is(value, _CACHED):
        yield value
    elif _is(value, FunctionType):
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if _is(content, _CACHED):
                yield content
