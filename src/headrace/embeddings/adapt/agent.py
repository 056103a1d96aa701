"""`JobAdaptation`: lets the cacher's decisions follow a job, and records each change."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.embeddings.adapt.decide import JobState, decide
from headrace.embeddings.adapt.seen import SeenBatch, SeenStep
from headrace.embeddings.changes import JobChange
from headrace.embeddings.room import MOST_LOOKAHEAD
from headrace.embeddings.run.cacher.cacher import BatchDecisions
from headrace.embeddings.run.cacher.cacher_server import BESIDE_PREFETCH
from headrace.embeddings.run.cacher.following import CacherPace
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.job.records import Records

log = logging.getLogger(__name__)

_MOST_EXAMPLES = 4096
"""Batches whose shares are remembered until their steps are reported."""


class JobAdaptation:
    """Follows one job, over its epochs.

    Parameters
    ----------
    most_lookahead : limit of the lookahead at first; None: what the caches have room for.
    equal_shares : whether trainers have equal shares whatever their rates.
    log_path : file that changes are appended to, as lines of JSON.

    Attributes
    ----------
    records : of changes, the latest last; see docs/embeddings.md.
    """

    def __init__(
        self,
        trainers: int,
        *,
        most_lookahead: int | None = None,
        equal_shares: bool = False,
        log_path: Path | None = None,
    ) -> None:
        self._trainers = None if equal_shares else trainers
        self._most = most_lookahead or MOST_LOOKAHEAD
        self._state: JobState | None = None
        self._decided = 0  # number behind the batch that was looked at last
        self._lock = threading.Lock()
        self._reported: list[deque[TrainerTimes]] = [deque() for _ in range(trainers)]
        self._next_step: int | None = None
        self._examples: dict[int, tuple[int, ...]] = {}
        self.records = Records(log_path)

    def report(self, trainer: int, times: TrainerTimes) -> None:
        """Take the times of a trainer's steps; of several at once each is a mean one."""
        with self._lock:
            self._reported[trainer].extend([times] * times.batches)

    def follow(self, decisions: BatchDecisions, pace: CacherPace) -> None:
        """Look at a job before a batch is taken, and change what is decided from now on."""
        if decisions.rows is None:
            return
        if self._next_step is None:
            self._next_step = decisions.first_batch
        late = pace.late()
        decided = decisions.next_batch - decisions.arrived
        is_new, self._decided = decided > self._decided, decided
        if is_new:
            self._examples[decided - 1] = decisions.examples
        state = self._state or JobState.planned(
            lookahead=decisions.lookahead,
            most=max(self._most, decisions.lookahead),
            prefetch=decisions.prefetch,
            ready=BESIDE_PREFETCH,
            trainers=self._trainers,
        )
        seen = SeenBatch(
            batch=decided - 1,
            arriving=decisions.next_batch,
            slot_share=decisions.rows.slot_share,
            short=is_new and decisions.rows.short,
            ahead=is_new and pace.ahead,
            late=late,
            steps=tuple(self._steps()),
        )
        self._state, changes = decide(state, seen)
        self._apply(self._state, decisions, pace)
        for change in changes:
            self._record(change)

    def status(self) -> Mapping[str, Any]:
        """Return the numbers in force, and the changes."""
        state, events = self._state, [*self.records.events]
        if state is None:
            return {"changes": events}
        return {
            "lookahead": state.lookahead.lookahead,
            "prefetch": state.waits.prefetch,
            "ready": state.waits.ready,
            "shares": None if state.shares is None else state.shares.shares,
            "changes": events,
        }

    def _apply(self, state: JobState, decisions: BatchDecisions, pace: CacherPace) -> None:
        prefetch = state.waits.prefetch
        if (decisions.lookahead, decisions.prefetch) != (state.lookahead.lookahead, prefetch):
            decisions.change(state.lookahead.lookahead, prefetch)
        pace.set_room(prefetch + state.waits.ready)
        if state.shares is not None and state.shares.since > 0:
            decisions.shares = state.shares.shares

    def _record(self, change: JobChange) -> None:
        log.info("%s", change)
        self.records.add(change.name, **change.to_fields(), sentence=str(change))

    def _steps(self) -> Iterator[SeenStep]:
        """Yield the steps that all trainers have reported since the last call."""
        with self._lock:
            count = min(map(len, self._reported))
            steps = [[of_one.popleft() for of_one in self._reported] for _ in range(count)]
        for step in steps:
            assert self._next_step is not None
            examples = self._examples.pop(self._next_step, ())
            yield _seen_step(self._next_step, step, examples)
            self._next_step += 1
        while len(self._examples) > _MOST_EXAMPLES:
            del self._examples[min(self._examples)]


def _seen_step(batch: int, times: list[TrainerTimes], examples: tuple[int, ...]) -> SeenStep:
    """Return a step of all trainers; of one whose sums are over several each has a part."""

    def wait_s(of_one: TrainerTimes) -> float:
        return (of_one.batch_wait_s + of_one.fetch_wait_s) / of_one.batches

    waiting = max(times, key=wait_s)
    return SeenStep(
        batch=batch,
        step_s=waiting.step_s / waiting.batches,
        wait_s=wait_s(waiting),
        compute_s=tuple(of_one.compute_s / of_one.batches for of_one in times if examples),
        examples=examples,
    )
