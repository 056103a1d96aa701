"""Sockets for the connections of a group: addresses, listening, options."""

import contextlib
import errno
import ipaddress
import os
import socket
from typing import Any, NamedTuple

from headrace.errors import CommunicationError, InputError
from headrace.executor.connect.addresses import format_address, numeric_address
from headrace.executor.connect.handshake import CONTROL_CHANNEL

_BACKLOG = 4096
_IP_BIND_ADDRESS_NO_PORT = 24  # not in Python's socket module before 3.12
_OPTIONS_OF_KEEPALIVE = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
# detects a host that vanishes while nothing is being sent
_CONTROL_KEEPALIVE = (5, 5, 3)
# firewalls forget a connection that is silent for minutes; an outage may last as long as the kernel
# repeats what was sent
_DATA_KEEPALIVE = (60, 60, 15)


class Endpoint(NamedTuple):
    """Address of a TCP socket, in the kernel's form."""

    family: socket.AddressFamily
    address: Any  # what `socket.connect` takes for the family


def numeric_host(host: str) -> Endpoint:
    """Return the endpoint of any port of `host`.

    Raises
    ------
    InputError : it is not the numeric address of one interface.
    """
    try:
        if numeric_address(host).is_unspecified:
            raise InputError(
                f"{host!r} would listen on every interface: give the address of the one that "
                "joins the ranks"
            )
        return _resolved(host, 0)
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{host!r} is not a numeric IPv4 or IPv6 address ({error}): names are not resolved"
        ) from None


def parsed(address: str, source: Endpoint | None = None) -> Endpoint:
    """Return the endpoint of "host:port" or "[v6]:port".

    A link-local IPv6 address gets the scope of `source`, the endpoint to dial from: names of
    interfaces differ between hosts.

    Raises
    ------
    InputError : it is neither, or not numeric.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    try:
        if not colon or bracketed != (":" in host):
            raise ValueError("no host and port")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise ValueError("no port from 1 to 65535")
        of_link = numeric_address(host).is_link_local
        if of_link and source is not None and source.family == socket.AF_INET6:
            scope = source.address[3]
            return Endpoint(source.family, (host.partition("%")[0], int(port), 0, scope))
        return _resolved(host, int(port))
    except (ValueError, OSError) as error:
        raise InputError(
            f"the address {address!r} is not a numeric 'host:port' or '[v6]:port' ({error})"
        ) from None


def tcp_listener(host: str, endpoint: Endpoint) -> tuple[socket.socket, str]:
    """Listen on a free port of `host` only, the endpoint's; returns the socket and its address.

    Raises
    ------
    CommunicationError : it is not an address of this machine, or cannot be listened on.
    """
    listener = socket.socket(endpoint.family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(endpoint.address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CommunicationError(f"cannot listen on {host}: {error.strerror}") from error
    port = listener.getsockname()[1]
    return listener, format_address(host, port)


def local_listener(name: bytes) -> socket.socket:
    """Listen on an abstract AF_UNIX name.

    Raises
    ------
    OSError : the name is taken, or this process may not make such sockets.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(name)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def dialling_socket(family: socket.AddressFamily, source: Endpoint) -> socket.socket:
    """Return a socket to dial with, bound to the listening address, so that it uses its interface.

    Raises
    ------
    OSError : no descriptors are left, or this process may not make such sockets.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    if family == source.family:
        # the port is chosen once the peer is known: many connections may then share one
        _set(sock, socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        with contextlib.suppress(OSError):  # any other source works as well
            sock.bind(source.address)
    return sock


def prepare(sock: socket.socket, channel: int) -> None:
    """Set the options of a connection; those of TCP on TCP sockets only."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    _set(sock, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _set(sock, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = _CONTROL_KEEPALIVE if channel == CONTROL_CHANNEL else _DATA_KEEPALIVE
    for option, value in zip(_OPTIONS_OF_KEEPALIVE, values, strict=True):
        _set(sock, socket.IPPROTO_TCP, option, value)


def start_connecting(sock: socket.socket, address: Any) -> bool:
    """Begin to connect; returns whether it is done, else the socket becomes writable.

    Raises
    ------
    OSError : the peer refuses, or its queue is full.
    """
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS):
        raise OSError(code, os.strerror(code))
    return code == 0


def check_connected(sock: socket.socket) -> None:
    """Raise the OSError that a socket's attempt to connect ended with, if it did."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _resolved(host: str, port: int) -> Endpoint:
    if isinstance(numeric_address(host), ipaddress.IPv4Address):
        return Endpoint(socket.AF_INET, (host, port))
    # the scope of a link-local address, too
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[
        0
    ]
    return Endpoint(family, address)


def _set(sock: socket.socket, level: int, option: int, value: int) -> None:
    # best effort: a socket without one of these still carries data correctly
    with contextlib.suppress(OSError):
        sock.setsockopt(level, option, value)
