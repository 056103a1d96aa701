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


def is_transformed() -> bool:
    """Return whether a transform of torch.func or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def refuse_second_order(outputs: Any) -> None:
    """Make a backward pass of a step with ``create_graph=True`` raise a `CaptureError`."""
    for node in step_nodes(outputs):
        node.register_prehook(_refuse_graph)


def step_nodes(tensors: Any) -> list[Node]:
    """Return the nodes of steps that tensors are of: of inputs that a step returns, others' too."""
    nodes = {
        id(node): node
        for tensor in pytree.tree_leaves(tensors)
        if isinstance(tensor, Tensor) and (node := _step_node(tensor)) is not None
    }
    return list(nodes.values())


def _step_node(output: Tensor) -> Node | None:
    """Return the node of the step that an output is of; None if there is none.

    Torch makes outputs that are views anew from their base, by a node for each view.
    """
    node = output.grad_fn
    while node is not None and type(node).__name__ != _STEP_NODE:
        operands = node.next_functions
        node = operands[0][0] if len(operands) == 1 else None
    return node


def _refuse_graph(_gradients: Any) -> None:
    if torch.is_grad_enabled():
        raise CaptureError(
            "gradients of a fitted step cannot be differentiated again (create_graph=True): "
            "compute what needs this, such as a gradient penalty, with the module that was fitted, "
            "whose parameters are the same"
        )
