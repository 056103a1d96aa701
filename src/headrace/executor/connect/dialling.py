"""Dialling side of connection set-up: connects to all lower ranks, with retries.

A pair's control channel comes first and determines whether there are others. Where the peer listens
under its local name it is on this host, and one AF_UNIX socket with memory serves all channels. A
local listener
that does not answer is either a rank that is still busy or an unauthenticated process that took the
name: then TCP is dialled, where the peer's challenge tells whether it listens locally. If so, it is
dialled locally again; after `LOCAL_ATTEMPTS` failures TCP is used.
"""

import errno
import logging
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headrace.errors import CommunicationError
from headrace.executor.connect.addresses import host_of
from headrace.executor.connect.handshake import (
    CHALLENGE_BYTES,
    CONTROL_CHANNEL,
    POINT_TO_POINT_CHANNEL,
    WELCOME_BYTES,
    Dialler,
    GroupMember,
    LocalDialler,
    Purpose,
    Refused,
    group_addresses,
    local_name,
)
from headrace.executor.connect.handshake_loop import (
    HANDSHAKE_S,
    Handshake,
    Loop,
    Steps,
    make_memory,
)
from headrace.executor.connect.sockets import Endpoint, dialling_socket, parsed, prepare

LOCAL_ATTEMPTS = 3

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Dial:
    """State of one connection over all attempts.

    Attributes
    ----------
    local : whether the next attempt goes to the peer's local name.
    reached : whether the last attempt connected to a listener.
    local_failures : number of local attempts that reached a listener and failed.
    pause_s : delay before another attempt of the same kind.
    problem : outcome of the last attempt, as the end of a sentence.
    """

    peer: int
    channel: int
    local: bool
    reached: bool = False
    local_failures: int = 0
    pause_s: float = _FIRST_PAUSE_S
    problem: str = "did not answer"


class _Nearby(Refused):
    """The peer, dialled by TCP, listens locally: dial its local name instead."""


class Dialling:
    """Dials all lower ranks on all channels.

    Parameters
    ----------
    own : this rank.
    source : the endpoint to dial from.
    addresses : listening addresses by rank.
    loop : runs the handshakes.
    links : output: connections by peer and channel.
    """

    def __init__(
        self,
        own: GroupMember,
        source: Endpoint,
        addresses: Sequence[str],
        loop: Loop,
        links: dict[tuple[int, int], Handshake],
    ) -> None:
        self._own = own
        self._source = source
        self._addresses = addresses
        self._group = group_addresses(addresses)
        self._loop = loop
        self._links = links
        self._dials: dict[tuple[int, int], _Dial] = {}

    def begin(self) -> None:
        """Dial the control channels of all lower ranks; the loop does the rest."""
        for peer in range(self._own.rank):
            # ranks that listen on different addresses may stand for different hosts (a testbed
            # on loopback): data between them has to go over a network
            same = host_of(self._addresses[peer]) == host_of(self._addresses[self._own.rank])
            self._add(peer, CONTROL_CHANNEL, local=self._own.listens_locally and same)

    def problem(self, peer: int, channel: int) -> str:
        """Return the reason why a connection is missing, as the end of a sentence."""
        return self._dials[peer, channel].problem

    def _add(self, peer: int, channel: int, *, local: bool) -> None:
        dial = self._dials[peer, channel] = _Dial(peer, channel, local)
        self._attempt(dial)

    def _attempt(self, dial: _Dial) -> None:
        dial.reached = False
        memory_fd = -1
        try:
            if dial.local:
                memory_fd = self._memory(dial)
            sock = dialling_socket(self._endpoint(dial).family, self._source)
        except OSError as error:
            if memory_fd >= 0:
                os.close(memory_fd)
            if error.errno in (errno.EMFILE, errno.ENFILE):  # waiting gives none back
                raise CommunicationError(
                    f"rank {self._own.rank} cannot connect to rank {dial.peer}: {error.strerror}; "
                    "raise the limit of open files (ulimit -n)"
                ) from error
            self._failed(dial, error)
            return
        # a peer dialled by TCP may answer as late as the deadline allows
        expires = time.monotonic() + HANDSHAKE_S if dial.local else math.inf
        handshake = Handshake(sock, memory_fd, expires)
        steps = self._local_steps if dial.local else self._steps
        self._loop.begin(handshake, steps(handshake, dial), partial(self._ended, handshake, dial))

    def _memory(self, dial: _Dial) -> int:
        try:
            return make_memory(self._own.memory_bytes)
        except OSError as error:
            log.warning(
                "rank %d: no memory to share with rank %d (%s): TCP instead",
                self._own.rank,
                dial.peer,
                error.strerror,
            )
            raise

    def _endpoint(self, dial: _Dial) -> Endpoint:
        address = self._addresses[dial.peer]
        if dial.local:
            return Endpoint(socket.AF_UNIX, local_name(self._own.secret, address))
        return parsed(address, self._source)

    def _local_steps(self, handshake: Handshake, dial: _Dial) -> Steps:
        dialler = LocalDialler(self._own.secret, self._purpose(dial), self._group)
        yield from handshake.connect(self._endpoint(dial).address)
        dial.reached = True
        handshake.send_memory(dialler.hello)
        handshake.welcomed = True
        dialler.finish((yield from handshake.receive(WELCOME_BYTES)))
        prepare(handshake.sock, dial.channel)

    def _steps(self, handshake: Handshake, dial: _Dial) -> Steps:
        dialler = Dialler(self._own.secret, self._purpose(dial))
        yield from handshake.connect(self._endpoint(dial).address)
        dial.reached = True
        handshake.send(dialler.hello)
        proof = dialler.prove((yield from handshake.receive(CHALLENGE_BYTES)))
        in_doubt = 0 < dial.local_failures < LOCAL_ATTEMPTS
        if in_doubt and dialler.peer_listens_locally:
            raise _Nearby("listens locally")
        handshake.expires = math.inf  # authenticated: once it has our proof, only it may abort
        handshake.send(proof)
        dialler.finish((yield from handshake.receive(WELCOME_BYTES)))
        if self._own.tls:
            handshake.tls_key = dialler.tls_key()
        prepare(handshake.sock, dial.channel)

    def _purpose(self, dial: _Dial) -> Purpose:
        own = self._own
        return Purpose(own.ranks, own.rank, dial.peer, dial.channel, dial.local, own.tls)

    def _ended(self, handshake: Handshake, dial: _Dial, error: Exception | None) -> None:
        if error is not None:
            handshake.close()
            self._failed(dial, error)
            return
        self._links[dial.peer, dial.channel] = handshake
        if dial.channel == CONTROL_CHANNEL and not dial.local:
            for channel in range(POINT_TO_POINT_CHANNEL, self._own.channels):
                self._add(dial.peer, channel, local=False)

    def _failed(self, dial: _Dial, error: Exception) -> None:
        crowded = isinstance(error, OSError) and error.errno == errno.ETOOMANYREFS
        if crowded and dial.pause_s < _LONGEST_PAUSE_S:
            # until peers take some: as many descriptors may be under way as a process may open
            self._later(dial)
        elif dial.local:
            # a full queue (BlockingIOError) means a listener, too
            found = dial.reached or isinstance(error, BlockingIOError)
            dial.local_failures = dial.local_failures + 1 if found else LOCAL_ATTEMPTS
            dial.local = False
            self._attempt(dial)
        elif isinstance(error, _Nearby):
            dial.local = True
            self._attempt(dial)
        else:
            dial.problem = _problem(dial, error)
            self._later(dial)

    def _later(self, dial: _Dial) -> None:
        self._loop.later(dial.pause_s, partial(self._attempt, dial))
        dial.pause_s = min(2 * dial.pause_s, _LONGEST_PAUSE_S)


def _problem(dial: _Dial, error: Exception) -> str:
    if not isinstance(error, OSError):
        return f"failed the handshake: it {error}"
    if dial.reached:
        return f"broke off the handshake: {error.strerror}"
    return f"could not be reached: {error.strerror}"
