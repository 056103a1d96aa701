"""Change of a running job between two calls, at the same one on every rank.

Every rank makes the same calls in the same order, so their sequence numbers are equal on all ranks.
A change is a two-phase commit. First each rank *promises* not to make the call with a certain
number before it has the verdict. When all have promised, the change is *committed* at the highest
of those numbers, which no rank has passed. `agreement` exchanges the messages; this module is the
state of one rank.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from headrace.errors import CommunicationError, InputError
from headrace.forks import ThreadLock
from headrace.job.steps import CHANGED, MARK

MARGIN = 64
"""Bound on the calls from a promise to the promised one; if it is large enough, no rank waits."""

HOLD_S = 30.0
"""Longest wait for a verdict, in seconds."""

_DRAIN_S = 60.0
_RECORDED_CALLS = 4096
_POLL_S = 0.001

log = logging.getLogger(__name__)

_recording: "WeakSet[CallSwitch]" = WeakSet()
_recording_lock = ThreadLock()
"""Held by what iterates or adds: groups are made by other threads than those that end steps."""

RecordedCall = tuple[Hashable, float]
"""(key, time of the call by `time.monotonic`); or a key of `steps` that is no call."""

Activation = Callable[[], None]
"""Puts a change in force, between two calls."""


class Counted(Protocol):
    """Interface of an executor whose calls a switch counts; `epoch` is the last change's."""

    rank: int
    epoch: int

    def submitted(self) -> int:
        """Return the number of calls begun so far."""
        ...

    def finished(self) -> int:
        """Return the number of calls ended so far."""
        ...


@dataclass(frozen=True, slots=True)
class _Change:
    """A change at call number `at`, or, while it is only promised, not before that call."""

    epoch: int
    at: int
    activate: Activation
    until_s: float  # deadline of waiting for the verdict


def mark_step(*, changed: bool = False) -> None:
    """Record for all groups of this process that a training step has ended.

    Parameters
    ----------
    changed : record instead that steps are different from here on (`steps.CHANGED`).
    """
    with _recording_lock:
        switches = list(_recording)
    for switch in switches:
        switch.note(CHANGED if changed else MARK)


class _Ended:
    """Counters of an executor whose group is closed."""

    def __init__(self, executor: Counted) -> None:
        self.rank, self.epoch = executor.rank, executor.epoch
        self._count = executor.submitted()

    def submitted(self) -> int:
        return self._count

    finished = submitted


class CallSwitch:
    """Switch that makes changes of one group between two of its calls.

    Calls are made by one thread at a time (as torch requires); promises and verdicts come from
    another.

    Parameters
    ----------
    executor : counts the group's calls and marks their messages with the epoch.

    Attributes
    ----------
    armed : whether `turn` has to be called before a call; the only check that every call makes.
    """

    def __init__(self, executor: Counted) -> None:
        self.armed = False
        self._executor = executor
        # The calling thread holds `_turning` from reading its number to the end of the change, any
        # thread `_state` for a moment; lock order: `_turning`, `_state`.
        self._turning = threading.RLock()
        self._state = threading.Condition()
        self._promised: _Change | None = None
        self._due: deque[_Change] = deque()
        self._newest = 0
        self._closed = False
        self._calls: deque[RecordedCall] | None = None

    @property
    def epoch(self) -> int:
        """Number of the last change that is in force; 0 at the start."""
        return self._executor.epoch

    def sequence(self) -> int:
        """Return the number of calls that the group has begun so far."""
        return self._executor.submitted()

    # ---- called by the agent --------------------------------------------------------------

    def drained(self, activate: Activation, deadline_s: float = _DRAIN_S) -> Activation:
        """Return `activate` preceded by a wait until all earlier calls have ended here."""

        def drained() -> None:
            end = time.monotonic() + deadline_s
            while self._executor.finished() < self._executor.submitted():
                if time.monotonic() > end:
                    raise CommunicationError(
                        f"rank {self._executor.rank}: the calls before number "
                        f"{self.sequence()} did not end within {deadline_s:g} s"
                    )
                time.sleep(_POLL_S)
            activate()

        return drained

    def promise(
        self, epoch: int, activate: Activation, *, margin: int = MARGIN, hold_s: float = HOLD_S
    ) -> int:
        """Promise not to make a call before the verdict on change `epoch`.

        Parameters
        ----------
        epoch : number of the change, above those of all earlier ones.
        activate : makes the change; run by the calling thread between two calls. Calls that it
            makes itself are of the new epoch.
        margin : number of further calls that may be made, at least 1.
        hold_s : longest wait for the verdict, from the promise.

        Returns
        -------
        int
            The number of the call; the verdict must not be to change before it.
        """
        if margin < 1:
            raise InputError(f"margin is {margin}, needs at least 1: a call may be under way")
        until_s = time.monotonic() + hold_s
        with self._state:
            if self._closed:
                raise CommunicationError("the group was closed")
            if epoch <= self._newest:
                raise InputError(f"epoch is {epoch}, needs more than {self._newest}")
            if self._promised is not None:
                raise InputError(
                    f"epoch {self._promised.epoch} is undecided: commit or abort it first"
                )
            self._newest = epoch
            # Before the count is read: a thread that did not see this is at most about to make
            # the call that has the count as its number.
            self.armed = True
            last = self._due[-1].at if self._due else 0
            at = max(self._executor.submitted(), last) + margin
            self._promised = _Change(epoch, at, activate, until_s)
            return at

    def commit(self, epoch: int, at: int) -> None:
        """Make the promised change before call number `at`.

        Raises
        ------
        CommunicationError : if this rank no longer waits for that verdict.
        InputError : if it may have passed that call already.
        """
        with self._state:
            change = self._promised
            if change is None or change.epoch != epoch:
                raise CommunicationError(
                    f"rank {self._executor.rank} got the verdict that change {epoch} is made at "
                    f"call {at} too late: it has stopped waiting and stays with change {self.epoch}"
                )
            if at < change.at:
                raise InputError(f"at is {at}, needs at least the promised {change.at}")
            self._due.append(_Change(epoch, at, change.activate, change.until_s))
            self._promised = None
            self._state.notify_all()

    def abort(self, epoch: int) -> None:
        """Drop the promise of change `epoch`; does nothing for any other change."""
        with self._state:
            if self._promised is not None and self._promised.epoch == epoch:
                self._promised = None
                self._rearm()
                self._state.notify_all()

    def record(self) -> None:
        """Begin to record the calls."""
        with _recording_lock:
            _recording.add(self)
        with self._state:
            self._calls = deque(maxlen=_RECORDED_CALLS)
            self._rearm()

    def recorded(self) -> list[RecordedCall]:
        """Return the calls recorded since the last call of this (the last few thousand)."""
        calls = self._calls
        return [] if calls is None else [calls.popleft() for _ in range(len(calls))]

    def note(self, key: Hashable) -> None:
        """Record a key that is no call, if calls are recorded."""
        if (calls := self._calls) is not None:
            calls.append((key, time.monotonic()))

    def close(self) -> None:
        """Release all resources; a wait for a verdict ends in an error."""
        with self._state:
            self._closed = True
            self._promised = self._calls = None
            self._due.clear()
            self._executor = _Ended(self._executor)  # references to this keep no connections
            self._state.notify_all()

    # ---- called by the calling thread -----------------------------------------------------

    def turn(self, key: Hashable) -> None:
        """Make changes due before the next call, recorded as `key`; may wait for a verdict.

        Raises
        ------
        CommunicationError : if the group is closed meanwhile; also errors of an activation.
        """
        self.note(key)
        if self._promised is None and not self._due:
            return
        with self._turning:
            while (change := self._next()) is not None:
                self._executor.epoch = change.epoch
                change.activate()
                log.info(
                    "rank %d: change %d made before call %d",
                    self._executor.rank,
                    change.epoch,
                    change.at,
                )

    def _next(self) -> _Change | None:
        """Return the change that is due now, after a wait for a pending verdict."""
        with self._state:
            number = self._executor.submitted()
            while True:
                if self._closed:
                    raise CommunicationError("the group was closed")
                if self._due and number >= self._due[0].at:
                    return self._due.popleft()
                change = self._promised
                if change is None or number < change.at:
                    self._rearm()
                    return None
                left_s = change.until_s - time.monotonic()
                if left_s > 0:
                    self._state.wait(left_s)
                else:
                    self._give_up(change)

    def _give_up(self, change: _Change) -> None:
        self._promised = None
        log.warning(
            "rank %d: no verdict on change %d came in time; it stays with change %d. If others "
            "have changed, the next call ends in an error that names both",
            self._executor.rank,
            change.epoch,
            self.epoch,
        )

    def _rearm(self) -> None:
        self.armed = self._calls is not None or self._promised is not None or bool(self._due)
