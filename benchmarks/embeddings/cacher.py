"""The cacher on batches of Kaggle's tables: examples a second of one processor, by lookahead.

Timed is a batch from its ids to the messages of all trainers' parts.
"""

import statistics
import time
from collections.abc import Iterator
from itertools import cycle, islice

import numpy as np

from benchmarks.harness import Report
from headrace.embeddings import EmbeddingTable, InitialValues
from headrace.embeddings.data.criteo import INTEGERS
from headrace.embeddings.data.generate import KAGGLE_ROWS, Skew
from headrace.embeddings.run.batch_messages import decode_batch, encode_batch
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.cacher.cacher import CacherOptions, IdBatch, dispatched
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.tables import table_groups

BATCH = 16_384
TRAINERS = 8
SKEW = Skew(kind="zipf", parameter=1.05)
PREFETCH = 8
_SLOTS = 8_000_000
"""More rows than any of these windows keeps."""
_LOOKAHEAD = 200
"""Of the bar; a quick run has no other."""

_STEPS = 12
"""Timed, after the window is full."""

_PAPER_EXAMPLES_PER_S = 3.27e6
"""Of batches of 131,072, by the 72 processors of the paper's cacher (5.4.3)."""

_PAPER_CORES = 72
_GRID_LOOKAHEAD = 25
_FEATURES = (13, 26, 52, 104)
_BATCHES = (8_192, 16_384, 32_768, 65_536, 131_072)


def tables_of(columns: int) -> tuple[EmbeddingTable, ...]:
    """Return as many tables, with the rows of Kaggle's, again and again."""
    rows = islice(cycle(KAGGLE_ROWS), columns)
    return tuple(EmbeddingTable(name=str(number), rows=n, dim=48) for number, n in enumerate(rows))


TABLES = tables_of(len(KAGGLE_ROWS))
HASHED = tuple(
    EmbeddingTable(name=table.name, rows=0, dim=table.dim, initial=InitialValues(scale=1.0))
    for table in TABLES
)


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"cacher-examples-per-cpu-s": ">=600000", "cacher-300-over-5": "<=1.6"}


NOT_IN_QUICK = frozenset({"cacher-300-over-5"})


def measure(report: Report, *, quick: bool) -> None:
    """Decide, dispatch and encode the same batches with lookaheads of 5 to 300, in turns."""
    lookaheads = (_LOOKAHEAD,) if quick else (5, 50, 100, _LOOKAHEAD, 300)
    rounds = 7 if quick else 15
    timers = {lookahead: _Timer(lookahead) for lookahead in lookaheads}
    for timer in timers.values():
        timer.fill()
    seconds: dict[int, list[float]] = {lookahead: [] for lookahead in lookaheads}
    for _ in range(rounds):
        for lookahead, timer in timers.items():
            seconds[lookahead].append(timer.step_s())
    for lookahead, timer in timers.items():
        _report(report, "numbered", lookahead, timer, statistics.median(seconds[lookahead]))
    report.bar("cacher-examples-per-cpu-s", BATCH / statistics.median(seconds[_LOOKAHEAD]))
    if quick:
        return
    timer = _Timer(_LOOKAHEAD, HASHED)
    timer.fill()
    median_s = statistics.median(timer.step_s() for _ in range(7))
    _report(report, "hashed", _LOOKAHEAD, timer, median_s)
    _grid(report)
    ratios = [far / near for far, near in zip(seconds[300], seconds[5], strict=True)]
    report.bar("cacher-300-over-5", statistics.median(ratios))


def _grid(report: Report) -> None:
    """Time other numbers of tables, and other batches."""
    cells = [(columns, BATCH) for columns in _FEATURES]
    cells += [(len(KAGGLE_ROWS), batch) for batch in _BATCHES if batch != BATCH]
    for columns, batch in cells:
        timer = _Timer(_GRID_LOOKAHEAD, tables_of(columns), batch)
        timer.fill()
        seconds = timer.step_s()
        is_paper_s = batch == max(_BATCHES)
        report.row(
            f"the cacher by tables and batches: {TRAINERS} trainers, lookahead {_GRID_LOOKAHEAD}",
            tables=columns,
            batch=batch,
            ms=1e3 * seconds,
            examples_per_cpu_s=batch / seconds,
            ns_per_id=1e9 * seconds / batch / columns,
            paper_examples_per_core_s=_PAPER_EXAMPLES_PER_S / _PAPER_CORES if is_paper_s else None,
        )
    report.note(
        "the cacher by tables and batches: the paper's latencies are in a figure without numbers, "
        "but for 3.27 million examples a second on 72 processors"
    )


def _report(report: Report, ids: str, lookahead: int, timer: "_Timer", seconds: float) -> None:
    report.row(
        f"batches of {BATCH} to {TRAINERS} trainers, 26 tables of Kaggle's rows",
        ids=ids,
        lookahead=lookahead,
        ms=1e3 * seconds,
        examples_per_cpu_s=BATCH / seconds,
        rows=timer.rows,
        fetched=timer.fetched,
        message_bytes=timer.message_bytes,
    )


class _Timer:
    """A window of batches that is full, and the time of one more batch."""

    def __init__(
        self, lookahead: int, tables: tuple[EmbeddingTable, ...] = TABLES, batch: int = BATCH
    ) -> None:
        self._lookahead = lookahead
        self._ids = batch * len(tables)
        self._batches = id_batches(len(tables), batch)
        self._batch = next(self._batches)
        options = CacherOptions(
            tables=tables,
            groups=table_groups(tables),
            slots=(_SLOTS,),
            trainers=TRAINERS,
            lookahead=lookahead,
            prefetch=min(PREFETCH, lookahead),
        )
        self._parts = dispatched(self._arriving(), options)
        self.rows = self.fetched = self.message_bytes = 0

    def fill(self) -> None:
        """Decide until the cache is warm."""
        for _ in range(self._lookahead):
            next(self._parts)

    def step_s(self) -> float:
        """Return the processor seconds of one batch, the median of some.

        From its ids to the messages of all trainers' parts.
        """
        seconds: list[float] = []
        for _ in range(_STEPS):
            self._batch = next(self._batches)
            began = time.process_time()
            parts = next(self._parts)
            messages = [encode_batch(part) for part in parts]
            seconds.append(time.process_time() - began)
            self._check(parts, messages)
        return statistics.median(seconds)

    def _arriving(self) -> Iterator[IdBatch]:
        """Yield the batch at hand: a new one each time while the window fills."""
        for _ in range(2 * self._lookahead - 1):
            yield next(self._batches)
        while True:
            yield self._batch

    def _check(self, parts: tuple[TrainerBatch, ...], messages: list[RpcMessage]) -> None:
        """Raise ArithmeticError unless the messages are of a whole batch, rows in own slots."""
        self.message_bytes = sum(
            column.nbytes for message in messages for column in message.columns.values()
        )
        groups = [decode_batch(message).groups[0] for message in messages]
        self.rows = len(np.unique(np.concatenate([group.slots[: group.used] for group in groups])))
        fetched = [group.fetched.slots for group in groups]
        self.fetched = len(np.unique(np.concatenate(fetched)))
        if sum(len(group.rows_of_ids) for group in groups) != self._ids:
            raise ArithmeticError("ids have no rows")
        for part, group in zip(parts, groups, strict=True):
            slots = part.groups[0].slots
            if not np.array_equal(group.slots, slots) or len(np.unique(slots)) != len(slots):
                raise ArithmeticError("rows share slots, or messages have others")


def id_batches(columns: int = len(KAGGLE_ROWS), batch: int = BATCH) -> Iterator[IdBatch]:
    """Yield batches of `tables_of(columns)` without end: the same ones from every call."""
    generator = np.random.default_rng(0)
    rows = list(islice(cycle(KAGGLE_ROWS), columns))
    fields = {
        "dense": np.ones((batch, INTEGERS), np.float32),
        "labels": np.zeros(batch, np.float32),
    }
    while True:
        ids = tuple(SKEW.draw(count, batch, generator) * 2_654_435_761 % count for count in rows)
        yield IdBatch(examples=batch, fields=fields, ids=ids, lengths=(None,) * columns)
