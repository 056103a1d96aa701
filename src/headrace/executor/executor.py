"""Python interface of the native executor.

An `Executor` belongs to one rank of one group. It listens on construction, so that its address
can be exchanged; `connect` connects every pair of ranks. It runs proven programs only.
"""

import logging
import mmap
import os
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from headrace import _native
from headrace._native import DataType, Operator, Priority
from headrace.errors import CommunicationError, InputError
from headrace.executor import programs
from headrace.executor.connect.listener import Listener
from headrace.executor.programs import ExecutableProgram, LoadedProgram, ProgramProof
from headrace.executor.statistics import StatisticsReader
from headrace.facades import offered_by, public_value

DEFAULT_DEADLINE_S = 60.0
"""Seconds that a call may take where its caller states no deadline."""

log = logging.getLogger(__name__)

ELEMENTS = (
    *_native.DataType.__members__,
    *("complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)
"""Element types of messages, indexed by their number less one."""

TAGS = 1 << 31
"""Bound on tags of the user's messages; those of messages within collectives are not below it."""

# A connection has two rings and a page for their state. A ring should hold the bytes that a rank
# sends to one other in the first round of a medium collective, and all rings together should fit a
# processor's cache.
_RING_BYTES = 512 << 10
_CONNECTION_BYTES = mmap.PAGESIZE + 2 * _RING_BYTES
_CONTROL_BYTES = 3 * mmap.PAGESIZE  # as in native/transport/shm/connection.hpp


Segment = tuple[int, int, int, int]
"""(address, elements, blocks, chunks): ``blocks`` blocks of ``elements`` elements each, contiguous.

Every block is divided into `chunks` slots: slot k of a block covers its elements
[k * elements // chunks, (k + 1) * elements // chunks).
"""


@public_value("headrace.executor", eq=False)
class Recorded:
    """One rank's times of one call, in ns of its own CLOCK_MONOTONIC (`time.monotonic_ns`).

    Attributes
    ----------
    called_ns, ended_ns : times of the call, and of its return.
    began_ns, passed_ns, bytes : int64, one for each of the rank's steps, in the program's order.
        A step begins with the attempt that moves its first byte (a send then passes it to the
        kernel, or copies it to the shared ring), and is passed when its lane continues. One that
        moves no data begins when it is passed.
    """

    called_ns: int
    ended_ns: int
    began_ns: np.ndarray
    passed_ns: np.ndarray
    bytes: np.ndarray

    @classmethod
    def of(cls, called_ns: int, ended_ns: int, steps: np.ndarray) -> "Recorded":
        """Make a record from rows (began_ns, passed_ns, bytes)."""
        began, passed, moved = steps.T
        return cls(
            called_ns=called_ns, ended_ns=ended_ns, began_ns=began, passed_ns=passed, bytes=moved
        )


@offered_by("headrace.executor")
class Executor:
    """Runs programs between the ranks of one group.

    Parameters
    ----------
    rank, ranks : this member and the size of the group.
    host : numeric address to listen on and to connect from.
    secret : known to the members only; unauthenticated peers are rejected.
    channels : data connections per pair of ranks and priority; a program may use fewer.
    threads : limit of threads that move bytes concurrently, each those of another connection.
    shared_memory : whether ranks that listen on the same address share memory.
    tls : whether connections by TCP are encrypted, by TLS 1.3; the same on all ranks.
    completions : queue for tasks submitted with `notify`; made if absent.

    Attributes
    ----------
    epoch : number of the plan in force, part of every message of a collective: ranks that run one
        by different plans get an error, not wrong data.

    forked : whether this process is a child of the one that made it: then calls are errors.

    Raises
    ------
    CommunicationError : if `host` cannot be listened on.
    InputError : if `tls` is set and the build has none.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        *,
        host: str = "127.0.0.1",
        secret: str,
        channels: int = 1,
        threads: int = 1,
        shared_memory: bool = True,
        tls: bool = False,
        completions: _native.Completions | None = None,
    ) -> None:
        if tls and not _native.has_tls():
            raise InputError(
                "TLS is on, but headrace was built without it: install OpenSSL 3 with its headers "
                "(Debian: libssl-dev) and build headrace again, or set HEADRACE_TLS=off"
            )
        self.rank = rank
        self.ranks = ranks
        self.channels = channels
        self.epoch = 0
        self.forked = False
        self._failure_logged = False
        self._warned_of_types = False
        self._retained: set[object] = set()
        _made.add(self)
        data_channels = _native.data_channels(channels)
        self._listener = Listener(
            rank,
            ranks,
            host,
            secret.encode(),
            data_channels,
            shared_memory=shared_memory,
            memory_bytes=_CONTROL_BYTES + (data_channels + 1) * _CONNECTION_BYTES,
            tls=tls,
        )
        with _translated():
            self._native = _native.Executor(
                rank=rank,
                ranks=ranks,
                channels=channels,
                threads=threads,
                completions=completions or _native.Completions(),
                fail_at_call=0,
            )

    @property
    def address(self) -> str:
        """Listening address until it is connected: "host:port"."""
        return self._listener.address

    def connect(
        self,
        addresses: Sequence[str],
        deadline_s: float = 30.0,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Connect to every other rank; `addresses` are by rank.

        `check` is called at times, and raises if another rank will not connect.

        Raises
        ------
        CommunicationError : naming the ranks that could not be reached in time.
        """
        deadline = time.monotonic() + deadline_s
        links = self._listener.connect(addresses, deadline_s, check)
        with _translated():
            self._native.connect(links, max(0.0, deadline - time.monotonic()))

    def load(self, program: ExecutableProgram, proof: ProgramProof) -> LoadedProgram:
        """Load a proven program.

        Raises
        ------
        UnverifiedPlanError : if `proof` is by another verifier or of another program.
        """
        return programs.load_program(program, proof, self.rank)

    def prepare(
        self,
        loaded: LoadedProgram,
        segments: Sequence[Segment],
        dtype: DataType = DataType.uint8,
        operator: Operator = Operator.sum,
        average: bool = False,
        *,
        priority: Priority = Priority.normal,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> _native.Call:
        """Return a collective on buffers, by the plan in force; it can be run any number of times.

        Parameters
        ----------
        segments : in slot order.
        dtype : of the elements; data that is only moved can be of uint8, whatever its type.
        average : whether results are divided by the number of ranks.
        priority : the same on every rank. Each has connections of its own, so that none waits for
            those of another; background bytes move when no others can.

        Raises
        ------
        InputError : if results of the program cannot be averaged.
        """
        if average and loaded.collective == programs.CUSTOM:
            raise InputError(
                "a custom collective cannot be averaged, as its results may combine any number of "
                "ranks: use 'sum' and divide"
            )
        return _native.Call(
            loaded.native,
            segments,
            dtype,
            operator,
            average,
            self.epoch,
            priority,
            deadline_s,
        )

    def run(self, call: _native.Call) -> None:
        """Run a collective to its end on the calling thread (the lowest latency).

        Raises
        ------
        CommunicationError : naming the rank and peer, if a peer dies or the deadline passes.
        InputError : if the segments do not fit the program, or the operator the type.
        """
        try:
            self._native.run(call)
        except (_native.CommunicationError, ValueError) as error:
            raise self._failure(error) from None

    def trace(self, call: _native.Call) -> Recorded:
        """Run a collective as `run` does, and return when each of this rank's steps moved.

        `headrace.collectives.trace.gathering.gather` brings the ranks' records together.

        Raises
        ------
        CommunicationError, InputError : as `run`.
        """
        try:
            return Recorded.of(*self._native.trace(call))
        except (_native.CommunicationError, ValueError) as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> CommunicationError | InputError:
        """Return headrace's exception for one of a call of the native executor."""
        if isinstance(error, ValueError):
            return InputError(str(error))
        self.log_failure()
        return CommunicationError(str(error))

    def submit(self, call: _native.Call, *, notify: bool = False) -> int:
        """Start a collective and return its handle; the buffers are in use until it is done.

        Every rank must submit the same collectives in the same order and with the same priorities.
        A handle is either waited for, or, with `notify`, reported by `completions`.

        Raises
        ------
        CommunicationError, InputError : as `run`.
        """
        with _translated():
            return self._native.submit(call, notify)

    def wait(self, handle: int) -> int:
        """Wait for a task. Returns the source of a receive, else -1.

        Raises
        ------
        CommunicationError : if the task failed.
        """
        with _translated():
            found = self._native.wait(handle)
        if found >> 32 > 0:
            self._warn_of_types(found)
            found &= 0xFFFFFFFF
        return found

    def _warn_of_types(self, found: int) -> None:
        if self._warned_of_types:
            return
        self._warned_of_types = True
        sent, received = (_element_name(found >> shift & 255) for shift in (32, 40))
        log.warning(
            "rank %d received a message of %s from rank %d into memory of %s: the bytes were taken "
            "as they are; use one dtype on both sides (later messages are not checked)",
            self.rank,
            sent,
            found & 0xFFFFFFFF,
            received,
        )

    def poll(self, handle: int) -> bool:
        """Return whether the task is finished (it still has to be waited for)."""
        with _translated():
            return self._native.poll(handle)

    def cancel(self, handle: int) -> None:
        """Withdraw a receive whose message has not begun to arrive; else end the group.

        Does nothing to a task that has ended.
        """
        with _translated():
            self._native.cancel(handle)

    def abort(self, reason: str) -> None:
        """End the group for all ranks: tasks under way fail everywhere with the reason.

        For changes of membership: no rank waits for one that has left.
        """
        self._native.abort(reason)

    def send(
        self,
        address: int,
        nbytes: int,
        dst: int,
        tag: int,
        *,
        priority: Priority = Priority.normal,
        deadline_s: float = DEFAULT_DEADLINE_S,
        element: int = 0,
    ) -> int:
        """Start sending `nbytes` to rank `dst`; returns a handle.

        Parameters
        ----------
        tag : 0 to 2^32 - 1. Messages of one tag arrive in the order in which they were sent.
        priority : background messages have a connection of their own, on which bytes move when no
            others can, so that other messages overtake them, those of the same tag, too.
        element : 1 + the index in `ELEMENTS` of the type sent, or 0; a receive of another type logs
            a warning.
        """
        with _translated():
            return self._native.send(
                address, nbytes, dst, tag, deadline_s, False, element, priority
            )

    def recv(
        self,
        address: int,
        nbytes: int,
        src: int,
        tag: int,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        element: int = 0,
    ) -> int:
        """Start receiving exactly `nbytes` from rank `src` (-1: any); returns a handle."""
        with _translated():
            return self._native.receive(address, nbytes, src, tag, deadline_s, False, element)

    def retain(self, owner: object) -> None:
        """Keep an owner of buffers that are in use, until `release` or `close`."""
        self._retained.add(owner)

    def release(self, owner: object) -> None:
        """Let go of an owner of buffers whose tasks have ended."""
        self._retained.discard(owner)

    def log_failure(self) -> None:
        """Log the tasks that were under way at the first error; once."""
        if self._failure_logged:
            return
        self._failure_logged = True
        if report := self._native.report():
            log.error("rank %d of %d, when it failed:\n%s", self.rank, self.ranks, report.rstrip())

    def counters(self) -> dict[str, int | list[int]]:
        """Return finished collectives and messages; bytes sent and received per connected peer.

        "unexpected_bytes" arrived before their receives were posted, and were copied once more.
        """
        return self._native.counters()

    def submitted(self) -> int:
        """Return the number of collectives begun: the sequence number of the next."""
        return self._native.submitted()

    def finished(self) -> int:
        """Return the number of collectives that have ended, with or without an error."""
        return self._native.finished()

    def statistics_reader(self) -> StatisticsReader:
        """Return a reader of connection statistics; cheap, from any thread."""
        return StatisticsReader(self._native.statistics)

    def set_pacing(self, peer: int, bytes_per_s: int) -> None:
        """Limit the rate at which this rank sends to `peer`; 0 lifts the limit."""
        self._native.set_pacing(peer, bytes_per_s)

    def abandon(self) -> None:
        """Drop every connection without notice to peers; only for a forked child of the owner.

        Every later use but `close` raises CommunicationError.
        """
        if hasattr(self, "_native") and not self.forked:
            self._listener.close()
            self._native.abandon()
            self._abandoned = self._native  # never deleted: the parent's threads count as users
            self._native = cast(_native.Executor, Gone(lambda name: _forked_error(name, self.rank)))
            self.forked = True

    def check_owned(self) -> None:
        """Raise CommunicationError in a forked child of the owner."""
        if self.forked:
            raise _forked_error("the call", self.rank)

    def close(self) -> None:
        """Notify the peers and close every connection; unfinished tasks fail."""
        if self.forked:
            return
        self._listener.close()
        self._native.close()
        self._retained.clear()


def _element_name(number: int) -> str:
    return ELEMENTS[number - 1] if number <= len(ELEMENTS) else f"type {number}"


_made: "weakref.WeakSet[Executor]" = weakref.WeakSet()


def _abandon_all() -> None:
    """Drop the parent's connections in a forked child (a data loader's worker)."""
    for executor in list(_made):
        executor.abandon()


os.register_at_fork(after_in_child=_abandon_all)


class Gone:
    """Placeholder for an executor that can no longer be used: every use is an error.

    Parameters
    ----------
    error : makes it, from the name of what is used.
    """

    def __init__(self, error: Callable[[str], CommunicationError]) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error(name)


def _forked_error(what: str, rank: int) -> CommunicationError:
    return CommunicationError(
        f"{what}: the group is that of rank {rank}, of which this process is a forked child: only "
        "the parent can make calls and wait for them. Start processes that communicate with the "
        "start method 'spawn', and give them a group of their own"
    )


class _translated:  # noqa: N801 - reads as a phrase: `with _translated():`
    """Context that turns native exceptions into headrace's."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _native.CommunicationError):
            raise CommunicationError(str(error)) from None
        if isinstance(error, ValueError):
            raise InputError(str(error)) from None
