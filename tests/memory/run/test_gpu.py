"""Fitted steps on a GPU, if there is one: within the budget, and of eager's gradients."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn

from headrace.memory import fit
from headrace.memory.measure.allocations import allocations_of, library_bytes
from headrace.memory.measure.sizes import rounded_bytes
from tests.memory.models import Residual

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    layers = (Residual(32) for _ in range(6))
    model = nn.Sequential(nn.Conv2d(3, 32, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return model, torch.randn(64, 3, 66, 66)


def with_dropout() -> tuple[nn.Module, torch.Tensor]:
    layers = (
        nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True) for _ in range(4)
    )
    return nn.Sequential(*layers), torch.randn(16, 128, 64)


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convolutional": convolutional,
    "dropout": with_dropout,
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_steps_are_eagers_within_the_budget(case: str, share: float) -> None:
    torch.manual_seed(0)
    model, x = CASES[case]()
    model, x = model.cuda(), x.cuda()
    eager = deepcopy(model)
    there = sum(rounded_bytes(each) for each in (*model.parameters(), *model.buffers(), x))
    there += library_bytes(x.device)

    def peak_bytes(called: nn.Module) -> int:
        found = allocations_of(lambda: called(x).square().mean().backward(), x.device)
        called.zero_grad()
        return found.peak_bytes

    peak_bytes(eager)  # reserves what libraries keep
    budget = there + int(share * peak_bytes(eager))
    fitted = fit(model, x, budget, cache=False)
    for step in range(3):
        for each in (fitted, eager):
            torch.cuda.manual_seed(step)
            each.zero_grad()
            each(x).square().mean().backward()
        for a, b in zip(model.parameters(), eager.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)
    fitted.zero_grad()
    assert there + peak_bytes(fitted) <= budget


def test_times_on_a_gpu_are_those_of_its_kernels() -> None:
    from headrace.memory.measure.timing import _times_us  # pyright: ignore[reportPrivateUsage]

    device = torch.device("cuda", torch.cuda.current_device())
    large, small = (torch.randn(side, side, device=device) for side in (4096, 1024))
    others = torch.empty(1 << 26, dtype=torch.uint8, device=device)
    times = [
        _times_us(lambda factor=factor: lambda: factor @ factor, device, others)
        for factor in (large, small)
    ]
    medians_us = [runs[len(runs) // 2] for runs in times]
    assert medians_us[0] > 8 * medians_us[1]
