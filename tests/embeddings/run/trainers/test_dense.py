"""Gradients of the dense part that several optimizers, and a scaler, work on."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.model.loss_scale import follow_scaler
from headrace.embeddings.run.trainers.dense import DenseGradients


def averaged(weight: nn.Parameter) -> DenseGradients:
    """Return gradients after a backward pass that gave this parameter one."""
    dense = DenseGradients()
    backward(dense, weight)
    return dense


def backward(dense: DenseGradients, *weights: nn.Parameter, gradient: float = 8.0) -> None:
    """Add gradients by a backward pass, whose averages are in memory of its own."""
    for weight in weights:
        before = 0.0 if weight.grad is None else weight.grad
        weight.grad = torch.full_like(weight, gradient) + before
    averages = [cast(torch.Tensor, weight.grad).clone() for weight in weights]
    bucket: Any = SimpleNamespace(parameters=lambda: weights, gradients=lambda: averages)
    dense._note(bucket)  # pyright: ignore[reportPrivateUsage]


def test_changed_gradients_are_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    dense = averaged(weight)
    nn.utils.clip_grad_norm_([weight], 0.1)
    with pytest.raises(EmbeddingError, match="gradients were changed between"):
        dense.check_unchanged()
    dense.check_unchanged()  # of the next step


def test_a_step_may_have_two_backward_passes() -> None:
    """The second has other buckets in a job's first step: its gradients counted as changed."""
    weight = nn.Parameter(torch.ones(3))
    dense = averaged(weight)
    backward(dense, weight)
    dense.check_unchanged()
    backward(dense, weight)
    nn.utils.clip_grad_norm_([weight], 0.1)
    with pytest.raises(EmbeddingError, match="gradients were changed between"):
        dense.check_unchanged()


@pytest.mark.parametrize("is_used", [True, False])
def test_changes_are_seen_where_the_smallest_parameter_has_no_gradient(is_used: bool) -> None:
    """As that of a tower that a step leaves out: the others' were clipped, and rows' were not."""
    smallest, weight = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(3))
    dense = DenseGradients()
    backward(dense, smallest, gradient=0.0)
    backward(dense, weight)
    if not is_used:
        smallest.grad = None
    nn.utils.clip_grad_norm_([smallest, weight], 0.1)
    with pytest.raises(EmbeddingError, match="gradients were changed between"):
        dense.check_unchanged()


def test_gradients_may_be_gone_after_the_step_of_another_optimizer() -> None:
    """An assertion failed where its step and zero_grad came before the step of the rows."""
    weight = nn.Parameter(torch.ones(3))
    for before_check in (lambda _: None, DenseGradients.remember):
        dense = averaged(weight)
        torch.optim.SGD([weight], lr=0.1).zero_grad()
        before_check(dense)
        dense.check_unchanged()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_scaler_may_unscale_several_optimizers_in_any_order(order: Sequence[int]) -> None:
    """Where that of the rows was the first, gradients counted as changed."""
    rows, weight = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    dense = averaged(weight)
    rows.grad = torch.ones(2)
    optimizers = [torch.optim.SGD([rows], lr=0.1), torch.optim.SGD([weight], lr=0.1)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    follow_scaler(
        scaler,
        optimizers[0],
        pending=lambda: True,
        any_trainer=lambda flag: flag,
        unscaled=dense.remember,
        skip=lambda: None,
    )
    for number in order:
        scaler.unscale_(optimizers[number])
    assert cast(torch.Tensor, weight.grad).tolist() == [2.0] * 3
    dense.check_unchanged()
