"""Accesses of embedding rows by the batches of a job: reuse, transfers, frequency of rows."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.data.examples import Examples
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.profile import (
    EmbeddingProfile,
    RowTransfers,
    Synchronisation,
    TableAccesses,
)

_MOST_SLOTS = (1 << 32) - 1
"""No row is evicted for want of room while accesses are measured."""

_COUNTED = 1 << 18
"""Examples whose accesses are counted row by row: their ids stay in memory."""


def measure_accesses(
    batches: Iterator[Examples],
    *,
    trainers: int,
    lookahead: int,
    most_batches: int,
    progress: Callable[[str, float], None] = lambda _activity, _share: None,
) -> EmbeddingProfile:
    """Measure the accesses of a job's first batches.

    Counts are of the batches that have as many behind them as the lookahead needs; of fewer
    batches than the lookahead, half are counted, and the lookahead is as long.

    Parameters
    ----------
    batches : of equally many examples; a shorter one ends the measurement.
    trainers : that share each batch in equal parts.
    lookahead : batches that are searched for a row's next use, its own included.
    most_batches : that are read.

    Raises
    ------
    EmbeddingError : fewer than four batches, or a parameter is out of range.
    """
    if not 2 <= lookahead < most_batches:
        raise EmbeddingError(f"lookahead is {lookahead}, needs 2 to {most_batches - 1}")
    window: _native.Lookahead | None = None
    decisions: list[_StepCounts] = []
    sample: list[Examples] = []
    size = vectors = arrived = 0
    for examples in islice(batches, most_batches):
        if window is None:
            size, vectors = len(examples), len(examples) * len(examples.ids)
            window = _window(examples, trainers, lookahead)
        if len(examples) < size:
            break
        if arrived * size < _COUNTED:
            sample.append(examples)
        window.push(list(examples.ids), examples.id_ends(trainers))
        arrived += 1
        progress(f"batch {arrived} of at most {most_batches}", arrived / most_batches)
        if window.ready:
            decisions.append(_StepCounts(window.pop(), trainers, vectors, lookahead))
    if window is None or arrived < 4:
        raise EmbeddingError(f"the examples are {arrived} batches, needs four or more")
    if not decisions:
        window.finish()
        lookahead = arrived - arrived // 2
        decisions = [
            _StepCounts(window.pop(), trainers, vectors, lookahead) for _ in range(arrived // 2)
        ]
    return EmbeddingProfile(
        batch=size,
        batches=arrived,
        trainers=trainers,
        reuse=np.mean([step.reuse for step in decisions], axis=0),
        transfers=_mean_transfers([step.transfers for step in decisions]),
        tables=_tables(sample),
        counted=sum(map(len, sample)),
    )


def _window(examples: Examples, trainers: int, lookahead: int) -> _native.Lookahead:
    try:
        return _native.Lookahead(
            [0] * len(examples.ids),
            trainers=trainers,
            lookahead=lookahead,
            prefetch=1,
            slots=_MOST_SLOTS,
        )
    except ValueError as error:
        raise EmbeddingError(str(error)) from error


class _StepCounts:
    """Reuse and transfers of one batch.

    Attributes
    ----------
    reuse : [lookahead]: rows by the batches to their next use; 0: none within the lookahead.
    transfers : [synchronisation, 2]: `RowTransfers`, in the order of `Synchronisation`.
    """

    def __init__(
        self, decision: _native.LookaheadDecision, trainers: int, vectors: int, lookahead: int
    ) -> None:
        gap = np.where(decision.next < 0, 0, decision.next - decision.batch)
        gap[gap >= lookahead] = 0
        self.reuse = np.bincount(gap, minlength=lookahead)
        users, others = decision.users, ~(np.uint32(1) << decision.owner.astype(np.uint32))
        next_users = np.where(gap > 0, decision.next_users, 0)
        # Gradients to the trainer that updates a row, and the row from there to its next users.
        targeted = _ones(users & others) + _ones(next_users & others)
        shared, again = decision.shared == 1, gap == 1
        ring, remote = 2.0 * (trainers - 1), 2.0 * (trainers - 1) / trainers
        pooled, distinct = remote * vectors, remote * _ones(users).sum()
        replicated = ring * len(users)
        self.transfers = np.array(
            [
                [pooled, pooled],
                [distinct, distinct],
                [replicated, replicated],
                [ring * shared.sum(), ring * (shared & again).sum()],
                [targeted.sum(), targeted[again].sum()],
            ]
        )


def _ones(bits: NDArray[np.uint32]) -> NDArray[np.int64]:
    return np.bitwise_count(bits).astype(np.int64)


def _mean_transfers(
    steps: Sequence[NDArray[np.float64]],
) -> dict[Synchronisation, RowTransfers]:
    return {
        name: RowTransfers(rows=rows, critical_rows=critical)
        for name, (rows, critical) in zip(
            Synchronisation, np.mean(steps, axis=0).tolist(), strict=True
        )
    }


def _tables(sample: list[Examples]) -> tuple[TableAccesses, ...]:
    return tuple(
        _table_accesses(np.concatenate(columns))
        for columns in zip(*(examples.ids for examples in sample), strict=True)
    )


def _table_accesses(ids: NDArray[np.int64]) -> TableAccesses:
    counts = np.unique(ids, return_counts=True)[1]
    top = -(-len(counts) // 100)
    most = np.partition(counts, len(counts) - top)[len(counts) - top :] if top else counts
    return TableAccesses(
        accesses=len(ids),
        rows=len(counts),
        rows_once=int((counts == 1).sum()),
        top_accesses=int(most.sum()),
    )
