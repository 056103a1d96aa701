"""Reasons why a testbed's network cannot be built; imports nothing that could be missing."""

from pathlib import Path

from headrace.testbed.teardown import find_program

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
    return None


def no_ipv6_reason() -> str | None:
    """Return why hosts cannot have IPv6 addresses here, or None if they can."""
    if _HAS_IPV6.exists():
        return None
    return f"this kernel has no IPv6 ({_HAS_IPV6} does not exist)"
