"""Attention over a layer's cache as one operator of PyTorch, whose inside is not compiled.

A compiled step is the same for any number of tokens, and for any cache of the same size: number
and cache are values of tensors, not constants. The operator has no derivative.
"""

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

_layers: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Layers of `headrace.attention.run.layer`, which imports this module, by number."""
_numbers = itertools.count()


def registered(layer: Any) -> Tensor:
    """Return a layer's number for the operator, and the number of its calls: int64[2]."""
    number = next(_numbers)
    _layers[number] = layer
    return torch.tensor([number, 0], device="cpu")


@torch.library.custom_op("headrace::attend_layer", mutates_args={"state"})
def attend_layer(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    allowed: Tensor | None,
    state: Tensor,
    scale: float,
) -> Tensor:
    """Store the next tokens in a layer's cache and return their attention; see `LayerCache.attend`.

    Parameters
    ----------
    allowed : bool [batch, queries, capacity]; of tokens that are not stored yet it is not read.
    state : of the layer; see `registered`. A call counts itself there, which tells compilers that
        it changes something.
    """
    layer = _layers[int(state[0])]
    if allowed is not None:
        allowed = allowed[:, :, : layer.tokens + query.shape[2]]
    out = layer.attend(query, keys, values, scale=scale, allowed=allowed)
    state[1] += 1
    return out.contiguous()


@attend_layer.register_fake
def _(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    allowed: Tensor | None,
    state: Tensor,
    scale: float,
) -> Tensor:
    del keys, values, allowed, state, scale
    batch, heads, tokens, dim = query.shape
    return query.new_empty(batch, tokens, heads, dim)
