"""Accesses of embedding rows by the batches of a job: reuse, transfers, frequency of rows."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.data.examples import Examples
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.profile import (
    EmbeddingProfile,
    ExampleBytes,
    RowReuse,
    RowTransfers,
    StepRows,
    Synchronisation,
    TableAccesses,
)

_MOST_SLOTS = (1 << 32) - 1
"""No row is evicted for want of room while accesses are measured."""

_COUNTED = 1 << 18
"""Examples whose accesses are counted row by row: their ids stay in memory."""


_LRPP = (2, 5, 20, 50, 200)
"""Lookaheads at which LRPP caches are counted, besides the longest."""

_LEAST_DECISIONS = 40
"""Batches that are counted at a short lookahead, where there are as many; the first half warms the
caches up."""

_LABEL_BYTES = 4
"""A job's examples have labels, also where those that are measured have none."""


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
    EmbeddingError : fewer than four batches, none of them has ids, or a parameter is out of range.
    """
    if not 2 <= lookahead < most_batches:
        raise EmbeddingError(f"lookahead is {lookahead}, needs 2 to {most_batches - 1}")
    windows: _Windows | None = None
    sample: list[Examples] = []
    arrived = 0
    for examples in _full_batches(islice(batches, most_batches)):
        if windows is None:
            windows = _Windows(examples, trainers, lookahead)
        if arrived * len(examples) < _COUNTED:
            sample.append(examples)
        windows.push(examples)
        arrived += 1
        progress(f"batch {arrived} of at most {most_batches}", arrived / most_batches)
    if windows is None or arrived < 4:
        raise EmbeddingError(
            f"the examples are {arrived} batches, needs four or more: make "
            "batches smaller, or add examples"
        )
    counts, lrpp = windows.finish(arrived)
    reuse = RowReuse(*np.mean([step.reuse for step in counts], axis=0))
    if not reuse.rows.any():
        raise EmbeddingError(
            f"none of {len(counts)} batches that were counted has an id: needs columns with ids, "
            "or more batches"
        )
    return EmbeddingProfile(
        batch=len(sample[0]),
        batches=arrived,
        trainers=trainers,
        reuse=reuse,
        lrpp=lrpp,
        example_bytes=_example_bytes(sample, counts),
        transfers=_mean_transfers([step.transfers for step in counts]),
        tables=_tables(sample),
        counted=sum(map(len, sample)),
    )


def _full_batches(batches: Iterator[Examples]) -> Iterator[Examples]:
    """Yield batches until one has fewer examples than the first."""
    size = 0
    for examples in batches:
        size = size or len(examples)
        if len(examples) < size:
            return
        yield examples


_Count = TypeVar("_Count")


class _Window(Generic[_Count]):
    """Decisions on caches of one design, each counted as soon as it is made.

    Parameters
    ----------
    count : of a decision, and of where the ids of every table and trainer end.
    most : batches that are taken, at most.
    """

    def __init__(
        self,
        native: _native.Lookahead,
        count: Callable[[_native.LookaheadDecision, NDArray[np.int64]], _Count],
        most: int,
    ) -> None:
        self._native = native
        self._count = count
        self._left = most
        self._ends = deque[NDArray[np.int64]]()
        self.counts: list[_Count] = []

    def push(self, ids: Sequence[NDArray[np.int64]], ends: NDArray[np.int64]) -> None:
        """Take the next batch."""
        if self._left == 0:
            return
        self._left -= 1
        self._native.push(ids, ends)
        self._ends.append(ends)
        if self._native.ready:
            self._decide()

    def finish(self, batches: int) -> None:
        """Decide so many of the batches that have arrived, where no lookahead was full."""
        if not self.counts:
            self._native.finish()
            for _ in range(batches):
                self._decide()

    def _decide(self) -> None:
        self.counts.append(self._count(self._native.pop(), self._ends.popleft()))


class _Windows:
    """Decisions on targeted caches, and on LRPP caches of several lookaheads."""

    def __init__(self, examples: Examples, trainers: int, lookahead: int) -> None:
        self._trainers = trainers
        self._lookahead = lookahead
        self._vectors = sum(map(len, examples.ids))

        def native(synchronisation: _native.CacheSynchronisation, batches: int) -> Any:
            return _native_window(examples, trainers, batches, synchronisation)

        self._targeted = _Window(
            native(_native.CacheSynchronisation.TARGETED, lookahead),
            self._count,
            _MOST_SLOTS,
        )
        self._lrpp = {
            batches: _Window(
                native(_native.CacheSynchronisation.LRPP, batches),
                _lrpp_rows,
                max(3 * batches, batches + _LEAST_DECISIONS),
            )
            for batches in {*(number for number in _LRPP if number < lookahead), lookahead}
        }

    def push(self, examples: Examples) -> None:
        """Take the next batch."""
        ids, ends = list(examples.ids), examples.id_ends(self._trainers)
        for window in (self._targeted, *self._lrpp.values()):
            window.push(ids, ends)

    def finish(self, arrived: int) -> "tuple[list[_StepCounts], dict[int, StepRows]]":
        """Return the counts of batches, and the rows of LRPP by lookahead.

        Of fewer batches than the lookahead, half are counted.
        """
        longest = self._lrpp.pop(self._lookahead)
        if not self._targeted.counts:
            self._lookahead = arrived - arrived // 2
        self._lrpp[self._lookahead] = longest
        lrpp: dict[int, StepRows] = {}
        for batches, window in sorted(self._lrpp.items()):
            window.finish(arrived // 2)
            if batches <= self._lookahead:
                warm = window.counts[len(window.counts) // 2 :]
                lrpp[batches] = StepRows(*np.mean(warm, axis=0).tolist())
        self._targeted.finish(arrived // 2)
        return self._targeted.counts, lrpp

    def _count(self, decision: _native.LookaheadDecision, ends: NDArray[np.int64]) -> "_StepCounts":
        return _StepCounts(decision, ends, self._trainers, self._lookahead, self._vectors)


def _native_window(
    examples: Examples,
    trainers: int,
    lookahead: int,
    synchronisation: _native.CacheSynchronisation,
) -> _native.Lookahead:
    try:
        return _native.Lookahead(
            [0] * len(examples.ids),
            trainers=trainers,
            lookahead=lookahead,
            prefetch=1,
            slots=_MOST_SLOTS,
            synchronisation=synchronisation,
        )
    except ValueError as error:
        raise EmbeddingError(str(error)) from error


class _StepCounts:
    """Reuse and transfers of one batch.

    Attributes
    ----------
    reuse : [columns of `RowReuse`, lookahead].
    transfers : [synchronisation, 2]: `RowTransfers`, in the order of `Synchronisation`.
    places, replicated_places : see `ExampleBytes`.
    """

    def __init__(
        self,
        decision: _native.LookaheadDecision,
        ends: NDArray[np.int64],
        trainers: int,
        lookahead: int,
        vectors: int,
    ) -> None:
        gap = np.where(decision.next < 0, 0, decision.next - decision.batch)
        gap[gap >= lookahead] = 0
        users, others = decision.users, ~(np.uint32(1) << decision.owner.astype(np.uint32))
        next_users = np.where(gap > 0, decision.next_users, 0)
        weights = (
            np.ones(len(gap)),
            _ones(users),
            _ones(next_users),
            _ones(next_users & ~users),
            _ones(next_users & others),
        )
        self.reuse = [np.bincount(gap, column, lookahead) for column in weights]
        # Gradients to the trainer that updates a row, and the row from there to its next users.
        targeted = _ones(users & others) + weights[-1]
        shared, again = decision.shared == 1, gap == 1
        ring, remote = 2.0 * (trainers - 1), 2.0 * (trainers - 1) / trainers
        pooled, distinct = remote * vectors, remote * weights[1].sum()
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
        self.places = _place_bytes(decision, users, ends)
        everyone = np.full_like(users, (1 << trainers) - 1)
        self.replicated_places = _place_bytes(decision, everyone, ends)


def _lrpp_rows(decision: _native.LookaheadDecision, ends: NDArray[np.int64]) -> StepRows:
    users, next_users = decision.users, decision.next_users
    others = ~(np.uint32(1) << decision.owner.astype(np.uint32))
    uses, critical = _ones(users), decision.critical == 1
    # Caches fill up while batches are counted: once they are warm, as many rows come as go.
    fetched, evicted = decision.fetched == 1, len(decision.evicted_ids)
    gradients, rows = _ones(users & others), _ones(next_users & others)
    return StepRows(
        used=uses.sum(),
        listed=_ones(users | next_users).sum(),
        fetched=evicted * uses[fetched].mean() if fetched.any() else 0.0,
        evicted=evicted,
        critical_gradients=gradients[critical].sum(),
        critical_rows=rows[critical].sum(),
        delayed_gradients=gradients[~critical].sum(),
        delayed_rows=rows[~critical].sum(),
        place_bytes=_place_bytes(decision, users, ends),
    )


def _place_bytes(
    decision: _native.LookaheadDecision, users: NDArray[np.uint32], ends: NDArray[np.int64]
) -> int:
    """Return the bytes of ids as numbers of rows: one or two, or four, by a table's rows."""
    trainers = np.arange(ends.shape[1], dtype=np.uint32)
    of_trainers = users[:, None] >> trainers & np.uint32(1)
    # A table without rows has no ids either.
    filled = np.flatnonzero(np.diff(decision.first))
    rows = np.add.reduceat(of_trainers, decision.first[filled], axis=0, dtype=np.int64)
    ids = np.diff(ends[filled], axis=1, prepend=0)
    return int((ids * np.select([rows <= 1 << 8, rows <= 1 << 16], [1, 2], 4)).sum())


def _example_bytes(sample: Sequence[Examples], counts: Sequence[_StepCounts]) -> ExampleBytes:
    """Return bytes of messages, by examples and decisions on some batches."""
    fields = sum(
        examples.dense.nbytes + _LABEL_BYTES * len(examples) + _length_bytes(examples)
        for examples in sample
    )
    ids = [np.concatenate(examples.ids) for examples in sample]
    upper = [np.unique(own >> 32) for own in ids]
    wide = any(np.count_nonzero(own) > 1 for own in upper)
    marked = not wide and any((own > 0).any() for own in upper)
    id_bytes = 8.0 if wide else 4.0
    return ExampleBytes(
        fields=fields / sum(map(len, sample)),
        ids=(id_bytes + marked / 8) * float(np.mean([len(own) for own in ids])),
        id=id_bytes,
        places=float(np.mean([step.places for step in counts])),
        replicated_places=float(np.mean([step.replicated_places for step in counts])),
    )


def _length_bytes(examples: Examples) -> int:
    """Return the bytes of the lengths of bags."""
    lengths = [column for column in examples.lengths if column is not None]
    return sum(
        np.min_scalar_type(int(column.max(initial=0))).itemsize * len(column) for column in lengths
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
