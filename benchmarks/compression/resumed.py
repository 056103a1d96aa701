"""Resuming on other numbers of ranks: what training still has to receive, after and before.

Ranks that are objects of one process collect residuals of constant gradients; a group of every
other size loads their states. The pending update is the mean of the ranks' residuals.
"""

import torch
from torch import Tensor

from benchmarks.harness import Report
from headrace.compression.averaging import Averager
from headrace.compression.codecs.requests import run_together

SECTION = "resumed"
RANKS = (1, 2, 3, 4, 8)
CODECS = ("topk:1%", "dgc:1%", "powersgd:1", "minmax:2", "sign")
SHAPE = (96, 64)
STEPS = 20


def bars() -> dict[str, str]:
    """Return bar name -> bound."""
    return {"pending-mean-kept": "<= 1e-5"}


def measure(report: Report, *, quick: bool) -> None:
    """Report the largest relative change of the pending mean for every codec."""
    largest = 0.0
    for codec in CODECS:
        changes = [
            _change(codec, old, new, STEPS // 4 if quick else STEPS)
            for old in RANKS
            for new in RANKS
        ]
        report.row("resumed", codec=codec, pairs=len(changes), largest_change=max(changes))
        largest = max(largest, *changes)
    report.bar("pending-mean-kept", largest)


def _change(codec: str, old: int, new: int, steps: int) -> float:
    """Return the change of the pending mean from `old` to `new` ranks, relative to its norm."""
    group = _group(codec, old)
    for step in range(steps):
        gradients = [_gradient(step, rank) for rank in range(old)]
        run_together(
            [
                averager.average([("weight", gradient)])
                for averager, gradient in zip(group, gradients, strict=True)
            ]
        )
    pending = _pending(group)
    assert pending.any(), codec
    states = [averager.state_dict() for averager in group]
    resumed = _group(codec, new)
    for averager in resumed:
        averager.load_state_dict(states)
    return float((_pending(resumed) - pending).norm() / pending.norm())


def _group(codec: str, ranks: int) -> list[Averager]:
    return [Averager(codec, {"weight": SHAPE}, rank=rank, ranks=ranks) for rank in range(ranks)]


def _gradient(step: int, rank: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 * step + rank))


def _pending(group: list[Averager]) -> Tensor:
    total = torch.zeros(SHAPE, dtype=torch.float64)
    for averager in group:
        total += averager.residual("weight")
    return total / len(group)
