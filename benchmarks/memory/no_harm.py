"""Steps that need no less memory than eager's: time and peak of models with composite operators.

A U-Net that enlarges by bilinear interpolation, a recurrent tagger, and two networks of timm. torch
traces interpolations and recurrent layers as many operators; eager execution runs one of each.
Allocations count as torch's allocator aligns them, as they do in a plan.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import Report
from benchmarks.memory.fitted import Budget
from benchmarks.memory.reference import OTHER, WRONG, Reference
from benchmarks.memory.rivals import EAGER
from benchmarks.memory.step import CPU_ALIGNMENT, MIB, one_thread, paired_times, step_allocations
from benchmarks.memory.workloads import Workload, masks, pixels, text, token_loss

SECTION = "no-harm"
_WIDTHS = (16, 32, 64)
_WORDS, _TAGS = 1000, 1000


class BilinearUNet(nn.Module):
    """A U-Net of three resolutions whose decoder enlarges by bilinear interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(
            _convolution(inputs, outputs)
            for inputs, outputs in zip((3, *_WIDTHS), _WIDTHS, strict=False)
        )
        self.decoder = nn.ModuleList(
            _convolution(low + high, high)
            for low, high in zip(_WIDTHS[:0:-1], _WIDTHS[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(_WIDTHS[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of both classes for every pixel."""
        skips: list[Tensor] = []
        for level, stage in enumerate(self.encoder):
            x = stage(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for stage in self.decoder:
            skip = skips.pop()
            larger = functional.interpolate(x, skip.shape[2:], mode="bilinear", align_corners=False)
            x = stage(torch.cat((larger, skip), 1))
        return self.head(x)


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Tagger(nn.Module):
    """An embedding, two recurrent layers, and a linear layer that tags every word."""

    def __init__(self, layers: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 128)
        self.layers = layers(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, _TAGS)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of all tags for every word."""
        return self.head(self.layers(self.embedding(words))[0])


def _timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=10)


WORKLOADS = (
    Workload(
        name="U-Net, bilinear",
        network=BilinearUNet,
        sample=masks(96, 96, channels=3, classes=2),
        batch=4,
    ),
    Workload(
        name="GRU",
        network=lambda: Tagger(nn.GRU),
        sample=text(48, _WORDS),
        batch=16,
        loss=token_loss,
    ),
    Workload(
        name="LSTM",
        network=lambda: Tagger(nn.LSTM),
        sample=text(48, _WORDS),
        batch=16,
        loss=token_loss,
    ),
    Workload(
        name="timm convnext_atto",
        network=lambda: _timm("convnext_atto"),
        sample=pixels(96, 96, classes=10),
        batch=4,
    ),
    Workload(
        name="timm resnet18d",
        network=lambda: _timm("resnet18d"),
        sample=pixels(96, 96, classes=10),
        batch=4,
    ),
)


def bars() -> dict[str, str]:
    """Return bar name -> bound; the worst model's figures, and the number of models."""
    return {
        "no-harm-models-time-over-eager": "<= 1.02",
        "no-harm-models-memory-over-eager": "<= 1.0",
        "no-harm-models-predicted-time-over-measured": ">= 0.9",
        "no-harm-models-wrong": "<= 0",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Fit every model into the memory of its eager step, and let both take turns."""
    times_over: list[float] = []
    peaks_over: list[float] = []
    predicted_over: list[float] = []
    wrong = 0
    for workload in WORKLOADS:
        with one_thread():
            reference = Reference.of(workload)
            eager = EAGER.step(workload)
            reference.judge(eager)
            eager_memory = step_allocations(eager, alignment=CPU_ALIGNMENT)
            budget = Budget(name="headrace", above_bytes=eager_memory.peak_bytes)
            fitted = budget.fitted(workload)
            verdict = reference.judge(fitted.step)
            memory = step_allocations(fitted.step, alignment=CPU_ALIGNMENT)
            times = paired_times({"eager": eager, "fitted": fitted.step}, 7 if quick else 21)
        times_over.append(times["fitted"].over(times["eager"]))
        peaks_over.append(memory.peak_bytes / eager_memory.peak_bytes)
        predicted_over.append(fitted.plan.time_us * 1e-6 / times["fitted"].typical)
        wrong += verdict.word in (WRONG, OTHER)
        report.row(
            "models in the memory of their eager steps",
            model=workload.name,
            eager_mib=eager_memory.peak_bytes / MIB,
            peak_mib=memory.peak_bytes / MIB,
            eager_ms=1e3 * times["eager"].elapsed,
            over_eager=times_over[-1],
            predicted_over_measured=predicted_over[-1],
            correct=verdict.word,
        )
    report.bar("no-harm-models-time-over-eager", max(times_over))
    report.bar("no-harm-models-memory-over-eager", max(peaks_over))
    report.bar("no-harm-models-predicted-time-over-measured", min(predicted_over))
    report.bar("no-harm-models-wrong", wrong)
