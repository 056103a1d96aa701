"""Ways to differentiate that a scheduled step cannot serve, and what users do instead."""

# pyright: reportPrivateUsage=false

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError

_STEP_NODE = "CompiledFunctionBackward"
"""Name of the node of a step that AOTAutograd compiled."""
_MOST_VIEWS = 4
"""Nodes between an output and its step: torch makes outputs that are views anew from their base."""


def is_transformed() -> bool:
    """Return whether a transform of torch.func or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def refuse_second_order(outputs: Any) -> None:
    """Make a backward pass of a step with ``create_graph=True`` raise a `CaptureError`."""
    for node in step_nodes(outputs):
        node.register_prehook(_refuse_graph)


def step_nodes(outputs: Any) -> list[Node]:
    """Return the nodes of steps that outputs are of: one, or none of inputs that were returned."""
    nodes = {
        id(node): node
        for output in pytree.tree_leaves(outputs)
        if isinstance(output, Tensor) and (node := _step_node(output)) is not None
    }
    return list(nodes.values())


def _step_node(output: Tensor) -> Node | None:
    """Return the node of the step that an output is of; None for an input that was returned."""
    node = output.grad_fn
    for _ in range(_MOST_VIEWS):
        if node is None or type(node).__name__ == _STEP_NODE:
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def _refuse_graph(_gradients: Any) -> None:
    if torch.is_grad_enabled():
        raise CaptureError(
            "gradients of a fitted step cannot be differentiated again (create_graph=True): "
            "compute what needs this, such as a gradient penalty, with the module that was fitted, "
            "whose parameters are the same"
        )
