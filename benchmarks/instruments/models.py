"""The trained networks: three, real or on an emulated device that sleeps.

The emulated device stands for an accelerator where two cores share eight ranks. A stage's forward
and backward pass sleep as long as they took when rank 0 computed them alone, on the machine that
the benchmark runs on; its gradients are cheap functions of weights, rank and step. DDP sees
parameters whose gradients become ready one stage after the other, as on any device.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

RECORDINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A network by stages, and the shape of its input; trained on random data.

    conv: a small convolutional network. many-small: a perceptron of 88 small tensors. few-huge: one
    of two matrices and their biases.
    """

    name: str
    stages: Callable[[], list[nn.Module]]
    shape: tuple[int, ...]
    batch: int

    def inputs(self, seed: int) -> torch.Tensor:
        """Return a batch."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.batch, *self.shape, generator=generator)


def _convolutional() -> list[nn.Module]:
    # Smooth throughout: at a kink (of ReLU, of a maximum) the last bit of a sum can decide which
    # way a gradient goes, and two right sums of one gradient would train different networks.
    return [
        nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.GELU()),
        nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(64, 256, 3, padding=1), nn.GroupNorm(8, 256)),
        nn.Sequential(nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1024, 512)),
        nn.Sequential(nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 768)),
        nn.Sequential(nn.LayerNorm(768), nn.GELU(), nn.Linear(768, 10)),
    ]


def _many_small() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(160, 160), nn.Tanh()) for _ in range(44)]


def _few_huge() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(768, 768), nn.Tanh()) for _ in range(2)]


WORKLOADS = {
    each.name: each
    for each in (
        Workload(name="conv", stages=_convolutional, shape=(1, 8, 8), batch=16),
        Workload(name="many-small", stages=_many_small, shape=(160,), batch=128),
        Workload(name="few-huge", stages=_few_huge, shape=(768,), batch=128),
    )
}


class Chain(nn.Module):
    """The stages one after another, computed."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.Sequential(*stages)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        return self.stages(inputs).square().mean()


class Emulated(nn.Module):
    """The same parameters on a device that sleeps.

    Parameters
    ----------
    times : (forward, backward) in seconds, by stage.
    bias : what this rank's gradients have and others' have not.
    """

    def __init__(
        self, stages: list[nn.Module], times: list[tuple[float, float]], bias: float
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self._times = times
        self._bias = bias

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what stands for a loss; `inputs` says which step it is."""
        token = inputs.reshape(-1)[:1].clone().requires_grad_()
        for stage, times in zip(self.stages, self._times, strict=True):
            token = _Sleep.apply(token, times, self._bias, *stage.parameters())
        return token.sum()


class _Sleep(torch.autograd.Function):
    """One stage."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        token: torch.Tensor,
        times: tuple[float, float],
        bias: float,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        time.sleep(times[0])
        ctx.save_for_backward(token, *parameters)
        ctx.backward_s, ctx.bias = times[1], bias
        return token.clone()

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> Any:  # pyright: ignore
        time.sleep(ctx.backward_s)
        token, *parameters = ctx.saved_tensors
        shift = ctx.bias + 0.01 * float(token)
        return above, None, None, *(0.1 * each + shift for each in parameters)


def record(workload: Workload) -> list[tuple[float, float]]:
    """Return (forward, backward) seconds of every stage, computed here and now: medians."""
    runs: list[list[tuple[float, float]]] = []
    stages = workload.stages()
    for number in range(RECORDINGS + 1):
        value, row = workload.inputs(number), []
        for stage in stages:
            given = value.detach().requires_grad_()
            began = time.perf_counter()
            value = stage(given)
            between = time.perf_counter()
            value.backward(torch.ones_like(value))
            row.append((between - began, time.perf_counter() - between))
        runs.append(row)
    return [
        (statistics.median(f for f, _ in rows), statistics.median(b for _, b in rows))
        for rows in zip(*runs[1:], strict=True)
    ]
