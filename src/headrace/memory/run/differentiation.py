"""Ways to differentiate that a scheduled step cannot serve, and what users do instead."""

# pyright: reportPrivateUsage=false

import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.autograd.graph import Node
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError

_STEP_NODE = "CompiledFunctionBackward"
"""Name of the node of a step that AOTAutograd compiled."""


def is_transformed() -> bool:
    """Return whether a transform of torch.func or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def refuse_backward_passes(outputs: Any, read: Collection[int] = ()) -> None:
    """Make a backward pass that a schedule cannot run raise a `CaptureError`.

    Parameters
    ----------
    read : places of outputs that the pass reads. Torch does not see all writes into these.
    """
    leaves = pytree.tree_leaves(outputs)
    versions = [(weakref.ref(leaves[place]), leaves[place]._version) for place in read]
    for node in step_nodes(outputs):
        node.register_prehook(partial(_refuse_pass, versions))


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


def _refuse_pass(
    versions: Sequence[tuple[Callable[[], Tensor | None], int]], gradients: Any
) -> None:
    if torch.is_grad_enabled():
        raise CaptureError(
            "gradients of a fitted step cannot be differentiated again (create_graph=True): "
            "compute what needs this, such as a gradient penalty, with the module that was fitted, "
            "whose parameters are the same"
        )
    if any(gradient is not None and is_legacy_batchedtensor(gradient) for gradient in gradients):
        raise CaptureError(
            "gradients of a fitted step cannot be computed for several at once "
            "(is_grads_batched=True, jacobian(vectorize=True)): compute one at a time, or use the "
            "module that was fitted, whose parameters are the same"
        )
    outputs = [(output(), version) for output, version in versions]
    if any(output is not None and output._version != version for output, version in outputs):
        raise CaptureError(
            "an output of a fitted step was written into before the backward pass, which reads it: "
            "write into a copy (output.clone()), or behind the backward pass"
        )
