"""How the ranks of one process group find each other: through torch's store, in two rounds.

Round one tells who sits on which host, so that nobody offers a loopback address to another
host, and compares the plan books. Round two exchanges the addresses the executors listen on.
"""

import fcntl
import json
import secrets
import socket
import struct
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.errors import CommunicationError, InputError

_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What every rank knows after round one.

    Attributes
    ----------
    secret : of this group; executors refuse connections that do not know it.
    host : the address this rank's executor is to listen on.
    rank_host : for every rank, the index of its host (in order of first appearance).
    identities : for every rank, what tells its host's network stack from all others until it boots.
    channels : connections per pair of ranks: the most that any rank asked for.
    shared_memory : whether ranks of one host share memory: unless any rank is against it.
    tls : whether what goes between hosts is encrypted: all ranks say the same.
    """

    secret: str
    host: str
    rank_host: tuple[int, ...]
    identities: tuple[str, ...]
    channels: int
    shared_memory: bool
    tls: bool


def of_this_group(store: Any, rank: int) -> Any:
    """Return the part of `store` that no group before this one has written to.

    torch names the groups made after destroy_process_group like those before, and the store of
    torchrun's agent outlives them all: every rank counts the groups it makes, and as all make the
    same ones, all count alike.
    """
    from torch._C._distributed_c10d import PrefixStore  # not all that meet here load torch

    generation = store.add(f"headrace/generation/{rank}", 1)
    return PrefixStore(f"headrace/{generation}", store)


class Rendezvous:
    """One rank's view of the exchange.

    Parameters
    ----------
    store : private to the group, see `of_this_group`.
    timeout_s : how long to wait for the slowest rank, in seconds.
    """

    def __init__(self, store: Any, rank: int, ranks: int, timeout_s: float) -> None:
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._timeout = timedelta(seconds=timeout_s)

    def meet(
        self,
        *,
        interface: str | None,
        book_digest: str,
        listen: str | None = None,
        channels: int = 1,
        shared_memory: bool = True,
        tls: bool = False,
    ) -> Meeting:
        """Run round one.

        Parameters
        ----------
        listen : the address to listen on whatever the routes say; ranks with different ones
            count as on different hosts (a testbed on loopback).
        channels : how many connections per pair of ranks this rank asks for.
        shared_memory : whether this rank would share memory with others of its host.
        tls : whether this rank wants what goes between hosts to be encrypted.

        Raises
        ------
        InputError : the ranks' plan books differ, or what they say of TLS; the interface has no
            IPv4 address.
        CommunicationError : naming the ranks that did not appear in time.
        """
        if self._rank == 0:
            self._store.set("secret", secrets.token_hex(16))
        candidate = listen or (_interface_address(interface) if interface else self._route())
        identity = f"{_host_identity()}/{listen}" if listen else _host_identity()
        mine = [identity, candidate, book_digest, channels, shared_memory, tls]
        rows = self._exchange("meet", mine)
        _compare_books([str(row[2]) for row in rows])
        _compare_tls([bool(row[5]) for row in rows])
        hosts = [str(row[0]) for row in rows]
        host = candidate
        if not (listen or interface) and candidate.startswith("127.") and len(set(hosts)) > 1:
            host = _reachable([str(row[1]) for row in rows])
        order = {name: index for index, name in enumerate(dict.fromkeys(hosts))}
        return Meeting(
            secret=self._store.get("secret").decode(),
            host=host,
            rank_host=tuple(order[name] for name in hosts),
            identities=tuple(hosts),
            channels=max(int(row[3]) for row in rows),
            shared_memory=all(row[4] for row in rows),
            tls=tls,
        )

    def addresses(self, mine: str) -> list[str]:
        """Run round two: the executors' addresses, by rank."""
        return [str(address) for address in self._exchange("address", mine)]

    def _exchange(self, name: str, mine: Any) -> list[Any]:
        self._store.set(f"{name}/{self._rank}", json.dumps(mine))
        keys = [f"{name}/{rank}" for rank in range(self._ranks)]
        try:
            self._store.wait(keys, self._timeout)
        except RuntimeError as error:  # torch's store errors derive from it
            missing = [rank for rank, key in enumerate(keys) if not self._has(key)]
            raise CommunicationError(
                f"rank {self._rank}: ranks {missing} did not reach the rendezvous within "
                f"{self._timeout.total_seconds():g} s ({error})"
            ) from error
        return [json.loads(self._store.get(key)) for key in keys]

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except RuntimeError:  # the store itself is gone
            return False

    def _route(self) -> str:
        """Return our address on the way to the store: what the others can reach, too."""
        store = self._store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return _address_towards(getattr(store, "host", _LOOPBACK))


def _address_towards(host: str) -> str:
    try:
        address = socket.getaddrinfo(host, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # picks the route, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return _LOOPBACK


def _reachable(candidates: list[str]) -> str:
    """An own address that leads to a rank which offered a routable one."""
    for candidate in candidates:
        if not candidate.startswith("127."):
            return _address_towards(candidate)
    raise InputError(
        "the ranks are on several hosts, but every one of them would listen on loopback; "
        "set HEADRACE_SOCKET_IFNAME to the network interface that joins them"
    )


def _interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(
                probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15])
            )
        except OSError as error:
            known = ", ".join(interface for _, interface in socket.if_nameindex())
            raise InputError(
                f"HEADRACE_SOCKET_IFNAME is {name!r}, which has no IPv4 address "
                f"({error.strerror}); the interfaces here are: {known}"
            ) from error
    return socket.inet_ntoa(reply[20:24])


def _host_identity() -> str:
    """Equal exactly for processes that share a network stack (containers, namespaces count)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _compare_books(digests: list[str]) -> None:
    ranks_of: defaultdict[str, list[int]] = defaultdict(list)
    for rank, digest in enumerate(digests):
        ranks_of[digest].append(rank)
    if len(ranks_of) > 1:
        found = "; ".join(
            f"ranks {ranks} have {digest[:12] + '...' if digest else 'none'}"
            for digest, ranks in ranks_of.items()
        )
        raise InputError(
            f"the ranks do not have the same plan book: {found}. Give every rank the same file "
            "in HEADRACE_PLAN_BOOK (or none)"
        )


def _compare_tls(wanted: list[bool]) -> None:
    if len(set(wanted)) > 1:
        on = [rank for rank, wants in enumerate(wanted) if wants]
        off = [rank for rank, wants in enumerate(wanted) if not wants]
        raise InputError(
            f"ranks {on} want TLS and ranks {off} do not: set HEADRACE_TLS alike on every rank"
        )
