"""Comparison of states: dictionaries and lists of tensors."""

import torch
from torch import Tensor


def same(one: object, other: object) -> bool:
    """Equal bit by bit, through dictionaries and lists."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
