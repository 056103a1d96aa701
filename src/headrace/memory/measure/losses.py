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


def loss_alone(outputs: Any) -> Any:
    """Return a model's outputs, without gradients into those beside its loss, if it has one."""
    return _beside_loss(outputs, lambda output, _: output.detach())


def refusing_gradients(outputs: Any) -> Any:
    """Return outputs of such a step that raise a `CaptureError` where other gradients arrive."""
    return _beside_loss(outputs, cast(Callable[..., Tensor], _Refusal.apply))


def _beside_loss(outputs: Any, change: Callable[[Tensor, Tensor], Tensor]) -> Any:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        return outputs

    def changed(output: Tensor) -> Tensor:
        return change(output, loss) if output is not loss and output.is_floating_point() else output

    return pytree.tree_map_only(Tensor, changed, outputs)


class _Refusal(torch.autograd.Function):
    """An output, as one that needs gradients: so has eager's."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, _loss: Tensor) -> Tensor:  # noqa: ARG004
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:  # noqa: ARG004
        raise CaptureError(
            "a gradient arrives at an output beside 'loss', and the step was captured for the "
            "loss alone: add up the whole loss in the model, or return its outputs as a tuple"
        )
