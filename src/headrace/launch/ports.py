"""Ports of this machine."""

import socket


def free_port(host: str) -> int:
    """Return a port of an address of this machine that nothing listens at."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
