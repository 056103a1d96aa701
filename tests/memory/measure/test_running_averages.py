"""Batch normalization that averages cumulatively, in captured steps."""

import copy

import pytest
import torch
from torch import nn

from headrace.memory import fit, fit_blocks
from tests.memory.states import differences, state_of_objects


def normalized() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, momentum=None),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def assert_trains_as(model: nn.Module, called: nn.Module, eager: nn.Module) -> None:
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, eager)]
    for step in range(5):
        torch.manual_seed(step)
        x = torch.randn(8, 3, 4, 4) + step
        outputs = [module(x) for module in (called, eager)]
        assert torch.equal(*outputs)
        for output, optimizer in zip(outputs, optimizers, strict=True):
            optimizer.zero_grad()
            output.square().mean().backward()
            optimizer.step()
        assert all(map(torch.equal, model.parameters(), eager.parameters()))
        for name, buffer in eager.named_buffers():
            torch.testing.assert_close(model.get_buffer(name), buffer)
    assert model[1].num_batches_tracked == 5  # pyright: ignore[reportIndexIssue]
    torch.testing.assert_close(model.eval()(x), eager.eval()(x))


def test_cumulative_averages_train_as_eager() -> None:
    """`BatchNorm2d(momentum=None)` was refused for control flow on values: it takes the number of
    batches to the host."""
    model, x = normalized(), torch.randn(8, 3, 4, 4)
    eager, before = copy.deepcopy(model), state_of_objects(model)
    fitted = fit(model, x, "1MiB", exact=True, cache=False)
    assert differences(before, state_of_objects(model)) == []
    assert_trains_as(model, fitted, eager)


def test_cumulative_averages_inside_and_outside_of_blocks() -> None:
    """Memory outside of blocks is found on fake tensors, which refused it too."""
    for block in (0, 1):
        model, x = normalized(), torch.randn(8, 3, 4, 4)
        eager = copy.deepcopy(model)
        fit_blocks(model, [model[block]], x, "1MiB", exact=True, cache=False)
        assert_trains_as(model, model, eager)


@pytest.mark.parametrize("tracks", [True, False])
def test_without_statistics_or_in_evaluation_nothing_is_averaged(tracks: bool) -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None, track_running_stats=tracks)
    )
    model[1].train(not tracks)
    eager, x = copy.deepcopy(model), torch.randn(8, 4)
    fitted = fit(model, x, "1MiB", exact=True, cache=False)
    for module in (fitted, eager):
        module(x).square().mean().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)
    assert all(map(torch.equal, model.buffers(), eager.buffers()))
