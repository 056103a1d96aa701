"""Times, rows and bytes of a job's processes: sums, of which differences and totals are sums too.

Each process counts in its own thread, without locks: a reader of a sum may see a step in part.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from headrace.facades import offered_by


@offered_by("headrace.embeddings")
@dataclass(slots=True, kw_only=True)
class Sums:
    """Base of numbers that add up over batches.

    Attributes
    ----------
    batches : that the others are sums over.
    """

    batches: int = 0

    def add(self, other: Self) -> None:
        """Add those of other batches, number by number."""
        for number in fields(self):
            name = number.name
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def since(self, before: Self) -> Self:
        """Return the sums over the batches that an earlier state of these sums has not."""
        return type(self)(
            **{name: number - getattr(before, name) for name, number in asdict(self).items()}
        )

    def to_fields(self) -> dict[str, Any]:
        """Return the numbers by their names."""
        return asdict(self)

    @classmethod
    def from_fields(cls, numbers: Mapping[str, Any]) -> Self:
        """Return those that `to_fields` returned."""
        return cls(**numbers)


STEP_PARTS = {
    "compute_s": "forward and backward pass",
    "copy_s": "rows to the model's tensors",
    "update_s": "update of rows",
    "dense_wait_s": "average of the dense part",
    "batch_wait_s": "wait for the batch",
    "fetch_wait_s": "wait for fetched rows",
    "exchange_wait_s": "wait for other trainers' rows",
    "delayed_wait_s": "wait for the delayed exchange",
    "commit_wait_s": "wait for the commit before",
}
"""Parts of a training thread's step, which add up to it."""

STALLS = tuple(name for name in STEP_PARTS if name.endswith("_wait_s"))
"""Parts in which the training thread waits."""


@offered_by("headrace.embeddings")
@dataclass(slots=True, kw_only=True)
class TrainerTimes(Sums):
    """Sums over steps of one trainer: seconds by part, and what moved (Figure 5.3).

    A step lasts from the end of the one before it to the end of its exchange, the first one of an
    epoch from its request for a batch.

    Attributes
    ----------
    compute_s : in the training loop: forward and backward pass, the dense optimizer, the rest.
    copy_s : copying rows from the caches to the model's tensors.
    update_s : of rows, before the next step: adding up gradients, the optimizer, copies.
    dense_wait_s : from the last gradients of the dense part to the end of their average. The
        backward pass of rows may hide some of it.
    batch_wait_s, fetch_wait_s : before the cacher's part of the batch was there, and after it for
        the rows that it fetches.
    exchange_wait_s : for gradients and rows of other trainers, in the critical exchange.
    delayed_wait_s : for the delayed exchange and the evictions of the batch before.
    commit_wait_s : for the commit before the one that begins, and copying the dense part.
    fetch_s, delayed_s, write_back_s : beside the training thread: fetches, with the servers' wait
        for write-backs; delayed exchanges; writing evicted rows back.
    fetched_rows, fetched_bytes : from servers, with the optimizer's state.
    critical_rows, critical_bytes, delayed_rows, delayed_bytes : gradients and rows that the trainer
        sent to others.
    evicted_rows, evicted_bytes, dirty_rows, dirty_bytes : that it wrote back, and wrote at commits.
    dense_bytes : of gradients of the dense part, before their average.
    ready_batches : batches whose rows were there too, when each batch was taken.
    """

    compute_s: float = 0.0
    copy_s: float = 0.0
    update_s: float = 0.0
    dense_wait_s: float = 0.0
    batch_wait_s: float = 0.0
    fetch_wait_s: float = 0.0
    exchange_wait_s: float = 0.0
    delayed_wait_s: float = 0.0
    commit_wait_s: float = 0.0
    fetch_s: float = 0.0
    delayed_s: float = 0.0
    write_back_s: float = 0.0
    fetched_rows: int = 0
    fetched_bytes: int = 0
    critical_rows: int = 0
    critical_bytes: int = 0
    delayed_rows: int = 0
    delayed_bytes: int = 0
    evicted_rows: int = 0
    evicted_bytes: int = 0
    dirty_rows: int = 0
    dirty_bytes: int = 0
    dense_bytes: int = 0
    ready_batches: int = 0

    @property
    def step_s(self) -> float:
        """Seconds of all parts of the training thread."""
        return sum(getattr(self, part) for part in STEP_PARTS)

    @property
    def stall_s(self) -> float:
        """Seconds in which the training thread waited."""
        return sum(getattr(self, part) for part in STALLS)


@offered_by("headrace.embeddings")
@dataclass(slots=True, kw_only=True)
class CacherTimes(Sums):
    """Sums over a cacher's batches.

    Attributes
    ----------
    reader_wait_s : for batches of the readers.
    decide_s, dispatch_s : deciding, and encoding the trainers' parts.
    room_wait_s : for the slowest trainer to take a part.
    dispatched_bytes : of all trainers' parts.
    batches_ahead : that were decided and the slowest trainer had not taken, after each decision.
    """

    reader_wait_s: float = 0.0
    decide_s: float = 0.0
    dispatch_s: float = 0.0
    room_wait_s: float = 0.0
    dispatched_bytes: int = 0
    batches_ahead: int = 0


@offered_by("headrace.embeddings")
@dataclass(slots=True, kw_only=True)
class ReaderTimes(Sums):
    """Sums over the batches of one reader.

    Attributes
    ----------
    parse_s : reading, parsing and encoding.
    room_wait_s : for the cacher to pull batches.
    examples, read_bytes : of the batches, as they are sent.
    batches_ahead : that were parsed and not pulled, after each one that was.
    """

    parse_s: float = 0.0
    room_wait_s: float = 0.0
    examples: int = 0
    read_bytes: int = 0
    batches_ahead: int = 0


@offered_by("headrace.embeddings")
@dataclass(slots=True, kw_only=True)
class ServerTimes(Sums):
    """Sums over calls of one server since the job began; calls that run side by side add up.

    Attributes
    ----------
    batches : whose evicted rows all trainers have written back.
    fetched_rows, written_rows : of fetches and of write-backs.
    wait_s : in which fetches waited for write-backs of the trainers.
    fetch_s, write_s : in which rows were found, and copied.
    log_s : in which written rows were logged.
    """

    fetched_rows: int = 0
    written_rows: int = 0
    wait_s: float = 0.0
    fetch_s: float = 0.0
    write_s: float = 0.0
    log_s: float = 0.0


class Laps:
    """Seconds of the parts of one thread's work, one after the other."""

    def __init__(self) -> None:
        self.at_s = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last call."""
        before, self.at_s = self.at_s, time.perf_counter()
        return self.at_s - before
