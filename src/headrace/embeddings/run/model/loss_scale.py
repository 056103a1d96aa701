"""Steps of torch's GradScaler: one that it skips is skipped for embedding rows, at all trainers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler


def follow_scaler(
    scaler: GradScaler,
    optimizer: torch.optim.Optimizer,
    *,
    pending: Callable[[], bool],
    any_trainer: Callable[[bool], bool],
    unscaled: Callable[[], None],
    skip: Callable[[], None],
) -> None:
    """Let the scaler's calls for an optimizer see infinite gradients of rows at any trainer.

    Parameters
    ----------
    pending : whether a batch had no step yet.
    any_trainer : returns whether any trainer has a flag.
    unscaled : is called when gradients were divided by the scale.
    skip : is called in place of the batch's step.
    """
    unscale, step = scaler.unscale_, scaler.step
    own = optimizer

    def unscale_(optimizer: torch.optim.Optimizer) -> None:
        if optimizer is not own or not pending() or not scaler.is_enabled():
            unscale(optimizer)
            if scaler.is_enabled():
                unscaled()  # these gradients may be the dense part's
            return
        group = optimizer.param_groups[0]
        parameters: list[Tensor] = group["params"]
        flag = torch.zeros(1, device=_device(optimizer))
        flag.grad = torch.full_like(flag, torch.inf if any_trainer(_infinite(optimizer)) else 0.0)
        group["params"] = [*parameters, flag]
        try:
            unscale(optimizer)
        finally:
            group["params"] = parameters
        unscaled()

    def step_or_skip(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        loss = step(optimizer, *args, **kwargs)
        if optimizer is own and pending():
            skip()
        return loss

    scaler.unscale_ = unscale_
    scaler.step = step_or_skip


def _infinite(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a gradient of an optimizer's parameters, a batch's rows too, is not finite."""
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    return not all(bool(gradient.isfinite().all()) for gradient in gradients)


def _device(optimizer: torch.optim.Optimizer) -> torch.device:
    return next(
        parameter.device for group in optimizer.param_groups for parameter in group["params"]
    )
