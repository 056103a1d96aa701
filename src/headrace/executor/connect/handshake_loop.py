"""Event loop for concurrent handshakes on one thread.

Each handshake is a generator that yields the event to wait for; a `Loop` resumes it when its
socket is ready and ends it at its timeout. (Not asyncio: the thread of a notebook already runs an
asyncio loop, and those do not nest.)
"""

import array
import fcntl
import heapq
import itertools
import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from headrace.executor.connect.handshake import Refused
from headrace.executor.connect.sockets import check_connected, start_connecting

Steps = Generator[int, None, None]

HANDSHAKE_S = 2.0
"""Timeout of a peer that is not authenticated; a rank that is running takes milliseconds."""

_ONE_DESCRIPTOR = socket.CMSG_LEN(array.array("i").itemsize)
_EXPIRY_S = 0.1  # resolution of the timeout

# without these, a peer that shrinks the file kills a process that accesses the rest (SIGBUS)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NOT_WRITABLE = fcntl.F_SEAL_WRITE | 0x10  # F_SEAL_FUTURE_WRITE is not in Python's fcntl


class Late(Exception):  # noqa: N818 - like Refused
    """The peer did not send its next message in time."""


class Handshake:
    """A connection during its handshake; owns the socket and the shared memory.

    Attributes
    ----------
    expires : time at which it is aborted, in seconds of `time.monotonic`.
    welcomed : whether the peer's next message, a welcome, ends it: then it is aborted only if that
        was not sent, as the peer is connected once it has sent it. AF_UNIX sockets only.
    memory_fd : descriptor of the shared memory of the connection, or -1.
    tls_key : pre-shared key if the connection continues in TLS, else empty; known after the
        handshake.
    """

    def __init__(self, sock: socket.socket, memory_fd: int = -1, expires: float = math.inf) -> None:
        self.sock = sock
        self.memory_fd = memory_fd
        self.expires = expires
        self.welcomed = False
        self.tls_key = b""

    def connect(self, address: Any) -> Steps:
        """Connect the socket; raises OSError."""
        if not start_connecting(self.sock, address):
            yield selectors.EVENT_WRITE
            check_connected(self.sock)

    def receive(self, size: int) -> Generator[int, None, bytes]:
        """Receive `size` bytes and no more: what follows may be data for the executor."""
        data = b""
        while len(data) < size:
            try:
                part = self.sock.recv(size - len(data))
            except BlockingIOError:
                yield selectors.EVENT_READ
                continue
            if not part:
                raise Refused("closed the connection")
            data += part
        return data

    def send(self, message: bytes) -> None:
        """Send one message of the handshake, which is far smaller than an empty send buffer."""
        if self.sock.send(message, socket.MSG_NOSIGNAL) != len(message):
            raise Refused("does not read its messages")

    def send_memory(self, message: bytes) -> None:
        """Send one message together with the descriptor of the memory."""
        # not socket.send_fds: in Python 3.11 it drops its flags (gh-107898), and NOSIGNAL with them
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.memory_fd]))
        if self.sock.sendmsg([message], [rights], socket.MSG_NOSIGNAL) != len(message):
            raise Refused("does not read its messages")

    def receive_memory(self, size: int) -> Generator[int, None, bytes]:
        """Receive `size` bytes with the descriptor of the peer's memory, which is kept.

        It is not memory as it should be before `check_memory` has returned.
        """
        data = b""
        while len(data) < size:
            try:
                part, ancillary, flags, _ = self.sock.recvmsg(
                    size - len(data), _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                yield selectors.EVENT_READ
                continue
            fds = _descriptors(ancillary)
            if self.memory_fd < 0 and len(fds) == 1 and not flags & socket.MSG_CTRUNC:
                self.memory_fd = fds.pop()
            for fd in fds:
                os.close(fd)
            if fds or flags & socket.MSG_CTRUNC:
                raise Refused("offered too much memory")
            if not part:
                raise Refused("closed the connection")
            data += part
        return data

    def check_memory(self, nbytes: int) -> None:
        """Raise Refused unless the peer sent memory of `nbytes` as `make_memory` makes it."""
        if self.memory_fd < 0:
            raise Refused("offered no memory")
        _check_memory(self.memory_fd, nbytes)

    def refuse_welcome(self) -> None:
        """Make the peer's welcome fail if it has not been sent; then `receive` raises Refused."""
        # Linux takes data for an AF_UNIX socket, or fails to send them, before or after this: no
        # welcome that was sent is lost.
        self.expires = math.inf
        self.sock.shutdown(socket.SHUT_RD)

    def release(self) -> tuple[int, int]:
        """Transfer ownership of the descriptors of socket and memory to the caller."""
        memory_fd, self.memory_fd = self.memory_fd, -1
        return self.sock.detach(), memory_fd

    def close(self) -> None:
        """Close the descriptors that are still owned."""
        self.sock.close()
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1


class _Active(NamedTuple):
    """An active handshake; `ended` is called with its error, or None on success."""

    steps: Steps
    ended: Callable[[Exception | None], None]


class Loop:
    """Runs handshakes and timers on the calling thread, one iteration per `turn`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._active: dict[Handshake, _Active] = {}
        self._waits_for: dict[Handshake, int] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._checked = time.monotonic()

    def begin(
        self,
        handshake: Handshake,
        steps: Steps,
        ended: Callable[[Exception | None], None],
    ) -> None:
        """Start a handshake; `ended` is called when it ends, possibly before this returns."""
        self._active[handshake] = _Active(steps, ended)
        self._resume(handshake)

    def end(self, handshake: Handshake, error: Exception | None) -> None:
        """End a handshake; does nothing if it has ended."""
        active = self._active.pop(handshake, None)
        if active is None:
            return
        if self._waits_for.pop(handshake, None) is not None:
            self._selector.unregister(handshake.sock)
        active.steps.close()
        active.ended(error)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` in `delay_s` seconds."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._count), act))

    def watch(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Call `ready` for every incoming connection of `listener`."""
        self._selector.register(listener, selectors.EVENT_READ, ready)

    def ignore(self, listener: socket.socket) -> None:
        """Stop watching `listener`: incoming connections stay in the kernel's queue."""
        self._selector.unregister(listener)

    def turn(self, longest_s: float) -> None:
        """Wait up to `longest_s` for events and timers, and dispatch them."""
        now = time.monotonic()
        if self._timers:
            longest_s = min(longest_s, self._timers[0][0] - now)
        if self._active:
            longest_s = min(longest_s, _EXPIRY_S)
        for key, _ in self._selector.select(max(longest_s, 0)):
            key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        if now - self._checked >= _EXPIRY_S:
            self._checked = now
            for late in [handshake for handshake in self._active if handshake.expires <= now]:
                if late.welcomed:
                    late.refuse_welcome()
                else:
                    self.end(late, Late("did not answer in time"))

    def close(self) -> None:
        """Close every handshake that has not ended."""
        while self._active:
            handshake, active = self._active.popitem()
            active.steps.close()
            handshake.close()
        self._selector.close()

    def _resume(self, handshake: Handshake) -> None:
        if handshake not in self._active:  # ended by another handshake in the same iteration
            return
        try:
            event = next(self._active[handshake].steps)
        except StopIteration:
            self.end(handshake, None)
        except (Refused, OSError) as error:
            self.end(handshake, error)
        else:
            self._wait(handshake, event)

    def _wait(self, handshake: Handshake, event: int) -> None:
        before = self._waits_for.get(handshake)
        if before is None:
            self._selector.register(handshake.sock, event, partial(self._resume, handshake))
        elif before != event:
            self._selector.modify(handshake.sock, event, partial(self._resume, handshake))
        self._waits_for[handshake] = event


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def make_memory(nbytes: int) -> int:
    """Return the descriptor of `nbytes` of zeroed memory that two ranks of one host share.

    It is an anonymous file of sealed size; pages are allocated lazily.

    Raises
    ------
    OSError : there is no memory, no descriptor, or the call is forbidden.
    """
    fd = os.memfd_create("headrace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_memory(fd: int, nbytes: int) -> None:
    """Check that a peer's descriptor is memory as `make_memory` makes it.

    Raises
    ------
    Refused : it is not memory, not sealed, or of another size.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise Refused("offered a descriptor that is no memory") from None
    if seals & _SEALS != _SEALS or seals & _NOT_WRITABLE:
        raise Refused(f"offered memory with the wrong seals ({seals:#x})")
    found = os.fstat(fd).st_size
    if found != nbytes:
        raise Refused(f"offered {found} bytes of memory, not {nbytes}")
