"""Accordion's detector: its time as a share of a step's, and its memory.

The step is the paper's: ResNet-18 on images of 32 x 32 (3.3), one worker's forward and backward
pass and the optimizer, without any communication, which would only make the share smaller.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.harness import Report
from headrace.compression.adapt.detector import Detector

SECTION = "detector"
BATCH = 32
WINDOW = 10
"""Epochs of a window: gradients are accumulated in the last one alone."""
EPOCH_STEPS = 390
"""Steps of an epoch: CIFAR's 50,000 images in batches of 128, over which norms are spread."""


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {"detector-of-step": "<= 0.01", "detector-memory-of-gradient": "<= 1.05"}


class Block(nn.Module):
    """Residual block of two 3 x 3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the block's output."""
        return torch.relu(self.path(inputs) + self.shortcut(inputs))


def resnet18() -> nn.Module:
    """Return ResNet-18 for images of 32 x 32: 11.2 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Block(inputs, outputs, outputs // inputs), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def measure(report: Report, *, quick: bool) -> None:
    """Measure with one thread of torch, then restore their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _measure(report, rounds=3 if quick else 9)
    finally:
        torch.set_num_threads(threads)


def _measure(report: Report, rounds: int) -> None:
    torch.manual_seed(0)
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    step()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    gradient_bytes = sum(gradient.nbytes for gradient in gradients.values())
    detector = Detector({name: tuple(part.shape) for name, part in gradients.items()})

    def add() -> None:
        for name, gradient in gradients.items():
            detector.add(name, gradient)

    before = _resident_bytes()
    add()
    grown = _resident_bytes() - before
    _check(detector, gradients)
    times: dict[str, list[float]] = {"step": [], "add": [], "norms": []}
    for _ in range(rounds):
        for name, call in (("step", step), ("add", add), ("norms", detector.norms)):
            times[name].append(_seconds(call))
    middle = {name: statistics.median(found) for name, found in times.items()}
    every = middle["add"] / middle["step"]
    share = (middle["add"] / WINDOW + middle["norms"] / (WINDOW * EPOCH_STEPS)) / middle["step"]
    report.row(
        "detector",
        model="ResNet-18, 32 x 32, batch 32",
        step_ms=1e3 * middle["step"],
        add_ms=1e3 * middle["add"],
        norms_ms=1e3 * middle["norms"],
        share_of_step=share,
        share_in_accumulated_epochs=every,
        resident_of_gradient=grown / gradient_bytes,
    )
    report.note(
        "detector: gradients are accumulated in one epoch of ten; share_of_step is over the window"
    )
    report.bar("detector-of-step", share)
    report.bar("detector-memory-of-gradient", max(grown, detector.memory_bytes) / gradient_bytes)


def _check(detector: Detector, gradients: dict[str, Tensor]) -> None:
    norms = detector.norms()
    for name, gradient in gradients.items():
        assert abs(norms[name] - float(gradient.double().norm())) <= 1e-3 * norms[name], name


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
