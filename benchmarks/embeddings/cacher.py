"""Decisions on batches of Kaggle's tables: examples a second of one processor, by lookahead."""

import statistics
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Report
from headrace import _native
from headrace.embeddings.data.examples import share_ends
from headrace.embeddings.data.generate import KAGGLE_ROWS, Skew

BATCH = 16_384
TRAINERS = 8
SKEW = Skew(kind="zipf", parameter=1.05)
PREFETCH = 8
_SLOTS = 8_000_000
"""More rows than any of these windows keeps."""
_STEPS = 12
"""Timed, after the window is full."""


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"cacher-examples-per-cpu-s": ">=600000", "cacher-300-over-5": "<=1.6"}


def measure(report: Report, *, quick: bool) -> None:
    """Decide batches with lookaheads of 5 to 300, each on the same ones, in turns."""
    lookaheads = (5, 200, 300) if quick else (5, 50, 100, 200, 300)
    rounds = 7 if quick else 15
    timers = {lookahead: _Timer(lookahead) for lookahead in lookaheads}
    for timer in timers.values():
        timer.fill()
    seconds: dict[int, list[float]] = {lookahead: [] for lookahead in lookaheads}
    for _ in range(rounds):
        for lookahead, timer in timers.items():
            seconds[lookahead].append(timer.step_s())
    for lookahead, timer in timers.items():
        median = statistics.median(seconds[lookahead])
        report.row(
            f"decisions on batches of {BATCH}, {TRAINERS} trainers, 26 tables of Kaggle's rows",
            lookahead=lookahead,
            ms=1e3 * median,
            examples_per_cpu_s=BATCH / median,
            rows=timer.rows,
            fetched=timer.fetched,
            cached=timer.cached,
        )
    report.bar("cacher-examples-per-cpu-s", BATCH / statistics.median(seconds[200]))
    ratios = [far / near for far, near in zip(seconds[300], seconds[5], strict=True)]
    report.bar("cacher-300-over-5", statistics.median(ratios))


class _Timer:
    """A window of batches that is full, and the time of one more batch."""

    def __init__(self, lookahead: int) -> None:
        self._window = _native.Lookahead(
            list(KAGGLE_ROWS),
            trainers=TRAINERS,
            lookahead=lookahead,
            prefetch=min(PREFETCH, lookahead),
            slots=_SLOTS,
        )
        self._lookahead = lookahead
        self._batches = batches()
        ends = share_ends(BATCH, TRAINERS)
        self._ends = np.tile(ends, (len(KAGGLE_ROWS), 1))
        self.rows = self.fetched = self.cached = 0

    def fill(self) -> None:
        """Decide until the cache is warm."""
        for _ in range(2 * self._lookahead - 1):
            self._window.push(next(self._batches), self._ends)
            if self._window.ready:
                self._window.pop()

    def step_s(self) -> float:
        """Return the processor seconds of one batch, the median of some, with all columns made."""
        seconds: list[float] = []
        for _ in range(_STEPS):
            ids = next(self._batches)
            began = time.process_time()
            self._window.push(ids, self._ends)
            decision = self._window.pop()
            seconds.append(time.process_time() - began)
            self._check(decision)
        return statistics.median(seconds)

    def _check(self, decision: _native.LookaheadDecision) -> None:
        """Raise ArithmeticError unless the decision is of a whole batch, in slots of its own."""
        self.rows = len(decision.ids)
        self.fetched = int(decision.fetched.sum())
        self.cached = self._window.resident
        if len(decision.id_slots) != BATCH * len(KAGGLE_ROWS):
            raise ArithmeticError(f"{len(decision.id_slots)} ids have slots")
        if len(np.unique(decision.slots)) != self.rows or decision.evicted_for_room:
            raise ArithmeticError("rows share slots, or have no room")


def batches() -> Iterator[list[NDArray[np.int64]]]:
    """Yield the ids of batches, by table, without end: the same ones from every call."""
    generator = np.random.default_rng(0)
    while True:
        yield [SKEW.draw(rows, BATCH, generator) * 2_654_435_761 % rows for rows in KAGGLE_ROWS]
