"""Averages of codecs among ranks of this process."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace.compression.codecs.codec import State
from headrace.compression.codecs.requests import Context, Request, run_together
from headrace.compression.codecs.table import make_codec


def average(
    spec: str,
    tensors: Sequence[Sequence[Tensor]],
    *,
    feedback: bool = False,
    step: int = 0,
    states: Sequence[Sequence[State]] | None = None,
    observe: Callable[[int, Request], None] | None = None,
) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return (means, residuals), by rank and tensor; `tensors` of each rank are left alone.

    With feedback the residuals of before are zero at a codec's first call.
    """
    ranks = len(tensors)
    given = [[tensor.clone() for tensor in own] for own in tensors]
    before = 0.0 if feedback else torch.nan
    means = [[torch.full_like(tensor, before) for tensor in own] for own in tensors]
    kept = states or [[{} for _ in own] for own in tensors]
    codec = make_codec(spec)
    run_together(
        [
            codec.average(
                given[rank],
                means[rank],
                kept[rank],
                Context(rank=rank, ranks=ranks, step=step, seed=7, feedback=feedback),
            )
            for rank in range(ranks)
        ],
        observe,
    )
    return means, given


def average_vectors(
    spec: str, vectors: Sequence[Tensor], *, feedback: bool = False, step: int = 0
) -> tuple[Tensor, Tensor]:
    """Return (mean, residuals of shape (ranks, n)) of one vector a rank.

    Fails if the ranks' means differ in a bit.
    """
    means, residuals = average(spec, [[each] for each in vectors], feedback=feedback, step=step)
    first = means[0][0]
    for (other,) in means:
        assert torch.equal(first.view(torch.int32), other.view(torch.int32)), spec
    return first, torch.stack([each for (each,) in residuals])
