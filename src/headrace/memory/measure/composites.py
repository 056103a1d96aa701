"""Functions that a trace keeps as one operator, as eager execution runs them.

A trace dispatches operators through Python, where torch has decompositions that eager execution
does not use: a bilinear interpolation becomes 60 elementwise operators, with which a U-Net's step
is 1.8 times as slow. Called without that dispatcher, the functions below are one operator in the
forward and one in the backward pass.
"""

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

OPERATORS = frozenset(
    {
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_upsample_lanczos2d_aa",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "hardshrink",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "softshrink",
        "upsample_bicubic2d",
        "upsample_bilinear2d",
        "upsample_linear1d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_trilinear3d",
    }
)
"""ATen operators that torch decomposes in a trace and not in eager execution, without overloads."""


def _functions() -> Iterator[Callable[..., Any]]:
    """Yield the functions of torch by which a model calls `OPERATORS`."""
    yield from (
        functional.interpolate,
        functional.multi_margin_loss,
        functional.multilabel_margin_loss,
    )
    for name in OPERATORS:
        for namespace in (torch, torch.Tensor, torch._C._nn):
            if function := getattr(namespace, name, None):
                yield function
        if packet := getattr(torch.ops.aten, name, None):
            yield packet
            yield from (getattr(packet, overload) for overload in packet.overloads())


_FUNCTIONS = frozenset(_functions())


def is_composite(function: Callable[..., Any]) -> bool:
    """Return whether a function is one that torch would decompose."""
    return function in _FUNCTIONS


def as_one_operator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function without the decompositions of a trace."""
    with torch._C._DisablePythonDispatcher():
        return function(*args, **kwargs)
