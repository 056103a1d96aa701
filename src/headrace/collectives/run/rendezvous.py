"""Rendezvous of the ranks of one process group through torch's store, in two rounds.

Round one exchanges the hosts of the ranks, so that no rank offers a loopback address to another
host, and compares the plan books. Round two exchanges the listening addresses of the executors.
"""

import json
import secrets
import socket
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, InputError
from headrace.executor import Executor
from headrace.executor.connect.addresses import (
    FAMILIES,
    IPV4,
    IPV6,
    ByFamily,
    addresses_towards,
    family_of,
    interface_addresses,
    is_loopback,
)
from headrace.executor.connect.descriptors import shortage
from headrace.executor.executor import TAGS
from headrace.executor.pacing import pace
from headrace.job.same import difference
from headrace.job.store import answering, innermost, wait_for
from headrace.settings import Settings

_SECRET = "secret"  # key in the group's part of the store
_FAILED = "failed"  # key: why a rank could not connect
_LOOPBACK = "127.0.0.1"
_ADDRESS_BYTES = 64
_FIRST_TAG = TAGS + TAGS // 2  # no message of a user has it


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Configuration of a group, after round one.

    Attributes
    ----------
    secret : of this group; executors reject peers without it.
    host : listening address for this rank's executor.
    rank_host : for every rank, the index of its host (in order of first appearance).
    identities : for every rank, a unique name of its host's network stack, until it boots.
    channels : connections per pair of ranks: the maximum over the ranks' settings.
    shared_memory : whether ranks of one host share memory: if all ranks' settings allow it.
    tls : whether traffic between hosts is encrypted: the same setting on all ranks.
    compares_calls : whether the ranks compare their calls: if a rank asks for it.
    """

    secret: str
    host: str
    rank_host: tuple[int, ...]
    identities: tuple[str, ...]
    channels: int
    shared_memory: bool
    tls: bool
    compares_calls: bool


class Rendezvous:
    """Rendezvous of one rank with the others of its group.

    Parameters
    ----------
    store : private to the group, see `incarnation.own_part`.
    timeout_s : longest wait for the slowest rank, in seconds.
    """

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._timeout_s = timeout_s

    def agree(
        self,
        settings: CollectiveSettings,
        *,
        book_digest: str = "",
        channels: int = 1,
        compares_calls: bool = False,
    ) -> GroupConfig:
        """Run round one.

        Parameters
        ----------
        settings : this rank's. One with a paced address listens there regardless of routes; ranks
            with different ones count as on different hosts (a testbed on loopback).
        channels : connections per pair of ranks that this rank's plan book needs.
        compares_calls : whether this rank asks for its calls to be compared with the others'.

        Raises
        ------
        InputError : the ranks' plan books differ, or their settings of TLS; the interface has no
            address, or the ranks have no address family in common.
        CommunicationError : naming the ranks that did not arrive in time, or lack file descriptors;
            the store does not answer.
        """
        with self._answering():
            if self._rank == 0:
                self._store.set(_SECRET, secrets.token_hex(16))
        listen, interface = settings.paced_address, settings.socket_interface
        if listen:
            offer: ByFamily = {family_of(listen): listen}
        else:
            offer = _of_interface(interface) if interface else self._route()
        identity = f"{_host_identity()}/{listen}" if listen else _host_identity()
        wanted = [max(settings.channels, channels), settings.shared_memory, settings.tls]
        lacking = shortage(self._ranks)
        own = [identity, list(offer.items()), book_digest, *wanted, lacking, compares_calls]
        self._set("meet", own)
        *values, secret = self._get([*self._keys("meet"), _SECRET])
        rows = [json.loads(value) for value in values]
        _check_alike(rows)
        hosts = [str(row[0]) for row in rows]
        host = _chosen(
            [dict(row[1]) for row in rows],
            self._rank,
            hosts=len(set(hosts)),
            fixed=bool(listen or interface),
        )
        order = {name: index for index, name in enumerate(dict.fromkeys(hosts))}
        return GroupConfig(
            secret=secret.decode(),
            host=host,
            rank_host=tuple(order[name] for name in hosts),
            identities=tuple(hosts),
            channels=max(int(row[3]) for row in rows),
            shared_memory=all(row[4] for row in rows),
            tls=settings.tls,
            compares_calls=any(row[7] for row in rows),
        )

    def addresses(self, mine: str) -> list[str]:
        """Run round two: the executors' addresses, by rank.

        Raises
        ------
        CommunicationError : a rank failed; see `fail`.
        """
        addresses = [str(address) for address in self._exchange("address", mine)]
        if "" in addresses:
            self.check()
        return addresses

    def fail(self, error: Exception) -> None:
        """Tell the other ranks that this one will not connect: theirs fail, too, with its reason.

        Does nothing if the store is lost.
        """
        with suppress(RuntimeError):
            if not self._store.check([_FAILED]):
                self._store.set(_FAILED, f"rank {self._rank} failed: {error}")
            self._store.set(f"address/{self._rank}", json.dumps(""))  # others may wait for it

    def check(self) -> None:
        """Raise the error of a rank that failed.

        Raises
        ------
        CommunicationError : see `fail`; or the store does not answer.
        """
        with self._answering():
            if not self._store.check([_FAILED]):
                return
            reason = self._store.get(_FAILED).decode()
        raise CommunicationError(f"{self._what}: {reason}")

    def connect(self, executor: Executor, settings: Settings) -> list[str]:
        """Connect this rank's executor with all others (round two); returns their addresses."""
        addresses = self.addresses(executor.address)
        executor.connect(addresses)
        self.forget_secret()
        pace(executor, addresses, settings)
        return addresses

    def forget_secret(self) -> None:
        """Delete the group's secret from the store; to call once `Executor.connect` has returned.

        Once a rank is connected with all others, all have read the secret, as each proved it in
        its handshake. Does nothing if the store is lost or cannot delete.
        """
        if self._rank == 0:
            with suppress(RuntimeError):  # NotImplementedError is one
                self._store.delete_key(_SECRET)

    def _exchange(self, name: str, mine: Any) -> list[Any]:
        self._set(name, mine)
        return [json.loads(value) for value in self._get(self._keys(name))]

    def _set(self, name: str, mine: Any) -> None:
        with self._answering():
            self._store.set(f"{name}/{self._rank}", json.dumps(mine))

    def _keys(self, name: str) -> list[str]:
        return [f"{name}/{rank}" for rank in range(self._ranks)]

    def _get(self, keys: list[str]) -> list[bytes]:
        """Return the values of keys: one for each rank by which it is written, then rank 0's."""
        if not wait_for(self._store, keys, self._timeout_s, self._what):
            with self._answering():
                arrived = [self._store.check([key]) for key in keys]
            missing = sorted({at % self._ranks for at, there in enumerate(arrived) if not there})
            raise CommunicationError(
                f"{self._what}: ranks {missing} did not reach it within {self._timeout_s:g} s"
            )
        with self._answering():
            return list(self._store.multi_get(keys))

    @property
    def _what(self) -> str:
        return f"rank {self._rank}: rendezvous of {self._ranks} ranks"

    def _answering(self) -> AbstractContextManager[None]:
        return answering(self._store, self._what)

    def _route(self) -> ByFamily:
        """Return our source addresses towards the store, which the others can reach, too."""
        addresses = addresses_towards(getattr(innermost(self._store), "host", _LOOPBACK))
        return addresses or {IPV4: _LOOPBACK}


def _chosen(offers: Sequence[ByFamily], rank: int, *, hosts: int, fixed: bool) -> str:
    """Return the address that `rank` listens on: of the first family that all ranks can have.

    Parameters
    ----------
    offers : by rank, the addresses it can listen on.
    hosts : number of hosts of the ranks.
    fixed : the addresses were given, not found by routes: loopback is intended.

    Raises
    ------
    InputError : no rank has an address that other hosts reach, or they have no common family.
    """
    routable = [
        {
            family: host
            for family, host in offer.items()
            if fixed or hosts == 1 or not is_loopback(host)
        }
        for offer in offers
    ]
    able = [offer for offer in routable if offer]
    if not able:
        raise InputError(
            "the ranks are on several hosts, but every one of them would listen on loopback; "
            "set HEADRACE_SOCKET_IFNAME to the network interface that joins them"
        )
    for family in FAMILIES:
        if all(family in offer for offer in able):
            if family in routable[rank]:
                return routable[rank][family]
            # the store is on our host, reached through loopback: use the route to a peer
            peer = next(offer[family] for offer in able)
            return addresses_towards(peer).get(family) or offers[rank].get(family, _LOOPBACK)
    without = {
        family: [at for at, offer in enumerate(routable) if offer and family not in offer]
        for family in FAMILIES
    }
    raise InputError(
        f"the ranks have no address family in common: ranks {without[IPV4]} have no IPv4 address "
        f"and ranks {without[IPV6]} no IPv6 address on their interface; set "
        "HEADRACE_SOCKET_IFNAME to one that has both, or give all of them the same family"
    )


def _of_interface(name: str) -> ByFamily:
    addresses = interface_addresses(name)
    if not addresses:
        interfaces = ", ".join(interface for _, interface in socket.if_nameindex())
        raise InputError(
            f"HEADRACE_SOCKET_IFNAME is {name!r}, which has no IPv4 or IPv6 address; the "
            f"interfaces here are: {interfaces}"
        )
    return addresses


def _host_identity() -> str:
    """Return a name that is equal exactly for processes in one network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _check_alike(rows: Sequence[Sequence[Any]]) -> None:
    """Raise the error of the ranks if one cannot make the group, or their settings differ."""
    for at, row in enumerate(rows):
        if row[6]:
            raise CommunicationError(f"rank {at} cannot make the group: {row[6]}")
    _require_same(
        "plan books",
        [f"{row[2][:12]}..." if row[2] else "none" for row in rows],
        "Give every rank the same file in HEADRACE_PLAN_BOOK (or none)",
    )
    _require_same(
        "settings of TLS",
        ["TLS" if row[5] else "no TLS" for row in rows],
        "Set HEADRACE_TLS alike on every rank",
    )


def _require_same(what: str, texts: list[str], remedy: str) -> None:
    if (problem := difference(what, texts, remedy)) is not None:
        raise InputError(problem)


def allgather_addresses(executor: Executor, name: str, mine: str, deadline_s: float) -> list[str]:
    """Return every rank's `mine`, by rank; collective: once per `name`, which is the same on all.

    For additional connections of a group while its calls are under way: messages over the existing
    connections, as a thread that waits for the store blocks all others of its process that use it.

    Raises
    ------
    CommunicationError : a rank did not call it in time.
    """
    encoded = mine.encode()
    if len(encoded) > _ADDRESS_BYTES:
        raise InputError(f"{mine!r} is over {_ADDRESS_BYTES} bytes")
    tag = _FIRST_TAG + zlib.crc32(name.encode()) % (TAGS // 2)
    rows = np.zeros((executor.ranks, _ADDRESS_BYTES), dtype=np.uint8)
    own = rows[executor.rank]
    own[: len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)
    handles: list[int] = []
    for peer in range(executor.ranks):
        if peer != executor.rank:
            row, source = rows[peer].ctypes.data, own.ctypes.data
            handles.append(executor.recv(row, _ADDRESS_BYTES, peer, tag, deadline_s=deadline_s))
            handles.append(executor.send(source, _ADDRESS_BYTES, peer, tag, deadline_s=deadline_s))
    errors: list[CommunicationError] = []
    for handle in handles:  # all: the buffers are in use until then
        try:
            executor.wait(handle)
        except CommunicationError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]
