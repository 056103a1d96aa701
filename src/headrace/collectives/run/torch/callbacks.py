"""Callbacks of collectives' futures: their order, and the connections of the calls they begin.

A callback may begin calls and wait for them. It runs when its call ends, at a time that differs
from rank to rank, while every rank has to begin the same calls in the same order. So:

- Callbacks of one group that are added in the same context (the main program, or the callbacks of
  one queue) form a queue: they run one at a time, in the order in which they were added. That is
  program order, the same on all ranks, so the calls they begin are in one order on all ranks. One
  whose call ends early waits for those before it.
- The calls that the callbacks of a queue begin use connections of their own (`backend.Calls`), so
  that they need no order relative to the main program's.
- A callback that is added within a callback goes to a queue one level deeper. So a callback can
  wait for what it starts, to any depth. If it waits for a callback that comes later in its own
  queue, its thread runs the queue up to that one first.

A callback runs in the completion thread that completes the future, or, if that is done already, in
another one: never in the thread that adds it, which may have to continue before the callback can.
Meanwhile other completion threads complete futures, so a callback delays only those behind it.
A thread in a callback waits for calls, which end by their deadlines, or for callbacks of deeper
queues or later ones of its own; none of these waits for the first, unless the program has a cycle.

torch runs a callback of a completed future immediately, and makes the futures of chained callbacks
in C++. To queue these, too, `then`, `add_done_callback` and `wait` of torch's futures, and the
function behind `collect_all`, are replaced by functions that differ for the futures of headrace's
collectives, and those chained to them, only.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch

from headrace.collectives.run.torch.untraced import untraced
from headrace.errors import CommunicationError

Future = torch.futures.Future[Any]
RunAction = Callable[[Callable[[], object]], None]

LEVELS = 16
"""Number of nested queues with connections of their own; deeper ones use these in turn, as a chain
of callbacks that begin calls may have any length."""

_Base: Any = torch._C.Future  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
_then, _add_done_callback, _wait = _Base.then, _Base.add_done_callback, _Base.wait
_collect_all: Any = torch._C._collect_all  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


_Entry = tuple[Future, Callable[[], object]]
"""A callback that has not run yet: the future it waits for, and the function that runs it."""


class _Queue:
    """Callbacks that run one at a time, in the order in which they were added."""

    def __init__(
        self, name: str, hand_over: RunAction, may_block: RunAction, level: int = 1, stem: str = ""
    ) -> None:
        self.name = name
        self._hand_over = hand_over
        self._may_block = may_block
        self._level = level
        self._stem = stem or name  # of the names of queues below, from `LEVELS` on
        self._below: weakref.WeakValueDictionary[str, _Queue] = weakref.WeakValueDictionary()
        self._entries: deque[_Entry] = deque()
        self._lock = threading.Lock()
        self._owner: int | None = None  # the thread that runs callbacks now

    def below(self, group: str) -> "_Queue":
        """Return the queue of callbacks that those of this queue add to futures of `group`."""
        below = self._below.get(group)
        if below is None:
            level = self._level + 1
            deep = level > LEVELS
            outer = f"{self._stem}+{level % LEVELS}" if deep else self.name
            stem = self._stem if deep else ""
            below = self._below[group] = _Queue(
                f"{outer}/{group}", self._hand_over, self._may_block, level, stem
            )
        return below

    def within(self, callback: Callable[[Future], Any], source: Future) -> Any:
        """Run a callback in this queue's context."""
        token = context.set(self)
        try:
            return callback(source)
        finally:
            context.reset(token)

    def add(self, entry: _Entry) -> None:
        """Append an entry; it never runs in this thread, which may have to continue first."""
        with self._lock:
            self._entries.append(entry)
        adding = threading.get_ident()

        def advance(_: Future) -> None:
            if threading.get_ident() == adding:  # torch runs this at once: the source is done
                self._hand_over(self._advance)
            else:
                self._advance()

        _add_done_callback(entry[0], advance)
        adding = None

    def _advance(self) -> None:
        """Run the callbacks at the front that are ready, unless another thread does."""
        with self._lock:
            if self._owner is not None:
                return
            self._owner = threading.get_ident()
        while (entry := self._ready()) is not None:
            self._may_block(entry[1])

    def _ready(self) -> _Entry | None:
        """Take the first entry if its source is done; release the queue if not."""
        with self._lock:
            if self._entries and self._entries[0][0].done():
                return self._entries.popleft()
            self._owner = None
            return None

    def run_until(self, future: Future) -> None:
        """Run callbacks until `future`, the result of one, is done, if this thread owns the queue.

        Raises
        ------
        CommunicationError : the callback of `future` is itself waiting, in this thread.
        """
        if self._owner != threading.get_ident():
            return
        while not future.done():
            with self._lock:
                entry = self._entries.popleft() if self._entries else None
            if entry is None:
                raise CommunicationError(
                    "a callback waits for its own result, or for that of a callback which waits "
                    "for it: return the future, or chain to it with then()"
                )
            source, run = entry
            _wait_done(source)
            run()


context: ContextVar[_Queue | None] = ContextVar("callback_context", default=None)
"""Queue whose callback this thread runs; None in the main program."""


def space() -> str:
    """Return the name of the connections for calls of this context; empty: the group's."""
    queue = context.get()
    return "" if queue is None else queue.name


class Callbacks:
    """The callbacks of one group's futures.

    Parameters
    ----------
    group : its name, the same on all ranks.
    hand_over : runs a function on a completion thread.
    may_block : runs a function here that may block, while other threads complete futures.
    headrace_alone : whether all callbacks added in Python are queued: in a group with other
        backends torch makes a new Python object at each access to a future, which is not tracked.
    """

    def __init__(
        self, group: str, hand_over: RunAction, may_block: RunAction, *, headrace_alone: bool = True
    ) -> None:
        self.whole = headrace_alone
        self._group = group
        self._hand_over = hand_over
        self._may_block = may_block
        self.clear()

    def clear(self) -> None:
        """Discard all callbacks that have not run, and the ownership of queues."""
        self._top = _Queue(self._group, self._hand_over, self._may_block)

    def queue(self) -> _Queue:
        """Return the queue of callbacks that are added in this context."""
        outer = context.get()
        return self._top if outer is None else outer.below(self._group)


class _Tracked(NamedTuple):
    """A future of a collective, or chained to one.

    Attributes
    ----------
    queue : of the callback whose result the future is, if any.
    parts : futures that it combines, if any.
    """

    callbacks: Callbacks
    devices: Sequence[torch.device]
    queue: _Queue | None = None
    parts: Sequence[Future] = ()


# Like a WeakKeyDictionary, whose methods in Python would add a microsecond to every call.
_tracked: dict["weakref.ref[Future]", _Tracked] = {}


def _track(future: Future, what: _Tracked) -> None:
    _tracked[weakref.ref(future, _tracked.pop)] = what


_orphans: "weakref.WeakSet[Future]" = weakref.WeakSet()
"""Futures of the parent, in a forked child."""


def _after_fork() -> None:
    for reference, tracked in list(_tracked.items()):
        tracked.callbacks.clear()
        future = reference()
        if future is not None and not future.done():
            _orphans.add(future)


os.register_at_fork(after_in_child=_after_fork)


def _check_owned(future: Future) -> None:
    if _orphans and future in _orphans:
        raise CommunicationError(
            "the future is of a call of the parent process, and only that can wait for it: a "
            "forked child cannot use its groups"
        )


def track(future: Future, callbacks: Callbacks, devices: Sequence[torch.device]) -> Future:
    """Queue the callbacks of a collective's future in `callbacks`; returns the future."""
    _track(future, _Tracked(callbacks, devices))
    return future


def combine(futures: Sequence[Future]) -> Future:
    """Return a future that is done when all are, whose callbacks are not queued."""
    return _collect_all(list(futures))


def _enqueue(
    source: Future, tracked: _Tracked, attach: Callable[..., Any], callback: Callable[[Future], Any]
) -> Any:
    """Append `callback` to its queue; returns the result of torch's `attach`."""
    _check_owned(source)
    queue = tracked.callbacks.queue()
    # Done when the callback is at the front and ready. torch runs it then as usual: with the
    # streams of its devices, and with its error as the result's.
    turn: Future = _Base(list(tracked.devices))
    result = attach(turn, lambda _: queue.within(callback, source))
    if result is not None:
        _track(result, _Tracked(tracked.callbacks, tracked.devices, queue))

    def run() -> None:
        turn.set_result(None)

    def run_behind_source() -> None:
        _then(source, lambda _: turn.set_result(None))  # of the streams, too

    queue.add((source, run_behind_source if tracked.devices else run))
    return result


def _wait_done(future: Future) -> None:
    """Wait until `future` is done, with a value or an error."""
    try:
        future.wait()
    except Exception:  # raised again by a wait for its value
        return


@untraced
def _queued_then(self: Future, callback: Callable[[Future], Any]) -> Future:
    tracked = _tracked.get(weakref.ref(self))
    return _then(self, callback) if tracked is None else _enqueue(self, tracked, _then, callback)


@untraced
def _queued_add_done_callback(self: Future, callback: Callable[[Future], Any]) -> None:
    tracked = _tracked.get(weakref.ref(self))
    if tracked is None:
        _add_done_callback(self, callback)
    else:
        _enqueue(self, tracked, _add_done_callback, callback)


@untraced
def _helping_wait(self: Future) -> Any:
    tracked = _tracked.get(weakref.ref(self))
    if tracked is not None and not self.done():
        _check_owned(self)
        if tracked.queue is not None:
            tracked.queue.run_until(self)
        for part in tracked.parts:
            _wait_done(part)
    return _wait(self)


@untraced
def _tracked_collect_all(futures: list[Future]) -> Future:
    combined: Future = _collect_all(futures)
    parts = [
        tracked for future in futures if (tracked := _tracked.get(weakref.ref(future))) is not None
    ]
    if parts:
        devices = list(dict.fromkeys(device for part in parts for device in part.devices))
        _track(combined, _Tracked(parts[0].callbacks, devices, parts=tuple(futures)))
    return combined


_Base.then = _queued_then
_Base.add_done_callback = _queued_add_done_callback
_Base.wait = _helping_wait
torch._C._collect_all = _tracked_collect_all  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
