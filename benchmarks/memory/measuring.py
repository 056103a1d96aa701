"""Time of `headrace memory measure` on a small network, its imports left out."""

import time
from itertools import pairwise

import torch
from torch import nn

from benchmarks.harness import Report
from benchmarks.memory.step import one_thread
from headrace.memory.measure.step import StepConditions, capture_step, profile_step, sample_of
from headrace.memory.profile import SPREAD

SECTION = "measuring"
_SECONDS = "measure-s"
_LAYERS, _CHANNELS = 20, 16


def bars() -> dict[str, str]:
    """Return the bar: seconds for a network of 20 layers."""
    return {_SECONDS: "<= 20"}


def measure(report: Report, *, quick: bool) -> None:  # noqa: ARG001
    """Measure a convolutional network whose layers are all different."""
    with one_thread():
        began_s = time.process_time()
        model = _network()
        sample = (torch.randn(8, 3, 32, 32), torch.randint(10, (8,)))
        job = StepConditions(loss=nn.CrossEntropyLoss())
        captured = capture_step(model, sample, job)
        profile = profile_step(model, captured, job, sample=sample_of(sample))
        seconds = time.process_time() - began_s
    implementations = sum(len(operator.implementations) for operator in profile.graph.operators)
    report.row(
        "memory measure",
        layers=_LAYERS,
        implementations=implementations,
        processor_s=seconds,
        spread=profile.provenance[SPREAD],
    )
    report.bar(_SECONDS, seconds)


def _network() -> nn.Module:
    """Return 20 convolutions with batch normalization, of as many widths."""
    widths = [3, *(_CHANNELS + layer for layer in range(_LAYERS))]
    layers = [
        nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())
        for inputs, outputs in pairwise(widths)
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
