"""Handshakes that go on side by side on one thread.

Each is a generator that yields the event it has to wait for; a `Loop` resumes it when its socket
is ready, and ends it when its time is up. (Not asyncio: a notebook's thread runs a loop of that
already, in which no other can be run.)
"""

import array
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

from headrace.collectives.run.connect.handshake import Refused
from headrace.collectives.run.connect.shared_memory import check_memory
from headrace.collectives.run.connect.sockets import check_connected, start_connecting

Steps = Generator[int, None, None]

HANDSHAKE_S = 2.0
"""How long a stranger may take; a rank takes milliseconds, once it is there."""

_EXPIRY_S = 0.1  # how exactly that is kept


class Late(Exception):  # noqa: N818 - like Refused
    """The other side did not say in time what it was to say."""


class Conversation:
    """A connection during its handshake; owns the socket and the memory that goes with it.

    Attributes
    ----------
    expires : when it has to have ended, in seconds of `time.monotonic`.
    memory_fd : descriptor of the memory shared over it, or -1.
    tls_key : of the connection, if it goes on in TLS, else empty; known after the handshake.
    """

    def __init__(self, sock: socket.socket, memory_fd: int = -1, expires: float = math.inf) -> None:
        self.sock = sock
        self.memory_fd = memory_fd
        self.expires = expires
        self.tls_key = b""

    def connect(self, address: Any) -> Steps:
        """Connect the socket; raises OSError."""
        if not start_connecting(self.sock, address):
            yield selectors.EVENT_WRITE
            check_connected(self.sock)

    def receive(self, size: int) -> Generator[int, None, bytes]:
        """Receive `size` bytes and no more: what follows may be for the executor."""
        data = b""
        while len(data) < size:
            try:
                part = self.sock.recv(size - len(data))
            except BlockingIOError:
                yield selectors.EVENT_READ
                continue
            if not part:
                raise Refused("hung up")
            data += part
        return data

    def send(self, message: bytes) -> None:
        """Send one message of the handshake: they are far smaller than an empty send buffer."""
        if self.sock.send(message, socket.MSG_NOSIGNAL) != len(message):
            raise Refused("does not read what it is sent")

    def send_memory(self) -> None:
        """Hand the peer a descriptor of the memory, along with one byte."""
        # not socket.send_fds: in Python 3.11 it drops its flags (gh-107898), and NOSIGNAL with them
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.memory_fd]))
        self.sock.sendmsg([b"m"], [rights], socket.MSG_NOSIGNAL)

    def receive_memory(self, nbytes: int) -> Steps:
        """Take the memory that the peer hands over, if it is `nbytes` and sealed."""
        while True:
            try:
                data, ancillary, flags, _ = self.sock.recvmsg(
                    1, socket.CMSG_LEN(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                yield selectors.EVENT_READ
        fds = _descriptors(ancillary)
        if len(fds) == 1 and not flags & socket.MSG_CTRUNC:
            self.memory_fd = fds[0]
            check_memory(self.memory_fd, nbytes)
            return
        for fd in fds:
            os.close(fd)
        raise Refused("hung up" if not data else "offered no memory, or too much")

    def release(self) -> tuple[int, int]:
        """Give up the socket's and the memory's descriptors: they are the caller's now."""
        memory_fd, self.memory_fd = self.memory_fd, -1
        return self.sock.detach(), memory_fd

    def close(self) -> None:
        """Close whatever is still owned."""
        self.sock.close()
        if self.memory_fd >= 0:
            os.close(self.memory_fd)
            self.memory_fd = -1


class _Going(NamedTuple):
    """A conversation that is going on; `ended` is told how it ended (None: well)."""

    steps: Steps
    ended: Callable[[Exception | None], None]


class Loop:
    """Runs conversations and timers on the calling thread, a turn at a time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._going: dict[Conversation, _Going] = {}
        self._waits_for: dict[Conversation, int] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._checked = time.monotonic()

    def begin(
        self,
        talk: Conversation,
        steps: Steps,
        ended: Callable[[Exception | None], None],
    ) -> None:
        """Start a conversation; `ended` is called, perhaps at once, when it is over."""
        self._going[talk] = _Going(steps, ended)
        self._resume(talk)

    def end(self, talk: Conversation, error: Exception | None) -> None:
        """End a conversation; does nothing if it has ended."""
        going = self._going.pop(talk, None)
        if going is None:
            return
        if self._waits_for.pop(talk, None) is not None:
            self._selector.unregister(talk.sock)
        going.steps.close()
        going.ended(error)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` in `delay_s` seconds."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._count), act))

    def watch(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Call `ready` whenever somebody connects to `listener`."""
        self._selector.register(listener, selectors.EVENT_READ, ready)

    def ignore(self, listener: socket.socket) -> None:
        """Leave those who connect to `listener` waiting."""
        self._selector.unregister(listener)

    def turn(self, longest_s: float) -> None:
        """Wait for up to `longest_s` until something happens, and do what follows from it."""
        now = time.monotonic()
        if self._timers:
            longest_s = min(longest_s, self._timers[0][0] - now)
        if self._going:
            longest_s = min(longest_s, _EXPIRY_S)
        for key, _ in self._selector.select(max(longest_s, 0)):
            key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        if now - self._checked >= _EXPIRY_S:
            self._checked = now
            for talk in [talk for talk in self._going if talk.expires <= now]:
                self.end(talk, Late("did not answer in time"))

    def close(self) -> None:
        """Close every conversation that has not ended."""
        while self._going:
            talk, going = self._going.popitem()
            going.steps.close()
            talk.close()
        self._selector.close()

    def _resume(self, talk: Conversation) -> None:
        if talk not in self._going:  # ended by somebody whose turn came just before
            return
        try:
            event = next(self._going[talk].steps)
        except StopIteration:
            self.end(talk, None)
        except (Refused, OSError) as error:
            self.end(talk, error)
        else:
            self._wait(talk, event)

    def _wait(self, talk: Conversation, event: int) -> None:
        before = self._waits_for.get(talk)
        if before is None:
            self._selector.register(talk.sock, event, partial(self._resume, talk))
        elif before != event:
            self._selector.modify(talk.sock, event, partial(self._resume, talk))
        self._waits_for[talk] = event


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
