"""Checks that all elements of a tensor are true, as operators of a trace.

Models check their batches by `torch._check_tensor_all`: those of images and text that there are as
many placeholders as features. Distributions check their arguments. A trace has no values to check.
Each step checks its own.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import has_side_effect


@torch.library.custom_op("headrace::require_none", mutates_args=())
def _require_none(violations: Tensor) -> None:
    if violations.item():
        raise ValueError(
            "a check of the model does not hold on this batch (torch._check_tensor_all, or of a "
            "distribution's arguments): call the module that was fitted on it, whose error says "
            "which"
        )


@_require_none.register_fake
def _require_none_fake(violations: Tensor) -> None:
    pass


has_side_effect(_require_none._opoverload)  # or graphs drop what nothing reads


class _Deferred:
    """Stands for a check's result on the host."""

    def item(self) -> bool:
        """Return that it holds."""
        return True

    __bool__ = item


def is_check_of_all(function: Any) -> bool:
    """Return whether a function of torch is the one by which values are checked."""
    return function in (torch.Tensor._is_all_true, torch._is_all_true)


def deferred_check(condition: Tensor) -> _Deferred:
    """Return a stand-in of a check's result; steps check."""
    _require_none(condition.logical_not().sum())
    return _Deferred()


def is_value_check(node: Node) -> bool:
    """Return whether a node checks values."""
    return node.target is _require_none._opoverload
