"""New keys on their way from a cache's update to the attention over them.

A cache of Transformers returns all keys from its update; a compressed one returns the new ones, and
the attention that `headrace.attention.compress` sets reads the others from the layer they name.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.attention.errors import AttentionError

_LAYER, _PLAIN = "headrace_layer", "headrace_plain"


class NewKeys(Tensor):
    """New keys of which only shape and type can be read: an operation would miss earlier ones."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Return an attribute.

        Raises
        ------
        AttentionError : an operation reads numbers.
        """
        if getattr(func, "__name__", "") != "__get__":
            raise AttentionError(
                "keys of a compressed cache are read outside of compressed attention: call the "
                "model that headrace.attention.compress was given; one that changes keys after its "
                "cache is not compressed"
            )
        return super().__torch_function__(func, types, args, kwargs or {})


def new_keys(keys: Tensor, layer: Any) -> Tensor:
    """Return keys that name a cache's layer for the attention; compiled code has plain ones."""
    if torch.compiler.is_compiling():
        named = keys.view_as(keys)
    else:
        named = keys.as_subclass(NewKeys)
        setattr(named, _PLAIN, keys)
    setattr(named, _LAYER, layer)
    return named


def layer_of(keys: Tensor) -> Any:
    """Return the layer that keys name; None: they come from no compressed cache."""
    return getattr(keys, _LAYER, None)


def plain_keys(keys: Tensor) -> Tensor:
    """Return keys as the model computed them."""
    return getattr(keys, _PLAIN, keys)
