"""Critical regimes as the paper shows them (Figures 3.1b, 3.2, 3.3a and 3.6), repeated small.

3.1b (hand-set levels and their reverse) and 3.6 (extreme batches) are regimes of the study. Here:
the top eigenvalue of the Hessian beside the norm of the gradient, and the overlap of the largest
entries of two gradients.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compression.accuracy.tasks import TASKS
from benchmarks.compression.accuracy.training import Trainer, train
from headrace.compression.adapt.accordion import ETA, is_critical

EVERY, APART = 2, 2
"""Epochs between observations; observations between those that are compared."""
SAMPLES = 512
"""Samples for the Hessian and for gradients: the same ones at every epoch."""


def measured() -> dict[str, list[dict[str, Any]]]:
    """Return rows by figure, of one uncompressed training of the digits."""
    task = TASKS["digits"]
    inputs, targets, *_ = task.data(0)
    sample = inputs[:SAMPLES], targets[:SAMPLES]
    seen: list[dict[str, float]] = []

    def watch(trainer: Trainer, epoch: int) -> None:
        if epoch % EVERY:
            return
        loss = nn.functional.cross_entropy(trainer.model(sample[0]), sample[1])
        gradient = torch.cat(
            [part.flatten() for part in torch.autograd.grad(loss, trainer.parameters)]
        )
        seen.append(
            {
                "epoch": epoch,
                "norm": float(gradient.norm()),
                "top_eigenvalue": top_eigenvalue(trainer, *sample),
                "overlap": overlap(trainer, inputs, targets),
            }
        )

    train(task, 0, "none", watch=watch)
    return {
        "Figure 3.2: critical by norm and by the Hessian's top eigenvalue": _regimes(seen),
        "Figure 3.3a: overlap of the top 10% entries": [
            {"epoch": row["epoch"], "overlap": round(row["overlap"], 3)} for row in seen
        ],
    }


def _regimes(seen: list[dict[str, float]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for before, now in zip(seen, seen[APART:], strict=False):
        row = {key: round(now[key], 4) for key in ("epoch", "norm", "top_eigenvalue")}
        verdicts = {
            f"critical_by_{key}": is_critical(before[key], now[key], ETA)
            for key in ("norm", "top_eigenvalue")
        }
        rows.append({**row, **verdicts})
    return rows


def top_eigenvalue(trainer: Trainer, inputs: Tensor, targets: Tensor, rounds: int = 12) -> float:
    """Return the Hessian's eigenvalue of largest magnitude, by power iteration."""
    loss = nn.functional.cross_entropy(trainer.model(inputs), targets)
    gradients = torch.autograd.grad(loss, trainer.parameters, create_graph=True)
    generator = torch.Generator().manual_seed(1)
    vector = [torch.randn(part.shape, generator=generator) for part in gradients]
    value = 0.0
    for _ in range(rounds):
        norm = torch.sqrt(sum(((part * part).sum() for part in vector), torch.zeros(())))
        vector = [part / norm for part in vector]
        product = sum(
            ((left * right).sum() for left, right in zip(gradients, vector, strict=True)),
            torch.zeros(()),
        )
        image = torch.autograd.grad(product, trainer.parameters, retain_graph=True)
        value = float(sum((left * right).sum() for left, right in zip(image, vector, strict=True)))
        vector = list(image)
    return value


def overlap(trainer: Trainer, inputs: Tensor, targets: Tensor, batches: int = 6) -> float:
    """Return the share of the top 10% entries that two batches' gradients have in common."""
    size = trainer.task.batch
    tops: list[set[int]] = []
    for number in range(batches):
        rows = slice(number * size, (number + 1) * size)
        loss = nn.functional.cross_entropy(trainer.model(inputs[rows]), targets[rows])
        parts = torch.autograd.grad(loss, trainer.parameters)
        vector = torch.cat([part.flatten() for part in parts]).abs()
        tops.append(set(vector.topk(len(vector) // 10).indices.tolist()))
    shares = [len(one & other) / len(one) for one, other in pairwise(tops)]
    return sum(shares) / len(shares)
