"""The `Work` objects that the backend returns, and the thread that completes their futures."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from headrace import _native
from headrace.collectives.run.executor import Executor
from headrace.errors import CommunicationError

# A closed executor wakes its thread, so this only bounds how long a missed wake-up could last.
_DRAIN_TIMEOUT_S = 5.0


class CompletedWork(dist.Work):
    """What a call that already finished returns."""

    def __init__(self, tensors: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        """Nothing to order: the tensors are on the CPU."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class PendingWork(dist.Work):
    """A submitted call.

    It ends once, in whichever thread learns of it first: the one in `wait`, or the completion
    thread. Ending runs `after` (copies out of staging buffers), then completes the future.
    """

    def __init__(
        self,
        executor: Executor,
        handle: int,
        tensors: Sequence[torch.Tensor],
        after: Callable[[], None] | None = None,
        keep: Any = None,
        *,
        loose: "dict[int, PendingWork] | None" = None,
    ) -> None:
        super().__init__()
        self._executor = executor
        self._handle = handle
        self._tensors = list(tensors)
        self._after = after
        self._keep = keep  # buffers that the executor borrows
        self._loose = loose  # not reported by the executor: ends when somebody asks
        self._source = -1
        self._lock = threading.Lock()
        self._ended = False
        self._error: BaseException | None = None
        self._event: threading.Event | None = None
        self._promise: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        if loose is not None:
            loose[handle] = self

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block, without the GIL, until the call ended.

        Raises
        ------
        CommunicationError : naming the peer that failed, or the deadline that passed.
        """
        if not self._ended:
            seconds = timeout.total_seconds() if timeout else 0.0
            if seconds > 0 and self._loose is None:
                self._wait_for_end(seconds)
            else:
                self._wait_natively()
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True

    def _wait_natively(self) -> None:
        try:
            source = self._executor.wait(self._handle)
        except CommunicationError as error:
            self.end(error)
        except ValueError:  # the handle is gone: its completion is on the way
            self._wait_for_end(None)
        else:
            self.end(None, source)

    def _wait_for_end(self, seconds: float | None) -> None:
        with self._lock:
            if self._ended:
                return
            if self._event is None:
                self._event = threading.Event()
        if not self._event.wait(seconds):  # the call goes on: only this wait gives up
            raise CommunicationError(
                f"wait() gave up after {seconds:g} s; the operation is still running"
            )

    def end(self, error: BaseException | None, source: int = -1) -> None:
        """Record the outcome; every call but the first does nothing."""
        with self._lock:
            if self._ended:
                return
            self._source = source
            if error is None:
                error = self._finish()
            self._error = error
            self._after = self._keep = None
            self._ended = True
            if self._loose is not None:
                self._loose.pop(self._handle, None)
            promise, event = self._promise, self._event
        if event is not None:
            event.set()
        if promise is not None:
            promise.set_result(None)

    def _finish(self) -> BaseException | None:
        try:
            if self._after is not None:
                self._after()
        except Exception as error:  # e.g. torch refuses to write to an expanded tensor
            return error
        return None

    def is_completed(self) -> bool:
        if not self._ended and self._loose is not None:
            try:
                finished = self._executor.poll(self._handle)
            except ValueError:  # another thread's wait has just taken the handle
                finished = False
            if finished:
                self._wait_natively()
        return self._ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        """Nothing to order: the tensors are on the CPU."""

    def source_rank(self) -> int:
        """Rank (in the group) that a finished receive came from."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return the future of the tensors; it carries the call's error."""
        with self._lock:
            if self._future is None:
                # set_exception() would complete the future with a *value* as far as torch's C++
                # is concerned (DDP's reducer would take it for a gradient): raising in a callback
                # is the way to a real error.
                self._promise = torch.futures.Future()
                self._future = self._promise.then(self._outcome)
                ended, watched = self._ended, self._loose is None
            else:
                ended, watched = False, True
            future, promise = self._future, self._promise
        if ended and promise is not None:
            promise.set_result(None)
        elif not watched:
            threading.Thread(target=self._wait_natively, daemon=True).start()
        return future

    def _outcome(self, _promise: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._tensors


class SeveralWorks(dist.Work):
    """Works that are one to the caller: coalesced calls."""

    def __init__(self, works: Sequence[PendingWork]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all; raises the first error."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all([work.is_completed() for work in self._works])

    def is_success(self) -> bool:
        return all([work.is_success() for work in self._works])

    def exception(self) -> BaseException | None:
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        """Nothing to order: the tensors are on the CPU."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(self._outcome)

    def _outcome(self, done: Any) -> list[torch.Tensor]:
        return [tensor for future in done.value() for tensor in future.value()]


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
                work.end(error)


completion_thread = CompletionThread()
