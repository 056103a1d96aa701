"""Outputs beside a loss, such as logits: the backward pass begins at the loss alone.

Autograd would hand zeros to the backward pass as the gradient of each other output, of its size. A
step whose outputs are a mapping with a scalar ``loss`` is therefore captured without them, and
refuses gradients that do flow into another output.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from headrace.memory.errors import CaptureError

_LOSS = "loss"


def loss_alone(outputs: Any) -> Any:
    """Return a model's outputs, without gradients into those beside its loss, if it has one."""
    beside = places_beside_loss(outputs)
    return _changed(outputs, beside, lambda output: output.detach()) if beside else outputs


def places_beside_loss(outputs: Any) -> frozenset[int]:
    """Return the places, among the leaves, of outputs beside a loss that need gradients."""
    loss = outputs.get(_LOSS) if isinstance(outputs, Mapping) else None
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        return frozenset()
    return frozenset(
        place
        for place, leaf in enumerate(pytree.tree_leaves(outputs))
        if isinstance(leaf, Tensor)
        and leaf is not loss
        and leaf.is_floating_point()
        and leaf.requires_grad
    )


def refusing_gradients(outputs: Any, beside: frozenset[int]) -> Any:
    """Return outputs of such a step that raise a `CaptureError` where other gradients arrive.

    Parameters
    ----------
    beside : places of the outputs that eager's step has gradients of, beside the loss.
    """
    if not beside:
        return outputs
    loss = outputs[_LOSS]
    return _changed(outputs, beside, lambda output: cast(Tensor, _Refusal.apply(output, loss)))


def _changed(outputs: Any, places: frozenset[int], change: Callable[[Tensor], Tensor]) -> Any:
    leaves, spec = pytree.tree_flatten(outputs)
    changed = [change(leaf) if place in places else leaf for place, leaf in enumerate(leaves)]
    return pytree.tree_unflatten(changed, spec)


class _Refusal(torch.autograd.Function):
    """An output, as one that needs gradients: so has eager's."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, _loss: Tensor) -> Tensor:  # noqa: ARG004
        return output.detach()  # which may be written into, as eager's; a view may not

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:  # noqa: ARG004
        raise CaptureError(
            "a gradient arrives at an output beside 'loss', and the step was captured for the "
            "loss alone: add up the whole loss in the model, or return its outputs as a tuple"
        )
