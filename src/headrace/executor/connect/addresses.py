"""Addresses of IPv4 and IPv6: those of this host, and their text forms."""

import fcntl
import functools
import ipaddress
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_IF_INET6 = Path("/proc/net/if_inet6")
_TENTATIVE_OR_FAILED = 0x40 | 0x08  # not (yet) usable: IFA_F_TENTATIVE, IFA_F_DADFAILED
_SCOPES = {0x00: 0, 0x40: 1, 0x20: 2}  # scope -> order: global, site, link; others are unusable
_ANY_PORT = 9

IPV4, IPV6 = 4, 6
FAMILIES = (IPV4, IPV6)
"""Address families, in order of preference where all ranks have both."""

ByFamily = Mapping[int, str]
"""Family -> a numeric address of this host; a link-local one ends in "%" and its interface."""


@functools.lru_cache(maxsize=1024)
def numeric_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address that a text is; raises ValueError if it is none."""
    return ipaddress.ip_address(text)


def format_address(host: str, port: int) -> str:
    """Return "host:port", or "[host]:port" for IPv6; without the interface, as it is local."""
    bare = str(numeric_address(host.partition("%")[0]))
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def host_of(address: str) -> str:
    """Return the host of "host:port" or "[host]:port"."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def family_of(host: str) -> int:
    """Return 4 or 6; raises ValueError if `host` is no numeric address."""
    return numeric_address(host).version


def is_loopback(host: str) -> bool:
    """Return whether `host`, a numeric address, is reachable from this host only."""
    return numeric_address(host).is_loopback


def interface_addresses(name: str) -> ByFamily:
    """Return one address of each family that an interface has; empty if it has none.

    IPv6: a global address is preferred to a site-local, and that to a link-local one.
    """
    found: dict[int, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        found[IPV4] = socket.inet_ntoa(reply[20:24])
    lines: list[str] = []
    with suppress(OSError):  # a kernel without IPv6
        lines = _IF_INET6.read_text().splitlines()
    ranked: list[tuple[int, str]] = []
    for line in lines:
        text, _, _, scope, flags, device = line.split()
        host = ipaddress.IPv6Address(bytes.fromhex(text))
        order = -1 if host.is_loopback else _SCOPES.get(int(scope, 16))
        if device == name and order is not None and not int(flags, 16) & _TENTATIVE_OR_FAILED:
            ranked.append((order, f"{host}%{name}" if host.is_link_local else str(host)))
    if ranked:
        found[IPV6] = min(ranked, key=lambda each: each[0])[1]
    return found


def addresses_towards(host: str) -> ByFamily:
    """Return this host's source address of each family for `host`, a name or an address."""
    found: dict[int, str] = {}
    for kind in _families(host):
        with suppress(OSError):
            target = socket.getaddrinfo(host, _ANY_PORT, kind, socket.SOCK_DGRAM)[0][4]
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # picks the route, sends nothing
                own = _written(probe.getsockname())
            found.setdefault(family_of(own), own)
    return found


def _families(host: str) -> Sequence[socket.AddressFamily]:
    """Return the families of sockets that may reach `host`, a name or an address."""
    try:
        version = numeric_address(host.partition("%")[0]).version
    except ValueError:
        return socket.AF_INET, socket.AF_INET6
    return (socket.AF_INET if version == IPV4 else socket.AF_INET6,)


def _written(name: tuple[object, ...]) -> str:
    """Format a socket's own address; an IPv4-mapped IPv6 address as IPv4."""
    host = numeric_address(str(name[0]).partition("%")[0])
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    if host.ipv4_mapped is not None:
        return str(host.ipv4_mapped)
    return f"{host}%{socket.if_indextoname(int(str(name[3])))}" if host.is_link_local else str(host)
