"""Completion threads of a process: take finished calls, end their works, complete futures."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from headrace import _native
from headrace.collectives.run.torch.work import PendingWork
from headrace.errors import CommunicationError
from headrace.executor import Executor

# The last group to detach wakes the threads, so this only bounds a missed wake-up, and the wait for
# threads that are in callbacks.
_DRAIN_TIMEOUT_S = 5.0


class _Early:
    """Outcome of a call that ended before its work was entered in the table."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class CompletionThreads:
    """Ends the works of all groups of this process as their calls complete.

    Callbacks of futures may wait for other futures, to any depth. So before a thread runs one, it
    makes sure that another thread waits for completions: there are as many threads as callbacks
    that block, and one or two more. Without callbacks there is one.

    The threads run while a group uses them. Their table also keeps a work, and so its buffers,
    alive when the caller dropped it.
    """

    def __init__(self) -> None:
        self._queue: _native.Completions | None = None
        self._taken: deque[tuple[int, str]] = deque()
        self._to_run: deque[Callable[[], object]] = deque()
        self._inflight: dict[int, PendingWork | _Early] = {}
        self._lock = threading.Lock()
        self._users = 0
        self._threads: set[threading.Thread] = set()
        self._kept: set[threading.Thread] = set()  # in functions that may block

    @property
    def queue(self) -> _native.Completions:
        """Completion queue of every executor of this process."""
        if self._queue is None:
            self._queue = _native.Completions()
        return self._queue

    def forget(self) -> None:
        """Release the queue, when the process ends and no group is left."""
        self._queue = None

    def after_fork(self) -> None:
        """Reset in a forked child, which has neither the threads nor the calls."""
        parents = self._queue
        self.__init__()
        self._parents = parents  # the parent's threads count as waiting: its deletion would block

    def attach(self) -> None:
        """Start a thread for its first user."""
        with self._lock:
            self._users += 1
            if not self._threads:
                self._start()

    def detach(self) -> None:
        """End the threads after their last user, whose executor has been closed before.

        Threads in a long callback (this one may be) end after it.
        """
        with self._lock:
            self._users = max(0, self._users - 1)  # 0 in a forked child
            if self._users:
                return
            threads, self._threads = self._threads, set()
            self._kept.clear()
        end = time.monotonic() + _DRAIN_TIMEOUT_S
        for thread in threads - {threading.current_thread()}:
            self.queue.wake()
            thread.join(max(0.0, end - time.monotonic()))
        while self._finish_next(0.0):  # calls that failed when the executors were closed
            pass

    def enter(self, handle: int, work: PendingWork) -> None:
        """Add a work that was submitted with ``notify=True``."""
        early = self._inflight.setdefault(handle, work)
        if isinstance(early, _Early):
            del self._inflight[handle]
            work.end(early.error)
            work.complete()

    def run(self, action: Callable[[], object]) -> None:
        """Run `action` on one of the threads, or here without threads; see `may_block`."""
        if not self._threads:
            action()
            return
        self._to_run.append(action)
        self.queue.wake()

    def may_block(self, action: Callable[[], object]) -> None:
        """Run `action`, which may block, here; if this is one of the threads, replace it."""
        me = threading.current_thread()
        with self._lock:
            replaced = me in self._threads and me not in self._kept
            if replaced:
                self._kept.add(me)
                if len(self._kept) == len(self._threads):
                    self._start()
                elif self._taken or self._to_run:
                    self.queue.wake()
        try:
            action()
        finally:
            if replaced:
                with self._lock:
                    self._kept.discard(me)
                    # one waits, one runs callbacks: more were needed for nested ones
                    if len(self._threads) - len(self._kept) > 2:
                        self._threads.discard(me)

    def drain(self, executor: Executor, limit_s: float) -> None:
        """Wait until `executor` has no calls under way, for `limit_s` at most."""
        end = time.monotonic() + limit_s
        for work in list(self._inflight.values()):
            left = end - time.monotonic()
            if isinstance(work, PendingWork) and work.executor is executor and left > 0:
                # kept by the work: of the call, or of the copies of its results
                with contextlib.suppress(Exception):
                    work.wait(timedelta(seconds=left))

    def _start(self) -> None:
        """Start a thread that waits for completions; needs the lock."""
        thread = threading.Thread(target=self._run, name="headrace-completions", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while me in self._threads:
            self._finish_next(_DRAIN_TIMEOUT_S)
        self.queue.wake()  # the next thread to end

    def _finish_next(self, timeout_s: float) -> bool:
        """End a work whose call completed; returns False if none has within `timeout_s`."""
        if self._to_run:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._to_run.popleft()()
            return True
        try:
            handle, text = self._taken.popleft()
        except IndexError:
            completions = self.queue.take(timeout_s)
            self._taken.extend(completions)
            return bool(completions or self._to_run)
        error = CommunicationError(text) if text else None
        work = self._inflight.setdefault(handle, _Early(error))
        if isinstance(work, PendingWork):
            del self._inflight[handle]
            if error is not None and work.executor is not None:
                work.executor.log_failure()
            work.end(error)
            if work.callbacks is not None and work.callbacks.whole:
                work.complete()  # its callbacks call `may_block` themselves
            elif work.has_future:
                self.may_block(work.complete)
        return True


completion_threads = CompletionThreads()
os.register_at_fork(after_in_child=completion_threads.after_fork)
