"""Values that a step reads from fake tensors, which have none: all are one (true), or all zero.

With ones a mask selects everything, and a check passes (are all elements finite?), as in most
steps: of sizes that depend on values the result is the most that the step needs. A random number is
one, whatever the others are, so that no layer is dropped (LayerDrop).
"""

# pyright: reportPrivateUsage=false

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from headrace.memory.measure.refuse import BY_VALUES


class ValuesReadAs(TorchDispatchMode):
    """Results of operators that read values, where none are known, as of tensors of one number.

    Parameters
    ----------
    number : 1 or 0.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            if type(error).__name__ not in BY_VALUES:
                raise
            return self._read(func, args, error)
        if func is torch.ops.aten.rand.default and result.numel() == 1:
            with _disable_current_modes():
                result.constant = torch.ones(result.shape, dtype=result.dtype, device=result.device)
        return result

    def _read(self, func: Any, args: Any, error: Exception) -> Any:
        """Return the result of an operator that cannot be run without values.

        Parameters
        ----------
        error : raised for any other operator.
        """
        if func is torch.ops.aten._local_scalar_dense.default:
            return _of_type(args[0].dtype, self._number)
        if func is torch.ops.aten.nonzero.default:
            return self._positions(args[0])
        if func is torch.ops.aten.unique_consecutive.default:
            repeats = args[0].new_empty((1,), dtype=torch.int64)
            return args[0].new_empty((1,)), torch.empty_like(args[0], dtype=torch.int64), repeats
        if func is torch.ops.aten.index.Tensor:
            return func(args[0], list(self._without_masks(args[1])))
        raise error

    def _positions(self, mask: Tensor) -> Tensor:
        """Return positions of all elements, or of none, a row each, as `torch.nonzero` does."""
        return mask.new_empty((mask.numel() * self._number, mask.dim()), dtype=torch.int64)

    def _without_masks(self, indices: Iterable[Tensor | None]) -> Iterable[Tensor | None]:
        """Yield indices with the positions of each mask, along its dimensions, in its place."""
        for index in indices:
            if index is not None and index.dtype == torch.bool:
                yield from self._positions(index).unbind(1)
            else:
                yield index


def _of_type(dtype: torch.dtype, number: int) -> bool | int | float:
    if dtype == torch.bool:
        return bool(number)
    return float(number) if dtype.is_floating_point else number
