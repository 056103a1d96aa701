"""Reasons why a testbed's network cannot be built; imports nothing that could be missing."""

import os
from pathlib import Path

from headrace.testbed.teardown import NAMESPACE_DIRECTORY, find_program

_HAS_IPV6 = Path("/proc/net/if_inet6")
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def unavailable_reason() -> str | None:
    """Return why namespaces cannot be made here, or None if they can."""
    for program in ("ip", "tc"):
        if find_program(program) is None:
            return f"'{program}' (of the package iproute2) is not installed"
    # the name of this process may be of any bytes, or cut within a character
    status = Path("/proc/self/status").read_text(errors="replace")
    capabilities = int(
        next(line for line in status.splitlines() if line.startswith("CapEff")).split()[1], 16
    )
    for name, bit in _CAPABILITIES.items():
        if not capabilities >> bit & 1:
            return f"this process lacks {name}; run it as root"
    # the root of a user namespace has all capabilities, and may not write the system's folders
    folder = NAMESPACE_DIRECTORY if NAMESPACE_DIRECTORY.is_dir() else NAMESPACE_DIRECTORY.parent
    if not os.access(folder, os.W_OK):
        return f"{folder}, where ip keeps the names of namespaces, cannot be written"
    return None


def no_ipv6_reason() -> str | None:
    """Return why hosts cannot have IPv6 addresses here, or None if they can."""
    if _HAS_IPV6.exists():
        return None
    return f"this kernel has no IPv6 ({_HAS_IPV6} does not exist)"
