"""Offers of the ranks of a group to each other before they connect, and its configuration."""

import functools
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, InputError
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
from headrace.job.same import difference
from headrace.job.store import innermost

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Configuration of a group.

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

    @property
    def one_host(self) -> bool:
        """Return whether all ranks share one host."""
        return len(set(self.rank_host)) == 1


class Offer(NamedTuple):
    """Resources and settings of a rank, told with its arrival.

    Attributes
    ----------
    identity : unique name of its host's network stack, until it boots.
    addresses : (family, address) pairs that it can listen on.
    fixed : whether they were given, not found by routes: loopback is intended.
    book_digest : of its plan book; empty without one.
    lacking : why it cannot make the group: it has too few file descriptors; else empty.
    channels, shared_memory, tls, compares_calls : as in `GroupConfig`.
    """

    identity: str
    addresses: list[tuple[int, str]]
    fixed: bool
    book_digest: str
    lacking: str
    channels: int
    shared_memory: bool
    tls: bool
    compares_calls: bool


def own_offer(
    store: Any,
    ranks: int,
    settings: CollectiveSettings,
    *,
    book_digest: str = "",
    channels: int = 1,
    compares_calls: bool = False,
) -> Offer:
    """Return this rank's offer to a group of `ranks` ranks.

    Parameters
    ----------
    store : from torch: without settings, the addresses on the way to it are offered.
    settings : one with a paced address listens there regardless of routes; ranks with different
        ones count as on different hosts (a testbed on loopback).
    channels : connections per pair of ranks that this rank's plan book needs.
    compares_calls : whether this rank asks for its calls to be compared with the others'.

    Raises
    ------
    InputError : the interface has no address.
    """
    listen, interface = settings.paced_address, settings.socket_interface
    if listen:
        addresses: ByFamily = {family_of(listen): listen}
    else:
        addresses = _of_interface(interface) if interface else _towards(store)
    identity = _host_identity()
    return Offer(
        identity=f"{identity}/{listen}" if listen else identity,
        addresses=list(addresses.items()),
        fixed=bool(listen or interface),
        book_digest=book_digest,
        lacking=shortage(ranks),
        channels=max(settings.channels, channels),
        shared_memory=settings.shared_memory,
        tls=settings.tls,
        compares_calls=compares_calls,
    )


def check_versions(versions: Sequence[str]) -> None:
    """Check the ranks' versions of headrace: another may make other offers, and other plans.

    Raises
    ------
    InputError : they differ.
    """
    _require_same("versions of headrace", list(versions), "Install one version on all hosts")


def group_config(offers: Sequence[Offer], rank: int, secret: str) -> GroupConfig:
    """Return a rank's configuration, which follows from the offers of all ranks, by rank.

    Raises
    ------
    InputError : the ranks' plan books differ, or their settings of TLS, or the ranks have no
        address family in common.
    CommunicationError : naming a rank that lacks file descriptors.
    """
    _check_alike(offers)
    hosts = [offer.identity for offer in offers]
    own = offers[rank]
    addresses = [dict(offer.addresses) for offer in offers]
    host = _chosen(addresses, rank, hosts=len(set(hosts)), fixed=own.fixed)
    order = {name: index for index, name in enumerate(dict.fromkeys(hosts))}
    return GroupConfig(
        secret=secret,
        host=host,
        rank_host=tuple(order[name] for name in hosts),
        identities=tuple(hosts),
        channels=max(offer.channels for offer in offers),
        shared_memory=all(offer.shared_memory for offer in offers),
        tls=own.tls,
        compares_calls=any(offer.compares_calls for offer in offers),
    )


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


def _towards(store: Any) -> ByFamily:
    """Return our source addresses towards a store, which the others can reach, too."""
    addresses = addresses_towards(getattr(innermost(store), "host", _LOOPBACK))
    return addresses or {IPV4: _LOOPBACK}


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
        return f"{_boot()}/{Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return socket.gethostname()


@functools.cache
def _boot() -> str:
    """Return the kernel's name of its current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _check_alike(offers: Sequence[Offer]) -> None:
    """Raise the error of the ranks if one cannot make the group, or their settings differ."""
    for rank, offer in enumerate(offers):
        if offer.lacking:
            raise CommunicationError(f"rank {rank} cannot make the group: {offer.lacking}")
    _require_same(
        "plan books",
        [f"{offer.book_digest[:12]}..." if offer.book_digest else "none" for offer in offers],
        "Give every rank the same file in HEADRACE_PLAN_BOOK (or none)",
    )
    _require_same(
        "settings of TLS",
        ["TLS" if offer.tls else "no TLS" for offer in offers],
        "Set HEADRACE_TLS alike on every rank",
    )


def _require_same(what: str, texts: list[str], remedy: str) -> None:
    if (problem := difference(what, texts, remedy)) is not None:
        raise InputError(problem)
