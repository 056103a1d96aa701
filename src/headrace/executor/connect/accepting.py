"""Accepting side of connection set-up: authenticates higher ranks, rejects all other peers."""

import errno
import logging
import resource
import socket
import time
from collections.abc import Sequence
from functools import partial

from headrace.errors import CommunicationError
from headrace.executor.connect.handshake import (
    CONTROL_CHANNEL,
    HELLO_BYTES,
    PROOF_BYTES,
    Acceptor,
    GroupMember,
    LocalAcceptor,
    Purpose,
    Refused,
    group_addresses,
)
from headrace.executor.connect.handshake_loop import HANDSHAKE_S, Handshake, Loop, Steps
from headrace.executor.connect.sockets import prepare

MAX_HANDSHAKES = 1024
"""Limit of concurrent handshakes on the accepting side."""

_ACCEPTED_AT_ONCE = 64
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger(__name__)


class Accepting:
    """Accepts the connections of all higher ranks on all channels.

    Parameters
    ----------
    own : this rank.
    listeners : listening sockets; that of AF_UNIX is the local one.
    addresses : listening addresses by rank.
    loop : runs the handshakes.
    links : output: connections by peer and channel.

    Attributes
    ----------
    rejected : number of failed handshakes so far.
    last_rejected : origin and reason of the last of them, as the end of a sentence.
    """

    def __init__(
        self,
        own: GroupMember,
        listeners: Sequence[socket.socket],
        addresses: Sequence[str],
        loop: Loop,
        links: dict[tuple[int, int], Handshake],
    ) -> None:
        self._own = own
        self._listeners = listeners
        self._addresses = group_addresses(addresses)
        self._loop = loop
        self._links = links
        self._origins: dict[Handshake, str] = {}  # of active handshakes
        self._silent: dict[Handshake, None] = {}  # active ones without a valid hello so far
        self._hellos: set[bytes] = set()
        # leaves most of the process's descriptors for other uses
        self._most = max(
            16, min(MAX_HANDSHAKES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        )
        self._accepting = False
        self.rejected = 0
        self.last_rejected = ""

    def begin(self) -> None:
        """Accept connections whenever the loop runs."""
        for listener in self._listeners:
            self._loop.watch(listener, partial(self._accept, listener))
        self._accepting = True

    def _pause(self) -> None:
        """Leave new connections in the kernel's queue until a handshake has ended."""
        if self._accepting:
            for listener in self._listeners:
                self._loop.ignore(listener)
            self._accepting = False

    def _make_room(self) -> bool:
        if len(self._origins) >= self._most and not self._drop_oldest_silent():
            self._pause()
            return False
        return True

    def _drop_oldest_silent(self) -> bool:
        oldest = next(iter(self._silent), None)
        if oldest is not None:
            self._loop.end(oldest, Refused("sent no valid hello while others waited"))
        return oldest is not None

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if not self._make_room():
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # else that connection broke while it was queued
                if error.errno in _EXHAUSTED and not self._drop_oldest_silent():
                    raise CommunicationError(
                        f"rank {self._own.rank} cannot accept a connection: {error.strerror}; "
                        "raise the limit of open files (ulimit -n)"
                    ) from error
                continue
            sock.setblocking(False)
            handshake = Handshake(sock, expires=time.monotonic() + HANDSHAKE_S)
            local = sock.family == socket.AF_UNIX
            self._origins[handshake] = "this host" if local else f"{address[0]} port {address[1]}"
            self._silent[handshake] = None
            steps = self._local_steps(handshake) if local else self._steps(handshake)
            self._loop.begin(handshake, steps, partial(self._ended, handshake))

    def _local_steps(self, handshake: Handshake) -> Steps:
        acceptor = LocalAcceptor(self._own, self._addresses)
        welcome = acceptor.welcome((yield from handshake.receive_memory(HELLO_BYTES)))
        self._silent.pop(handshake)
        if acceptor.purpose.channel != CONTROL_CHANNEL:
            raise Refused(
                f"requested channel {acceptor.purpose.channel}, which the pair's memory has"
            )
        handshake.check_memory(self._own.memory_bytes)
        self._connected(handshake, acceptor.purpose, welcome)

    def _steps(self, handshake: Handshake) -> Steps:
        acceptor = Acceptor(self._own)
        hello = yield from handshake.receive(HELLO_BYTES)
        challenge = acceptor.challenge(hello)
        if hello in self._hellos:
            raise Refused("replayed the hello of a rank")
        self._hellos.add(hello)
        self._silent.pop(handshake)
        handshake.send(challenge)
        welcome = acceptor.welcome((yield from handshake.receive(PROOF_BYTES)))
        if self._own.tls:
            handshake.tls_key = acceptor.tls_key()
        self._connected(handshake, acceptor.purpose, welcome)

    def _connected(self, handshake: Handshake, purpose: Purpose, welcome: bytes) -> None:
        """End a handshake by its welcome, unless the rank is connected on this channel."""
        peer, channel = purpose.dialler, purpose.channel
        if (peer, channel) in self._links:
            raise Refused(f"requested channel {channel} of rank {peer}, which is connected")
        prepare(handshake.sock, channel)
        handshake.send(welcome)
        self._links[peer, channel] = handshake

    def _ended(self, handshake: Handshake, error: Exception | None) -> None:
        self._silent.pop(handshake, None)
        origin = self._origins.pop(handshake)
        if not self._accepting:
            self.begin()
        if error is not None:
            handshake.close()
            self.rejected += 1
            self.last_rejected = f"{origin}, which {error}"
            log.debug("rank %d rejected %s", self._own.rank, self.last_rejected)
