"""Checks of factorizations, such as of a singular matrix, as operators of a trace.

AOTAutograd orders operators with effects by tokens, which are inputs and outputs of the step. A
check has no other effect than its error, so that it needs no order: each runs once, in its pass.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch._higher_order_ops.effects import _get_effect, _register_effectful_op
from torch.fx import Node
from torch.fx.node import has_side_effect

_CHECK = torch.ops.aten._linalg_check_errors.default


@contextmanager
def checks_as_operators() -> Generator[None]:
    """Trace checks of factorizations as operators without results."""
    has_side_effect(_CHECK)  # or graphs drop what nothing reads; torch's own traces do the same
    effect = _get_effect(_CHECK)
    _register_effectful_op(_CHECK, None)
    try:
        yield
    finally:
        _register_effectful_op(_CHECK, effect)


def is_check(node: Node) -> bool:
    """Return whether a node is the check of a factorization."""
    return node.target is _CHECK
