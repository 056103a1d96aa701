"""A running job as those see it that follow it: the pace of its processes, and what they do."""

from collections.abc import Mapping
from typing import Any, Protocol

from headrace.embeddings.run.cacher.cacher import BatchDecisions
from headrace.embeddings.run.cacher.part_buffer import PartBuffer
from headrace.embeddings.run.readers.reader_batches import ReaderBatches
from headrace.embeddings.run.step_times import TrainerTimes


class CacherPace:
    """Pace of readers and trainers as the cacher sees it, between two batches that it takes."""

    def __init__(self, batches: ReaderBatches, parts: PartBuffer) -> None:
        self._batches = batches
        self._parts = parts

    @property
    def ahead(self) -> bool:
        """True if readers and the cacher are faster than the trainers.

        The parts that were decided last waited for room, and the next batch has arrived.
        """
        return self._parts.waited and self._batches.arrived

    def late(self) -> bool:
        """Wait for the next batch; return True once a trainer has taken all parts before it."""
        with self._parts.changed:
            # the readers' calls have deadlines, and the end of the trainers ends the wait
            self._parts.changed.wait_for(lambda: self._batches.arrived or self._parts.short())
            return not self._batches.arrived

    def set_room(self, batches: int) -> None:
        """Change the number of batches that are decided before the slowest trainer takes them."""
        self._parts.set_room(batches)


class JobFollower(Protocol):
    """Changes lookahead, prefetch and shares while a job goes on."""

    def report(self, trainer: int, times: TrainerTimes) -> None:
        """Take the times of a trainer's steps, which follow those that it reported before."""
        ...

    def follow(self, decisions: BatchDecisions, pace: CacherPace) -> None:
        """Look at a job before a batch is taken; it may change `decisions` and `pace`."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Return the numbers in force and the changes, as JSON can express them."""
        ...
