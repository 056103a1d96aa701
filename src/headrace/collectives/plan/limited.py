"""Enforced time limit of a function, with deferrable Ctrl-C.

Planning is limited by counted work, so that equal arguments give equal plans. This is the safety
net behind it. The function runs in a thread of its own. Past the limit `TimeLimit` is raised in it
(an asynchronous exception of CPython), and again until it ends; it is no `Exception`, so that
handlers of those let it pass. A thread that continues regardless, or in native code that never
returns to the interpreter, is abandoned: its results are ignored from then on.

Ctrl-C, whose handler Python calls in the main thread only, is forwarded to the thread.
"""

import contextlib
import contextvars
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_S = 0.02
_RAISE_EVERY_S = 0.25
_GRACE_S = 3.0
"""Wall clock from the limit until a thread that does not end is abandoned."""

_WALL_SHARE = 0.25
"""Share of wall clock that counts as used: load of the machine must not change plans, but a thread
that only waits uses no processor time at all."""

_current = threading.local()


class TimeLimit(BaseException):
    """Time limit exceeded: raised in the limited code, and by `run_limited`."""


def run_limited(work: Callable[[], T], limit_s: float) -> T:
    """Run `work` in a thread; return its result or raise its exception.

    Parameters
    ----------
    limit_s : processor time of its thread; where that waits, a quarter of the wall clock counts.

    Raises
    ------
    TimeLimit : once the limit has passed and the thread has ended or is abandoned.
    KeyboardInterrupt : if interrupted, unless `work` deferred it; a third one abandons the thread.
    """
    return _Run(work).result(limit_s)


@contextlib.contextmanager
def first_interrupt() -> Generator[Callable[[], bool]]:
    """Turn the first Ctrl-C within the block into a flag; a second one raises KeyboardInterrupt.

    Stages then end with their best result so far. Yields a function that returns whether the flag
    is set. It stays false in threads that neither are the main one nor belong to `run_limited`, and
    where SIGINT is ignored.
    """
    run: _Run[object] | None = getattr(_current, "run", None)
    came = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if run is not None:
        outer, run.deferred = run.deferred, came
        try:
            yield came.is_set
        finally:
            run.deferred = outer
        return
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield came.is_set
        return

    def flag(number: int, frame: FrameType | None) -> None:
        if came.is_set():
            before(number, frame)
        came.set()

    signal.signal(signal.SIGINT, flag)
    try:
        yield came.is_set
    finally:
        signal.signal(signal.SIGINT, before)


class _Run(Generic[T]):
    """A function, the thread that runs it, and its result or exception."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.deferred: threading.Event | None = None
        self._interrupted = False  # by an interrupt that was not deferred
        self._work = work
        self._returned: list[T] = []
        self._error: BaseException | None = None
        self._clock: int | None = None
        self._lock = threading.Lock()
        self._open = True  # whether exceptions may be raised in the thread
        self._ended = threading.Event()
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._body,), name="limited", daemon=True
        )

    def _body(self) -> None:
        _current.run = self
        try:
            try:
                # In the thread, as the id of a thread that has ended must not be used.
                self._clock = time.pthread_getcpuclockid(threading.get_ident())
                self._returned.append(self._work())
            except BaseException as error:
                self._error = error
            self._close()
        except BaseException:  # an asynchronous one, raised while the above ended
            self._close()
        finally:
            self._ended.set()

    def _close(self) -> None:
        """Let no more exceptions in, and take the one that may be pending.

        One that a thread leaves behind, or that is cleared in place of being raised, keeps the
        interpreter's flag of pending exceptions set for ever: then every call of a function under a
        profiler waits without end (CPython 3.11).
        """
        while True:
            try:
                with self._lock:
                    self._open = False
                for _ in range(2):  # the interpreter raises what is pending where a loop goes back
                    pass
                return
            except BaseException:
                continue

    def result(self, limit_s: float) -> T:
        """Wait for the thread, stop it at its limit, and forward interrupts."""
        forwarded, late, raised = 0, float("inf"), 0.0
        with _counted_interrupts() as interrupts:
            self._thread.start()
            began = time.monotonic()
            while not self._ended.is_set():
                # not without end: a signal may wake another thread than this one
                self._ended.wait(_POLL_S)
                now = time.monotonic()
                if self._spent_s(now - began) > limit_s:
                    late = min(late, now)
                if now - late > _GRACE_S:
                    break
                if now >= late and now - raised > _RAISE_EVERY_S:
                    raised = now
                    self._raise(TimeLimit)
                if interrupts() > forwarded:
                    forwarded += 1
                    self._interrupt()
        if interrupts() > forwarded:  # in the last turn, or later
            self._interrupt()
        if self._interrupted and not isinstance(self._error, KeyboardInterrupt):
            raise KeyboardInterrupt from self._error  # the work ended before it came there
        if self._ended.is_set() and self._returned:
            return self._returned[0]
        if self._error is None or late < float("inf"):
            raise TimeLimit from self._error
        raise self._error

    def _spent_s(self, wall_s: float) -> float:
        try:
            processor_s = 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:  # the thread has just ended
            processor_s = 0.0
        return max(processor_s, _WALL_SHARE * wall_s)

    def _interrupt(self) -> None:
        deferred = self.deferred
        if deferred is not None and not deferred.is_set():
            deferred.set()
        else:
            self._interrupted = True
            self._raise(KeyboardInterrupt)

    def _raise(self, kind: type[BaseException]) -> None:
        with self._lock:
            if self._open and self._thread.ident is not None:
                _raise_in(self._thread.ident, kind)


@contextlib.contextmanager
def _counted_interrupts() -> Generator[Callable[[], int]]:
    """Count the first two Ctrl-C within the block, and raise KeyboardInterrupt for others.

    An exception that is raised while the interpreter runs a finalizer is ignored, and that Ctrl-C
    with it. Yields a function that returns their number: none in threads other than the main one.
    """
    before = signal.getsignal(signal.SIGINT)
    came = 0
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: 0
        return

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal came
        try:
            before(number, frame)
        except KeyboardInterrupt:
            came += 1
            if came > 2:
                raise

    signal.signal(signal.SIGINT, count)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise `kind` in a thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
