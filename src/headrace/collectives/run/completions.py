"""The threads of a process that learn of finished calls, end their works, complete futures."""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from headrace import _native
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.work import PendingWork
from headrace.errors import CommunicationError

# The last group to leave wakes the threads, so this only bounds how long a slip could last, and how
# long it waits for threads that are in callbacks.
_DRAIN_TIMEOUT_S = 5.0


class _Early:
    """The outcome of a call that ended before its work was entered in the table."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class CompletionThreads:
    """Ends the works of all groups of this process as their calls complete.

    Callbacks of futures may wait for other futures. So before a thread runs one, it sees to it that
    another one waits for completions, which a callback then may wait for, to any depth: there are
    as many threads as callbacks that block, and one or two more. Without callbacks there is one.

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
        self._kept: set[threading.Thread] = set()  # in what may block

    @property
    def queue(self) -> _native.Completions:
        """Where every executor of this process reports."""
        if self._queue is None:
            self._queue = _native.Completions()
        return self._queue

    def forget(self) -> None:
        """Let go of the queue, when the process ends and no group is left."""
        self._queue = None

    def after_fork(self) -> None:
        """Begin anew in a forked child, where the threads and the calls are not."""
        parents = self._queue
        self.__init__()
        self._parents = parents  # the parent's threads count as waiting: to delete it would wait

    def attach(self) -> None:
        """Start a thread for its first user."""
        with self._lock:
            self._users += 1
            if not self._threads:
                self._start()

    def detach(self) -> None:
        """End the threads after their last user, whose executor has been closed before.

        Those that are in a callback for long (this one may be) end after it.
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
        while self._finish_next(0.0):  # what the closing executors failed last
            pass

    def enter(self, handle: int, work: PendingWork) -> None:
        """Add a work that was submitted with ``notify=True``."""
        found = self._inflight.setdefault(handle, work)
        if isinstance(found, _Early):
            del self._inflight[handle]
            work.end(found.error)
            work.complete()

    def run(self, action: Callable[[], object]) -> None:
        """Have one of the threads run `action`, which may block; without threads, run it here."""
        if not self._threads:
            action()
            return
        self._to_run.append(action)
        self.queue.wake()

    def may_block(self, action: Callable[[], object]) -> None:
        """Do here what may block; if this is one of the threads, another one does its work."""
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
                    # one to wait, one to run callbacks: more were for a nesting
                    if len(self._threads) - len(self._kept) > 2:
                        self._threads.discard(me)

    def drain(self, executor: Executor, limit_s: float) -> None:
        """Wait until `executor` has no calls under way, or for `limit_s`."""
        end = time.monotonic() + limit_s
        for work in list(self._inflight.values()):
            left = end - time.monotonic()
            if isinstance(work, PendingWork) and work.executor is executor and left > 0:
                # the work keeps the error
                with contextlib.suppress(CommunicationError):
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
        self.queue.wake()  # the next one that is to end

    def _finish_next(self, timeout_s: float) -> bool:
        """End a work whose call completed; returns False if none has within `timeout_s`."""
        if self._to_run:
            with contextlib.suppress(IndexError):  # another thread was faster
                self._to_run.popleft()()
            return True
        try:
            handle, text = self._taken.popleft()
        except IndexError:
            found = self.queue.take(timeout_s)
            self._taken.extend(found)
            return bool(found or self._to_run)
        error = CommunicationError(text) if text else None
        work = self._inflight.setdefault(handle, _Early(error))
        if isinstance(work, PendingWork):
            del self._inflight[handle]
            if error is not None and work.executor is not None:
                work.executor.log_failure()
            work.end(error)
            if work.callbacks is not None and work.callbacks.whole:
                work.complete()  # callbacks that may block say so
            elif work.has_future:
                self.may_block(work.complete)
        return True


completion_threads = CompletionThreads()
os.register_at_fork(after_in_child=completion_threads.after_fork)
