"""Times of all processes of a job: their sums are asked for while it goes on, and sampled."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.embeddings.changes import JobChange
from headrace.embeddings.run.job.job_processes import ProcessKey
from headrace.embeddings.run.step_times import (
    CacherTimes,
    ReaderTimes,
    ServerTimes,
    Sums,
    TrainerTimes,
)
from headrace.facades import offered_by

KINDS: Mapping[str, type[Sums]] = {
    "trainer": TrainerTimes,
    "cacher": CacherTimes,
    "reader": ReaderTimes,
    "server": ServerTimes,
}
"""Sums of every kind of process."""

SERVING = ("cacher", "reader", "server")
"""Kinds of processes that are asked; the cacher has the trainers' times."""

_EVERY_S = 1.0
_LAST_S = 2.0
"""For the answers after the last batch."""
_MOST = 512
"""Samples: two neighbours become one where there would be more."""


@offered_by("headrace.embeddings")
@dataclass(slots=True, kw_only=True)
class TimesSample:
    """Sums over an interval.

    Attributes
    ----------
    end_s : of the interval, since the job began.
    sums : of every process that did something in it.
    """

    end_s: float
    sums: dict[ProcessKey, Sums]

    def extend(self, after: "TimesSample") -> None:
        """Add the interval that follows."""
        self.end_s = after.end_s
        for key, sums in after.sums.items():
            if key in self.sums:
                self.sums[key].add(sums)
            else:
                self.sums[key] = sums


@offered_by("headrace.embeddings")
class JobTimes:
    """Samples of a job's times, and the sums of all.

    Attributes
    ----------
    samples : at most `most`, in their order; as many seconds long as needed for that.
    next_batch : number of the batch that is trained on next: those that a loss undid count once.
    lookahead : of the cacher; None: it is not found yet.
    batch : examples of one, as the script's data have it; None: it is not known yet.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._began_s = time.monotonic()
        self._latest: dict[ProcessKey, Sums] = {}
        self._before: dict[ProcessKey, Sums] = {}
        self._width = 1
        self._taken = 0
        self.samples: list[TimesSample] = []
        self.next_batch = 0
        self.lookahead: int | None = None
        self.batch: int | None = None
        self._changes: dict[tuple[float, str], JobChange] = {}  # by time and name

    def begin(self) -> None:
        """Begin anew with all processes: those of another start of the job, after a loss."""
        self._latest, self._before = {}, {}

    def take(self, key: ProcessKey, status: Mapping[str, Any]) -> None:
        """Take over what a process answered."""
        kind, _ = key
        if "times" in status:  # else the job has not begun there
            self._latest[key] = KINDS[kind].from_fields(status["times"])
        trainers = status.get("trainers", ())
        for trainer, times in enumerate(trainers):
            self._latest["trainer", trainer] = TrainerTimes.from_fields(times)
        if kind == "cacher" and status:
            trained = max((times["batches"] for times in trainers), default=0)
            self.next_batch, self.lookahead = status["first_batch"] + trained, status["lookahead"]
            self.batch = status.get("batch") or self.batch
            adaptation = status.get("adaptation") or {}
            for change in adaptation.get("changes", ()):
                self._changes[change["at"], change["name"]] = JobChange.from_fields(change)

    @property
    def changes(self) -> tuple[JobChange, ...]:
        """Changes of the job so far, those before a loss of a process included."""
        return tuple(self._changes.values())

    def forget(self, key: ProcessKey) -> None:
        """Begin anew with a process that was replaced."""
        self._latest.pop(key, None)
        self._before.pop(key, None)

    def sample(self) -> TimesSample:
        """Add the sums since the last sample as another one, and return it."""
        added = {key: self._since(key, sums) for key, sums in self._latest.items()}
        self._before = self._latest
        self._latest = dict(self._latest)
        sample = TimesSample(end_s=time.monotonic() - self._began_s, sums=added)
        if self._taken % self._width == 0:
            if len(self.samples) == self._most:
                self._halve()
            self.samples.append(TimesSample(end_s=sample.end_s, sums=copied_sums(added)))
        else:
            self.samples[-1].extend(TimesSample(end_s=sample.end_s, sums=copied_sums(added)))
        self._taken += 1
        return sample

    def _since(self, key: ProcessKey, sums: Sums) -> Sums:
        before = self._before.get(key)
        return sums if before is None else sums.since(before)

    def _halve(self) -> None:
        for sample, after in zip(self.samples[::2], self.samples[1::2], strict=True):
            sample.extend(after)
        self.samples = self.samples[::2]
        self._width *= 2
        self._taken = len(self.samples) * self._width

    def total(self, kind: str) -> Sums:
        """Return the sums of all processes of a kind."""
        total = KINDS[kind]()
        for sample in self.samples:
            for (own, _), sums in sample.sums.items():
                if own == kind:
                    total.add(sums)
        return total


def copied_sums(sums: Mapping[ProcessKey, Sums]) -> dict[ProcessKey, Sums]:
    """Return sums that others can be added to."""
    return {key: type(own).from_fields(own.to_fields()) for key, own in sums.items()}


class Asked(Protocol):
    """Processes that messages can be sent to."""

    def send(self, key: ProcessKey, message: dict[str, Any]) -> None:
        """Send a process a message."""
        ...


OnSample = Callable[[JobTimes, TimesSample], None]
"""Called about every second with a job's times, and its last interval."""


@dataclass(slots=True, kw_only=True)
class StatusRounds:
    """Asks a job's processes for their times, about every second.

    Attributes
    ----------
    keys : of the processes that are asked.
    on_sample : gets what they answered, when all of them have.
    """

    keys: Sequence[ProcessKey]
    times: JobTimes
    on_sample: OnSample
    _awaited: set[ProcessKey] = field(default_factory=set[ProcessKey])
    _next_s: float = field(default_factory=lambda: time.monotonic() + _EVERY_S)

    def ask_when_due(self, processes: Asked) -> float:
        """Ask if it is time, and all have answered; return the seconds until the next time."""
        left_s = self._next_s - time.monotonic()
        if left_s > 0:
            return left_s
        self._next_s = time.monotonic() + _EVERY_S
        if not self._awaited:
            self._awaited = set(self.keys)
            for key in self.keys:
                processes.send(key, {"status": True})
        return _EVERY_S

    def replaced(self, key: ProcessKey) -> None:
        """Await no answer of a process that was replaced, and begin anew with the other one."""
        self.times.forget(key)
        if key in self._awaited:
            self.take(key, {})

    def take(self, key: ProcessKey, status: Mapping[str, Any]) -> None:
        """Take over an answer."""
        self.times.take(key, status)
        self._awaited.discard(key)
        if not self._awaited:
            self.on_sample(self.times, self.times.sample())

    def last_round(self, processes: Asked, receive: Callable[[float], None]) -> None:
        """Ask once more when the trainers have ended.

        Parameters
        ----------
        receive : takes a line of some process, within seconds.
        """
        until = time.monotonic() + _LAST_S
        self._receive_all(receive, until)
        self._next_s = 0.0
        self.ask_when_due(processes)
        self._receive_all(receive, until)

    def _receive_all(self, receive: Callable[[float], None], until: float) -> None:
        while self._awaited and (left_s := until - time.monotonic()) > 0:
            receive(left_s)
