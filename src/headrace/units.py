"""Sizes, times and rates with units, as text."""

import re

from headrace.errors import InputError

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}

_MOST = 1 << 50
"""Bytes; more are a slip of the keyboard, and beyond what a program's counts hold."""


def parse_size(text: str) -> int:
    """Return the bytes that "512K", "1.5 MiB" (powers of 1024) or "16MB" (of 1000) mean.

    Raises
    ------
    InputError : for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    if not found or found[2] not in _UNITS:
        raise InputError(f"size is {text!r}, needs a number and a unit: 512K, 16M, 1G or 16MB")
    count = round(float(found[1]) * _UNITS[found[2]])
    if count > _MOST:
        raise InputError(f"size is {text!r}, needs at most {size(_MOST)}")
    return count


def size(count: int) -> str:
    """Return a number of bytes in B, KiB, MiB, GiB or TiB."""
    for unit, one in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= one:
            return f"{count / one:.4g} {unit}"
    return f"{count} B"


def duration(us: float | None) -> str:
    """Return microseconds in us, ms or s; nothing for None."""
    if us is None:
        return ""
    for unit, one in (("s", 1e6), ("ms", 1e3)):
        if us >= one:
            return f"{us / one:.4g} {unit}"
    return f"{us:.4g} us"


def ms(us: float) -> str:
    """Return microseconds in ms, whatever their size: for columns that are to be compared."""
    return f"{us / 1000:,.0f} ms" if us >= 100_000 else f"{us / 1000:.3g} ms"


def rate(beta_us_per_mb: float) -> str:
    """Return the rate of a link or capacity in Mbit/s, or in Gbit/s from ten on."""
    found = mbit(beta_us_per_mb)
    return f"{found:.4g} Mbit/s" if found < 10_000 else f"{found / 1000:.4g} Gbit/s"


def mbit(beta_us_per_mb: float) -> float:
    """Return the Mbit/s of a link or capacity."""
    return 8e6 / beta_us_per_mb
