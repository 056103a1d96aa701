"""Messages of arrays whose lengths both sides know, and the exchange of one with every rank."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headrace._native import Priority
from headrace.errors import CommunicationError, InputError
from headrace.executor.executor import DEFAULT_DEADLINE_S, ELEMENTS, TAGS, Executor
from headrace.executor.overlap import overlaps
from headrace.facades import offered_by

_ELEMENT_NUMBERS = {name: number for number, name in enumerate(ELEMENTS, 1)}


@offered_by("headrace.executor")
class Exchange:
    """Messages under way, by `send`, `receive` or `all_to_all`; to be waited for by one thread.

    Its arrays are in use until `wait` returns, or `done` is true. The executor retains them until
    `wait`, also if nothing else refers to them or to this.
    """

    def __init__(
        self, executor: Executor, arrays: Sequence[np.ndarray], handles: Iterable[int]
    ) -> None:
        """Begin the messages, as `handles` is read: they are retained before, for an interrupt."""
        self._executor = executor
        self._arrays = list(arrays)
        self._handles: list[int] = []
        self._error: CommunicationError | None = None
        executor.retain(self)
        try:
            self._handles.extend(handles)
        except (CommunicationError, InputError):  # none has begun, or all have ended
            executor.release(self)
            raise

    def wait(self) -> None:
        """Wait for the end of all messages.

        Raises
        ------
        CommunicationError : a message failed; the first of several errors, when all have ended. The
            next call raises it again.
        """
        while self._handles:
            try:
                self._executor.wait(self._handles[-1])
            except CommunicationError as error:
                self._error = self._error or error
            except InputError:  # the handle is gone: an interrupt followed its end
                lost = CommunicationError("the outcome was lost when a wait was interrupted")
                self._error = self._error or lost
            self._handles.pop()
        self._arrays.clear()
        self._executor.release(self)
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Return whether all messages have ended, or failed; `wait` then returns at once."""
        return all(map(self._ended, self._handles))

    def cancel(self) -> None:
        """Withdraw receives whose messages have not begun to arrive: `wait` raises that they were.

        If another message is under way, the group ends on all ranks.
        """
        for handle in self._handles:
            if not self._ended(handle):
                self._executor.cancel(handle)

    def _ended(self, handle: int) -> bool:
        try:
            return self._executor.poll(handle)
        except InputError:  # as in `wait`
            return True


def send(
    executor: Executor,
    array: np.ndarray,
    dst: int,
    tag: int,
    *,
    priority: Priority = Priority.normal,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> Exchange:
    """Begin to send an array to rank `dst`, which receives one of as many bytes.

    Parameters
    ----------
    array : contiguous in C order, of any shape and length; not to be changed before the end.
    tag : 0 to 2^31 - 1. A receive takes the messages of its tag and source in the order in which
        they were sent; messages of background priority have an order of their own.
    priority : background bytes move when no others can.
    deadline_s : seconds from now. If they pass first, the group ends on all ranks.

    Raises
    ------
    InputError : the array is not contiguous; a rank or tag is out of range.
    CommunicationError : the group has ended; the error has the cause.
    """
    _check((array,), tag, written=False)

    def handles() -> Iterator[int]:
        yield _send(executor, array, dst, tag, priority, deadline_s)

    return Exchange(executor, [array], handles())


def receive(
    executor: Executor,
    array: np.ndarray,
    src: int,
    tag: int,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> Exchange:
    """Begin to receive a message of exactly the array's bytes from rank `src`.

    A message of another length is an error of this receive alone.

    Parameters
    ----------
    array : contiguous in C order, and writable; overwritten.
    src : a rank, or -1 for any.
    tag, deadline_s : as in `send`.

    Raises
    ------
    InputError, CommunicationError : as `send`.
    """
    _check((array,), tag, written=True)

    def handles() -> Iterator[int]:
        yield _receive(executor, array, src, tag, deadline_s)

    return Exchange(executor, [array], handles())


def all_to_all(
    executor: Executor,
    sent: Sequence[np.ndarray],
    received: Sequence[np.ndarray],
    tag: int,
    *,
    priority: Priority = Priority.normal,
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> Exchange:
    """Begin to send ``sent[r]`` to every rank r, and to receive ``received[r]`` from it.

    Every rank calls it with the same tag. ``sent[d]`` at rank s has as many bytes as
    ``received[s]`` at rank d, which may be none; a rank's own part is copied at once. All messages
    are under way together: each rank begins with the ranks after it, so that not all of them send
    to one first.

    Parameters
    ----------
    sent, received : one array for each rank, as in `send` and `receive`. They may share memory: of
        arrays to others that overlap received ones, copies are sent.
    tag, priority, deadline_s : as in `send`.

    Raises
    ------
    InputError : as `send`; or there is not one array for each rank, or a rank's own parts differ in
        bytes.
    CommunicationError : as `send`.
    """
    rank, ranks = executor.rank, executor.ranks
    for name, arrays in (("sent", sent), ("received", received)):
        if len(arrays) != ranks:
            raise InputError(f"{name} has {len(arrays)} arrays, needs one for each rank of {ranks}")
    _check(sent, tag, written=False)
    _check(received, tag, written=True)
    if sent[rank].nbytes != received[rank].nbytes:
        raise InputError(
            f"sent[{rank}] has {sent[rank].nbytes} bytes and received[{rank}] "
            f"{received[rank].nbytes} at rank {rank} itself: needs the same number"
        )
    after = [(rank + shift) % ranks for shift in range(1, ranks)]
    # all that may be overwritten is copied before the first message can arrive
    outgoing = _apart([sent[peer] for peer in after], received)
    received[rank].reshape(-1).view(np.uint8)[:] = sent[rank].reshape(-1).view(np.uint8)

    def handles() -> Iterator[int]:
        for peer in reversed(after):
            yield _receive(executor, received[peer], peer, tag, deadline_s)
        for peer, array in zip(after, outgoing, strict=True):
            yield _send(executor, array, peer, tag, priority, deadline_s)

    return Exchange(executor, [*outgoing, *received], handles())


def _apart(sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return `sent`, but copies of the arrays that share memory with one of `received`."""
    overlapping = overlaps(map(_range, sent), map(_range, received))
    return [
        array.copy() if overlaps_received else array
        for array, overlaps_received in zip(sent, overlapping, strict=True)
    ]


def _range(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _send(
    executor: Executor,
    array: np.ndarray,
    dst: int,
    tag: int,
    priority: Priority,
    deadline_s: float,
) -> int:
    return executor.send(
        array.ctypes.data,
        array.nbytes,
        dst,
        tag,
        priority=priority,
        deadline_s=deadline_s,
        element=_ELEMENT_NUMBERS.get(array.dtype.name, 0),
    )


def _receive(executor: Executor, array: np.ndarray, src: int, tag: int, deadline_s: float) -> int:
    return executor.recv(
        array.ctypes.data,
        array.nbytes,
        src,
        tag,
        deadline_s=deadline_s,
        element=_ELEMENT_NUMBERS.get(array.dtype.name, 0),
    )


def _check(arrays: Sequence[np.ndarray], tag: int, *, written: bool) -> None:
    if not 0 <= tag < TAGS:
        raise InputError(f"tag is {tag}, needs 0 to {TAGS - 1}")
    for array in arrays:
        if array.dtype.hasobject:
            raise InputError(f"an array of {array.dtype} holds references: its bytes mean nothing")
        if not array.flags.c_contiguous:
            raise InputError(
                f"an array of shape {array.shape} is not contiguous: use numpy.ascontiguousarray"
            )
        if written and not array.flags.writeable:
            raise InputError(f"an array of shape {array.shape} to receive into is read-only")
