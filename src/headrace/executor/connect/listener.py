"""Full-mesh connection set-up of a group: every pair of ranks, on every channel.

Higher ranks dial lower ones. Two ranks of one host are connected by one AF_UNIX socket and memory
for all channels; others by TCP, each channel by its own. Each connection begins with a handshake
of `handshake.py`; all handshakes run concurrently, so that a slow peer delays no other.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.errors import CommunicationError, InputError
from headrace.executor.connect.accepting import Accepting
from headrace.executor.connect.addresses import host_of
from headrace.executor.connect.dialling import Dialling
from headrace.executor.connect.handshake import CONTROL_CHANNEL, GroupMember, local_name
from headrace.executor.connect.handshake_loop import Handshake, Loop
from headrace.executor.connect.sockets import (
    local_listener,
    numeric_host,
    parsed,
    tcp_listener,
)

_TICK_S = 0.1
_CHECK_S = 0.5  # interval of looks for a failure at another rank
_WARN_S = 15.0  # far more than ranks take that have exchanged their addresses

log = logging.getLogger(__name__)


class PeerConnection(NamedTuple):
    """A non-blocking connection to another rank; its owner has to close the descriptors.

    Attributes
    ----------
    fd : descriptor of a TCP or AF_UNIX socket.
    peer : the other rank.
    channel : CONTROL_CHANNEL, POINT_TO_POINT_CHANNEL, or a data channel from 0.
    memory_fd : descriptor of the shared memory of all channels, whose only socket is that of
        CONTROL_CHANNEL, or -1; made by the higher rank, initially zeros.
    tls_key : pre-shared key of a connection that continues in TLS, else empty.
    """

    fd: int
    peer: int
    channel: int
    memory_fd: int
    tls_key: bytes = b""

    def __repr__(self) -> str:  # without the key
        return "PeerConnection(fd={}, peer={}, channel={}, memory_fd={})".format(*self[:4])


class Listener:
    """Listens from construction on, so that its address can be published.

    Parameters
    ----------
    rank, ranks : this rank and the size of the group.
    host : numeric address of the interface to listen on and to dial from; no other is used.
    secret : known to the ranks of this group only.
    channels : data connections per pair of ranks.
    memory_bytes : size of the memory that two ranks of one host share for all channels; the same on
        all ranks.
    shared_memory : whether ranks of this host may be connected by AF_UNIX sockets and memory; both
        sides of a pair have to allow it.
    tls : whether connections by TCP continue in TLS, which the caller sets up; the same on all
        ranks.

    Attributes
    ----------
    address : "host:port" or "[v6]:port".

    Raises
    ------
    InputError : a rank outside its group, a host that is not numeric, no secret, no channel.
    CommunicationError : `host` is not an address of this machine, or cannot be listened on.
    """

    def __init__(
        self,
        rank: int,
        ranks: int,
        host: str,
        secret: bytes,
        channels: int,
        *,
        memory_bytes: int,
        shared_memory: bool = True,
        tls: bool = False,
    ) -> None:
        if not 0 <= rank < ranks:
            raise InputError(f"rank {rank} is not in a group of {ranks}")
        if channels < 1 or memory_bytes < 1:
            raise InputError(
                f"channels is {channels} and memory_bytes {memory_bytes}: each has to be positive"
            )
        if not secret:
            raise InputError("secret is empty: any process could join; give all ranks the same one")
        self._source = numeric_host(host)
        tcp, self.address = tcp_listener(host, self._source)
        self._listeners = [tcp]
        if shared_memory:
            self._listen_locally(rank, local_name(secret, self.address))
        self._own = GroupMember(
            secret=secret,
            rank=rank,
            ranks=ranks,
            channels=channels,
            memory_bytes=memory_bytes,
            listens_locally=len(self._listeners) > 1,
            tls=tls,
        )

    def connect(
        self,
        addresses: Sequence[str],
        deadline_s: float,
        check: Callable[[], None] | None = None,
    ) -> list[PeerConnection]:
        """Connect to every other rank, then stop listening, also after an error.

        Parameters
        ----------
        addresses : listening addresses by rank.
        deadline_s : seconds from now.
        check : called at times; raises if another rank failed and will not connect.

        Returns
        -------
        A connection per other rank and channel (two more than data channels), or per other rank
        with which this one shares memory, in order of peer and channel.

        Raises
        ------
        InputError : an address is malformed, or there is not one per rank.
        CommunicationError : naming the ranks that are not connected by the deadline, and why.
        """
        own = self._own
        links: dict[tuple[int, int], Handshake] = {}
        loop = Loop()
        try:
            if not self._listeners:
                raise CommunicationError(f"rank {own.rank} no longer listens: make a new listener")
            if len(addresses) != own.ranks:
                raise InputError(f"{len(addresses)} addresses for {own.ranks} ranks")
            for address in addresses:
                parsed(address)
            accepting = Accepting(own, self._listeners, addresses, loop, links)
            dialling = Dialling(own, self._source, addresses, loop, links)
            deadline = time.monotonic() + deadline_s
            next_check = time.monotonic() + _CHECK_S
            warn_at = time.monotonic() + _WARN_S
            accepting.begin()
            dialling.begin()
            while not _complete(own, links):
                left = deadline - time.monotonic()
                if left <= 0:
                    problems = _problems(own, addresses, links, dialling, accepting)
                    raise CommunicationError(
                        f"rank {own.rank} is not connected after {deadline_s:g} s: {problems}"
                    )
                if time.monotonic() >= warn_at:
                    problems = _problems(own, addresses, links, dialling, accepting)
                    log.warning("rank %d is not connected yet: %s", own.rank, problems)
                    warn_at = deadline
                loop.turn(min(left, _TICK_S))
                if check is not None and time.monotonic() >= next_check:
                    check()
                    next_check = time.monotonic() + _CHECK_S
            return _released(links)
        finally:
            self.close()
            loop.close()
            for handshake in links.values():
                handshake.close()

    def close(self) -> None:
        """Stop listening; does nothing the second time."""
        while self._listeners:
            self._listeners.pop().close()

    def _listen_locally(self, rank: int, name: bytes) -> None:
        try:
            self._listeners.append(local_listener(name))
        except OSError as error:
            log.warning(
                "rank %d: cannot listen on an AF_UNIX socket (%s): TCP to all ranks",
                rank,
                error.strerror,
            )


def _complete(own: GroupMember, links: dict[tuple[int, int], Handshake]) -> bool:
    """Return whether all channels of all other ranks are connected."""
    if len(links) < own.ranks - 1:
        return False
    every = own.channels - CONTROL_CHANNEL
    channels = sum(every if link.memory_fd >= 0 else 1 for link in links.values())
    return channels == (own.ranks - 1) * every


def _released(links: dict[tuple[int, int], Handshake]) -> list[PeerConnection]:
    """Move the descriptors out of `links`."""
    released: list[PeerConnection] = []
    try:
        for peer, channel in sorted(links):
            handshake = links[peer, channel]
            fd, memory_fd = handshake.release()
            released.append(PeerConnection(fd, peer, channel, memory_fd, handshake.tls_key))
    except BaseException:  # an interrupt
        for link in released:
            os.close(link.fd)
            if link.memory_fd >= 0:
                os.close(link.memory_fd)
        raise
    return released


def _missing(
    own: GroupMember,
    addresses: Sequence[str],
    links: dict[tuple[int, int], Handshake],
    dialling: Dialling,
) -> str:
    """Return which ranks are not connected and why, grouped by problem."""
    problems: defaultdict[str, list[str]] = defaultdict(list)
    channels = range(CONTROL_CHANNEL, own.channels)
    for peer in range(own.ranks):
        control = links.get((peer, CONTROL_CHANNEL))
        shares = control is not None and control.memory_fd >= 0
        missing = [channel for channel in channels if not shares and (peer, channel) not in links]
        if peer == own.rank or not missing:
            continue
        if peer < own.rank:
            problem = dialling.problem(peer, missing[0])
            problems[problem].append(f"rank {peer} at {addresses[peer]}")
        else:
            some = len(missing) < len(channels)
            problem = "did not connect" + (f" on channels {missing}" if some else "")
            problems[problem].append(f"rank {peer}")
    return "; ".join(f"{', '.join(ranks)} {problem}" for problem, ranks in problems.items())


def _problems(
    own: GroupMember,
    addresses: Sequence[str],
    links: dict[tuple[int, int], Handshake],
    dialling: Dialling,
    accepting: Accepting,
) -> str:
    """Return which ranks are not connected and why, and what may mend it."""
    text = _missing(own, addresses, links, dialling)
    if accepting.rejected:
        text += (
            f" (connections rejected: {accepting.rejected}, the last from "
            f"{accepting.last_rejected})"
        )
    if len(set(map(host_of, addresses))) > 1:
        text += (
            ". If these ranks run: a firewall has to let them connect at any port, and the "
            "addresses have to be of a network that joins the hosts (HEADRACE_SOCKET_IFNAME names "
            "another interface)"
        )
    return text
