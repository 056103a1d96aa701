"""Values that a step reads from fake tensors, which have none: all are one, or true.

A mask then selects everything, and a check passes (are all elements finite?), as in most steps. Of
sizes that depend on values the result is the most that the step needs.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class ValuesAreOnes(TorchDispatchMode):
    """Results of the operators that read values, as those of tensors of ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return _one(args[0].dtype)
        if func is torch.ops.aten.nonzero.default:
            return _positions(args[0])
        if func is torch.ops.aten.unique_consecutive.default:
            repeats = args[0].new_empty((1,), dtype=torch.int64)
            return args[0].new_empty((1,)), torch.empty_like(args[0], dtype=torch.int64), repeats
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], list(_without_masks(args[1])))
        return func(*args, **(kwargs or {}))


def _one(dtype: torch.dtype) -> bool | int | float:
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


def _positions(mask: Tensor) -> Tensor:
    """Return positions of all elements, a row each, as `torch.nonzero` does."""
    return mask.new_empty((mask.numel(), mask.dim()), dtype=torch.int64)


def _without_masks(indices: Iterable[Tensor | None]) -> Iterable[Tensor | None]:
    """Yield indices with the positions of each mask, along its dimensions, in its place."""
    for index in indices:
        if index is not None and index.dtype == torch.bool:
            yield from _positions(index).unbind(1)
        else:
            yield index
