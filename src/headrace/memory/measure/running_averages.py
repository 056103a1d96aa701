"""Batch normalization with a cumulative average (``momentum=None``) in a trace.

Its `forward` takes the number of batches to the host, for the weight of the newest batch in the
running statistics: a trace has no value there. Here the weight is computed as a tensor, so that
captured steps count batches as eager ones do; outputs and gradients are the same to the last bit,
running statistics to rounding.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def averages_as_tensors(model: nn.Module) -> Generator[None]:
    """Run normalizations that average cumulatively without values on the host."""
    norms = [module for module in model.modules() if _averages_cumulatively(module)]
    for norm in norms:
        norm.__dict__["forward"] = partial(_normalized, norm)
    try:
        yield
    finally:
        for norm in norms:
            norm.__dict__.pop("forward", None)


def _averages_cumulatively(module: nn.Module) -> TypeGuard[_BatchNorm]:
    return (
        isinstance(module, _BatchNorm)
        and type(module).forward is _BatchNorm.forward
        and "forward" not in module.__dict__
        and module.momentum is None
        and module.training
        and module.track_running_stats
        and module.num_batches_tracked is not None
    )


def _normalized(norm: _BatchNorm, x: Tensor) -> Tensor:
    """Return the output of `forward`, with the running statistics updated."""
    mean, variance, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    assert isinstance(batches, Tensor)
    norm._check_input_dim(x)
    batches.add_(1)
    newest_mean, newest_variance = torch.zeros_like(mean), torch.zeros_like(variance)
    # with a momentum of 1 the statistics become those of the batch
    y = nn.functional.batch_norm(
        x, newest_mean, newest_variance, norm.weight, norm.bias, True, 1.0, norm.eps
    )
    share = batches.double().reciprocal()
    mean.mul_(1 - share).add_(newest_mean * share)
    variance.mul_(1 - share).add_(newest_variance * share)
    return y
