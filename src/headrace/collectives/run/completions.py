"""The one thread of a process that learns of finished calls and ends their works."""

import contextlib
import threading
import time
from datetime import timedelta

from headrace import _native
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.work import PendingWork
from headrace.errors import CommunicationError

# The last group to leave wakes the thread, so this only bounds how long a slip could last.
_DRAIN_TIMEOUT_S = 5.0


class _Early:
    """The outcome of a call that ended before its work was entered in the table."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class CompletionThread:
    """Ends the works of all groups of this process as their calls complete, a batch per wake-up.

    The thread runs while a group uses it. Its table also keeps a work, and so its buffers, alive
    when the caller dropped it.
    """

    def __init__(self) -> None:
        self._queue: _native.Completions | None = None
        self._inflight: dict[int, PendingWork | _Early] = {}
        self._lock = threading.Lock()
        self._users = 0
        self._thread: threading.Thread | None = None

    @property
    def queue(self) -> _native.Completions:
        """Where every executor of this process reports."""
        if self._queue is None:
            self._queue = _native.Completions()
        return self._queue

    def forget(self) -> None:
        """Let go of the queue, when the process ends and no group is left."""
        self._queue = None

    def attach(self) -> None:
        """Start the thread for its first user."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._drain, name="headrace-completions", daemon=True
                )
                self._thread.start()

    def detach(self) -> None:
        """End the thread after its last user, whose executor has been closed before."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self.queue.wake()
            thread.join()
            self._drain_once(0.0)  # what the closing executors failed last

    def enter(self, handle: int, work: PendingWork) -> None:
        """Add a work that was submitted with ``notify=True``."""
        found = self._inflight.setdefault(handle, work)
        if isinstance(found, _Early):
            del self._inflight[handle]
            work.end(found.error)

    def drain(self, executor: Executor, limit_s: float) -> None:
        """Wait until `executor` has no calls under way, or for `limit_s`."""
        end = time.monotonic() + limit_s
        for work in list(self._inflight.values()):
            left = end - time.monotonic()
            if isinstance(work, PendingWork) and work.executor is executor and left > 0:
                # the work keeps the error for whoever asks
                with contextlib.suppress(CommunicationError):
                    work.wait(timedelta(seconds=left))

    def _drain(self) -> None:
        me = threading.current_thread()
        while self._thread is me:
            self._drain_once(_DRAIN_TIMEOUT_S)

    def _drain_once(self, timeout_s: float) -> None:
        for handle, text in self.queue.take(timeout_s):
            error = CommunicationError(text) if text else None
            work = self._inflight.setdefault(handle, _Early(error))
            if isinstance(work, PendingWork):
                del self._inflight[handle]
                if error is not None and work.executor is not None:
                    work.executor.log_failure()
                work.end(error)


completion_thread = CompletionThread()
