"""Names of parameters: as a module's own, whether it or parts of it are wrapped."""

import fnmatch
from collections.abc import Collection
from typing import TYPE_CHECKING

from headrace.compression.errors import CompressionError

if TYPE_CHECKING:
    from torch import Tensor, nn

_WRAPPER = "module."
"""Prefix of the names of a DistributedDataParallel module."""
_INNER = frozenset(["_orig_mod", "_checkpoint_wrapped_module"])
"""Names by which modules that `torch.compile` and torch's `checkpoint_wrapper` return have the one
that they were given."""


def unwrapped_name(name: str) -> str:
    """Return the name that a parameter or module has where no part is compiled or checkpointed."""
    return ".".join(part for part in name.split(".") if part not in _INNER)


def parameter_names(module: "nn.Module") -> "dict[Tensor, str]":
    """Return the names of a module's parameters before any part of it is wrapped."""
    return {parameter: unwrapped_name(name) for name, parameter in module.named_parameters()}


def parameter_named(text: str, names: Collection[str]) -> str:
    """Return the parameter that a text names, as the module or its DistributedDataParallel does.

    Raises
    ------
    CompressionError : none of `names`.
    """
    unwrapped = unwrapped_name(text)
    for name in (unwrapped, unwrapped.removeprefix(_WRAPPER)):
        if name in names:
            return name
    example = next(iter(names), None)
    such = "" if example is None else f", such as {example!r}"
    raise CompressionError(f"parameter is {text!r}, needs the name of one that is averaged{such}")


def name_matches(name: str, pattern: str) -> bool:
    """Return whether a pattern, as in shells, is of this name or of DistributedDataParallel's."""
    pattern = unwrapped_name(pattern)
    return any(fnmatch.fnmatchcase(text, pattern) for text in (name, _WRAPPER + name))
