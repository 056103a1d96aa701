"""Ports of this machine."""

import random
import socket
from contextlib import suppress
from pathlib import Path

_LEAST = 20_000
"""Below are the ports of many services."""

_TRIES = 64


def free_port(host: str) -> int:
    """Return a port of an address of this machine that nothing listens at.

    It is outside the range that the system takes ports of connections from, so that it is still
    free when a process that takes seconds to start listens at it; within it where no other is free.
    """
    first, last = _ports_of_connections()
    outside = [port for port in range(_LEAST, 1 << 16) if not first <= port <= last]
    # not by the script's own generator: jobs of one seed would have one port
    for port in random.SystemRandom().sample(outside, min(_TRIES, len(outside))):
        with suppress(OSError):  # in use
            return _bound(host, port)
    return _bound(host, 0)


def _bound(host: str, port: int) -> int:
    """Return the port that can be listened at, of 0 one that the system chooses."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, port))
        return probe.getsockname()[1]


def _ports_of_connections() -> tuple[int, int]:
    """Return the first and the last; all where the system does not tell."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    except OSError:
        return 0, 1 << 16
    first, last = map(int, text.split())
    return first, last
