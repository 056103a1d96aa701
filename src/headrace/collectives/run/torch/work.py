"""The `Work` objects that the backend returns."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import (
    _DisableFuncTorch,  # pyright: ignore[reportPrivateUsage]
    _DisableTorchDispatch,  # pyright: ignore[reportPrivateUsage]
)
from torch._C._distributed_c10d import OpType  # pyright: ignore[reportAttributeAccessIssue]

from headrace.collectives.run.torch.callbacks import Callbacks, combine, track
from headrace.collectives.run.torch.copies import CudaCopies
from headrace.collectives.run.torch.polling import holds_within
from headrace.collectives.run.torch.spans import Span, close_span
from headrace.collectives.run.torch.untraced import untraced
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor


@untraced
class PendingWork(dist.Work):
    """Work of a submitted call.

    It is ended once, by the first thread that gets the outcome: the one in `wait`, or a completion
    thread. Ending runs `after` (copies out of staging buffers), then begins the copies to another
    device if there are any (`land`). The future, which runs callbacks, is completed by a completion
    thread, or when it is made.

    Attributes
    ----------
    handle : the executor's, once the call has begun.
    is_send : whether it is an outgoing message, which a closing group drains.
    op_type : torch's number of the operation.
    sequence : number of a collective among the group's, from 1; None for a message.
    span : of the call in the profiler; closed when it ends, before any wait returns.
    """

    is_send = False
    handle = -1
    op_type = int(OpType.UNKNOWN)
    sequence: int | None = None
    span: Span | None = None

    # Class defaults of fields that most works never set: DDP's hooks make works with cold caches.
    _source = -1
    _ended = False
    _error: BaseException | None = None
    _copies: CudaCopies | None = None
    _pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] | None = None
    _event: threading.Event | None = None
    _promise: torch.futures.Future[None] | None = None
    _completed = False
    _future: torch.futures.Future[list[torch.Tensor]] | None = None

    def __init__(
        self,
        executor: Executor,
        tensors: Sequence[torch.Tensor],
        after: Callable[[], None] | None = None,
        keep: Any = None,
        *,
        callbacks: Callbacks | None = None,
        loose: "dict[int, PendingWork] | None" = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        self.callbacks = callbacks  # None: they run when the call ends, in no order
        self.executor: Executor | None = executor  # until the call ended
        self._tensors = list(tensors)
        self._after = after
        self._keep = keep  # buffers in use by the executor
        self._loose = loose  # not reported by the executor: ended by a wait or a poll
        self._timeout_s = timeout_s  # longest wait for an outcome that another wait() took
        self._lock = threading.Lock()

    def land(
        self,
        copies: CudaCopies,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Copy results to another device when the call ends; called before any wait.

        Parameters
        ----------
        pairs : tensors of that device, and the host memory with their new values.
        tensors : results of the call.
        """
        with self._lock:
            self._copies, self._pairs, self._tensors = copies, pairs, list(tensors)
            if self._ended and self._error is None:
                self._error = self._finish()
            if self._ended:
                self._pairs = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block, without the GIL, until the call ended.

        Tensors of another device are then ready for later work of the current stream, as after any
        call of torch.

        Raises
        ------
        CommunicationError : naming the peer that failed, or the deadline that passed.
        """
        if not self._ended:
            self._check_owned()
            seconds = timeout.total_seconds() if timeout else 0.0
            if seconds <= 0:
                self._wait_natively()
            elif not self._ends_within(seconds):
                raise CommunicationError(  # of this wait only: the call continues
                    f"wait() timed out after {seconds:g} s; the operation is still running"
                )
        if self._error is not None:
            raise self._error.with_traceback(None)
        self.synchronize()
        return True

    def _wait_natively(self) -> None:
        executor = self.executor
        if executor is None:
            return
        try:
            source = executor.wait(self.handle)
        except CommunicationError as error:
            # a new one: the traceback of the old one would keep this work alive
            self.end(CommunicationError(str(error)))
        except ValueError:  # the handle is taken: its completion is pending
            if not self._wait_for_end(None if self._loose is None else self._timeout_s):
                self.end(CommunicationError("the outcome was lost when a wait() was interrupted"))
        else:
            self.end(None, source)

    def _ends_within(self, seconds: float) -> bool:
        if self._loose is None:
            return self._wait_for_end(seconds)
        return holds_within(self.is_completed, seconds)  # no other thread ends it

    def _wait_for_end(self, seconds: float | None) -> bool:
        """Wait for the thread that ends this work; returns whether it did so in time."""
        with self._lock:
            if self._ended:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    def end(self, error: BaseException | None, source: int = -1) -> None:
        """Record the outcome; every call but the first does nothing."""
        with self._lock:
            if self._ended:
                return
            self._source = source
            if error is None:
                error = self._finish()
            self._error = error
            if self.span is not None:
                close_span(self.span)
            self._after = self._keep = self._pairs = self.executor = None
            self._ended = True
            if self._loose is not None:
                self._loose.pop(self.handle, None)
            event = self._event
        if event is not None:
            event.set()

    def _finish(self) -> BaseException | None:
        try:
            if self._after is not None:
                self._after()
            if self._copies is not None and self._pairs is not None:
                with writing(tensor for tensor, _ in self._pairs):
                    self._copies.to_device(self._pairs)
        except Exception as error:  # e.g. torch refuses to write to an expanded tensor
            return error
        return None

    def _check_owned(self) -> None:
        executor = self.executor
        if executor is not None:
            executor.check_owned()

    def is_completed(self) -> bool:
        self._check_owned()
        executor = self.executor
        if executor is not None and self._loose is not None:
            try:
                finished = executor.poll(self.handle)
            except ValueError:  # another thread's wait has just taken the handle
                finished = False
            if finished:
                self._wait_natively()
        if self._ended and self._copies is not None and self._error is None:
            return self._copies.done()
        return self._ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def synchronize(self) -> None:
        """Order later work of the current stream after the copies to its device."""
        if self._copies is not None and self._ended:
            self._copies.wait()

    def source_rank(self) -> int:
        """Return the source rank (in the group) of a finished receive."""
        return self._source

    _source_rank = source_rank

    def _get_op_type(self) -> int:
        return self.op_type

    def number(self) -> int:
        """Return `sequence`, or raise torch's RuntimeError."""
        return super()._get_sequence_number() if self.sequence is None else self.sequence

    _get_sequence_number = number

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return the future of the tensors; it carries the call's error."""
        ending = self.ending()
        with self._lock:
            if self._future is None:
                # set_exception() would complete the future with a *value* for torch's C++ (DDP's
                # reducer would use it as a gradient): only raising in a callback makes it an error.
                self._future = on_devices(ending, self.devices).then(self._outcome)
                if self.callbacks is not None:
                    track(self._future, self.callbacks, self.devices)
            return self._future

    def ending(self) -> torch.futures.Future[None]:
        """Return a future that is done when the call ends, with or without an error."""
        self._check_owned()
        with self._lock:
            if self._promise is not None:
                return self._promise
            promise = self._promise = torch.futures.Future()
            ended = self._ended
        if ended:
            self.complete()
        elif self._loose is not None:
            threading.Thread(target=self._complete_loosely, daemon=True).start()
        return promise

    @property
    def has_future(self) -> bool:
        """Return whether there is a future to complete."""
        return self._promise is not None

    def complete(self) -> None:
        """Complete the future of the ended call; runs callbacks in this thread."""
        with self._lock:
            promise = self._promise
            if promise is None or self._completed:
                return
            self._completed = True
        promise.set_result(None)

    def _complete_loosely(self) -> None:
        self._wait_natively()
        self.complete()

    @property
    def devices(self) -> list[torch.device]:
        """Devices of the tensors, except the CPU."""
        return [] if self._copies is None else self._copies.devices

    def _outcome(self, _ending: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error.with_traceback(None)
        self.synchronize()  # of the stream that torch runs callbacks in
        return self._tensors


def on_devices(
    future: torch.futures.Future[Any], devices: Sequence[torch.device]
) -> torch.futures.Future[Any]:
    """Return a future done when `future` is, whose callbacks may return tensors of `devices`."""
    if not devices:
        return future
    gate: torch.futures.Future[None] = torch.futures.Future(devices=list(devices))
    future.add_done_callback(lambda _: gate.set_result(None))
    return gate


@untraced
class SeveralWorks(dist.Work):
    """Work of several coalesced calls; of none: of calls that have ended, with their results."""

    op_type = int(OpType.UNKNOWN)

    def __init__(
        self, works: Sequence[PendingWork] = (), results: Sequence[torch.Tensor] = ()
    ) -> None:
        super().__init__()
        self._works, self._results = list(works), list(results)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all; raises the first error."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((e for work in self._works if (e := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [*self._results, *(t for work in self._works for t in work.result())]

    def _get_op_type(self) -> int:
        return self.op_type

    def _get_sequence_number(self) -> int:
        return self._works[-1].number() if self._works else super()._get_sequence_number()

    def synchronize(self) -> None:
        """Order later work of the current stream after all copies to its device."""
        for work in self._works:
            work.synchronize()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        futures = [work.get_future() for work in self._works]
        devices = {device for work in self._works for device in work.devices}
        done = combine(futures)
        callbacks = next((w.callbacks for w in self._works if w.callbacks is not None), None)
        future = on_devices(done, list(devices)).then(self._outcome)
        return future if callbacks is None else track(future, callbacks, list(devices))

    def _outcome(self, _done: Any) -> list[torch.Tensor]:
        self.wait()  # they have all ended
        return self.result()


def writing(tensors: Iterable[torch.Tensor]) -> AbstractContextManager[Any]:
    """Return the mode in which tensors may be written: that of inference is of a thread alone."""
    if any(tensor.is_inference() for tensor in tensors):
        return torch.inference_mode()
    return nullcontext()


def guarded(
    tensors: Iterable[torch.Tensor], after: Callable[[], None] | None
) -> Callable[[], None]:
    """Hold the storages of `tensors`; returns a function that checks them and then calls `after`.

    A storage that is held outlives its tensor, which may get another one (`set_`, or an assignment
    to `data`). Resizing a storage cannot be prevented: it moves the bytes and frees the memory that
    the executor still uses. That function raises InputError if a storage was resized; one that is
    back at its old address with its old size is not detected.
    """
    tensors = tuple(tensors)
    storages = ((tensor, tensor.untyped_storage()) for tensor in tensors)
    storages_before = [(tensor, s, s.data_ptr(), s.nbytes()) for tensor, s in storages]

    def check() -> None:
        for tensor, storage, address, size in storages_before:
            if storage.data_ptr() != address or storage.nbytes() != size:
                raise InputError(
                    f"the storage of a {tensor.dtype} tensor of shape {tuple(tensor.shape)} was "
                    f"resized from {size} to {storage.nbytes()} bytes while a call that uses it "
                    "was under way: its result is lost, and freed memory was read or written; "
                    "wait for the work first"
                )
        if after is not None:
            # the tensors are real, also where a dispatch mode or a transform of torch.func waits
            with _DisableTorchDispatch(), _DisableFuncTorch(), writing(tensors):
                after()

    return check
