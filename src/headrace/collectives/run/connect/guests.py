"""Who dials a rank: those above it, and strangers, who are hung up on and change nothing."""

import errno
import logging
import resource
import socket
import time
from collections.abc import Sequence
from functools import partial

from headrace.collectives.run.connect.conversation import HANDSHAKE_S, Conversation, Loop, Steps
from headrace.collectives.run.connect.handshake import (
    CONTROL_CHANNEL,
    HELLO_BYTES,
    PROOF_BYTES,
    Acceptor,
    Member,
    Refused,
)
from headrace.collectives.run.connect.sockets import prepare
from headrace.errors import CommunicationError

MOST_GUESTS = 1024
"""How many handshakes of those who dialled us may go on at once."""

_ACCEPTED_AT_ONCE = 64
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger(__name__)


class Guests:
    """Accepts the connections of all higher ranks on all channels.

    Parameters
    ----------
    own : this rank.
    listeners : sockets that listen; an AF_UNIX one is the local one.
    memory_bytes : size of the memory that comes with each local connection that carries data.
    loop : where the handshakes take place.
    links : by peer and channel, where connections are put.

    Attributes
    ----------
    turned_away : how many failed the handshake so far.
    last_turned_away : who that was and why, as the end of a sentence.
    """

    def __init__(
        self,
        own: Member,
        listeners: Sequence[socket.socket],
        memory_bytes: int,
        loop: Loop,
        links: dict[tuple[int, int], Conversation],
    ) -> None:
        self._own = own
        self._listeners = listeners
        self._memory_bytes = memory_bytes
        self._loop = loop
        self._links = links
        self._origins: dict[Conversation, str] = {}  # of those whose handshakes go on
        self._silent: dict[Conversation, None] = {}  # of these, who said no right hello yet
        self._hellos: set[bytes] = set()
        # never so many that none of the process's descriptors were left for others
        self._most = max(16, min(MOST_GUESTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._accepting = False
        self.turned_away = 0
        self.last_turned_away = ""

    def begin(self) -> None:
        """Accept connections, in the loop's turns."""
        for listener in self._listeners:
            self._loop.watch(listener, partial(self._accept, listener))
        self._accepting = True

    def _pause(self) -> None:
        """Leave newcomers in the kernel's queue until a handshake has ended."""
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
            self._loop.end(oldest, Refused("kept silent while others waited"))
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
                # else that connection broke while it was waiting
                if error.errno in _EXHAUSTED and not self._drop_oldest_silent():
                    raise CommunicationError(
                        f"rank {self._own.rank} cannot accept a connection: {error.strerror}; "
                        "raise the limit of open files (ulimit -n)"
                    ) from error
                continue
            sock.setblocking(False)
            talk = Conversation(sock, expires=time.monotonic() + HANDSHAKE_S)
            local = sock.family == socket.AF_UNIX
            self._origins[talk] = "this host" if local else f"{address[0]} port {address[1]}"
            self._silent[talk] = None
            self._loop.begin(talk, self._handshake(talk, local), partial(self._ended, talk))

    def _handshake(self, talk: Conversation, local: bool) -> Steps:
        acceptor = Acceptor(self._own, local=local)
        hello = yield from talk.receive(HELLO_BYTES)
        challenge = acceptor.challenge(hello)
        if hello in self._hellos:
            raise Refused("repeated what a rank had said before")
        self._hellos.add(hello)
        self._silent.pop(talk)
        talk.send(challenge)
        welcome = acceptor.welcome((yield from talk.receive(PROOF_BYTES)))
        peer, channel = acceptor.purpose.dialler, acceptor.purpose.channel
        if local and channel != CONTROL_CHANNEL:
            yield from talk.receive_memory(self._memory_bytes)
        if (peer, channel) in self._links:
            raise Refused(f"wanted channel {channel} of rank {peer}, which is connected")
        if self._own.tls and not local:
            talk.tls_key = acceptor.tls_key()
        prepare(talk.sock, channel)
        talk.send(welcome)
        self._links[peer, channel] = talk

    def _ended(self, talk: Conversation, error: Exception | None) -> None:
        self._silent.pop(talk, None)
        origin = self._origins.pop(talk)
        if not self._accepting:
            self.begin()
        if error is not None:
            talk.close()
            self.turned_away += 1
            self.last_turned_away = f"{origin}, which {error}"
            log.debug("rank %d turned away %s", self._own.rank, self.last_turned_away)
