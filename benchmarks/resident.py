"""Resident memory of this process: what it holds, and the most that it held."""

from collections.abc import Callable
from pathlib import Path

RETURN_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment in which freed memory goes back to the system at once: what is resident is in use."""


def resident_growth(call: Callable[[], object]) -> int:
    """Return the highest resident memory of this process during a call, above that before it.

    What a call returns is freed within it. Memory that the process freed before has to be back at
    the system: start it with `RETURN_MEMORY`.
    """
    before = _status_bytes("VmRSS")
    reset_resident_peak()
    call()
    return resident_peak_bytes() - before


def reset_resident_peak() -> None:
    """Make the present resident memory of this process its highest."""
    Path("/proc/self/clear_refs").write_text("5")


def resident_peak_bytes() -> int:
    """Return the highest resident memory of this process since `reset_resident_peak`."""
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return 1024 * int(kibibytes)
