"""Sizes, times and rates with units, as text.

A page, or a command's output, has one unit for each: sizes in powers of 1024, or of 1000 where they
were given so; rates of networks in Mbit/s or Gbit/s, those of plans' data in GB/s.
"""

import re
from fractions import Fraction

from headrace.errors import InputError

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}

GBIT_FROM = 10_000
"""Mbit/s from which rates are shown in Gbit/s."""

_COUNTS = {"": 1} | {letter: 1000**power for power, letter in enumerate("KMG", start=1)}

MOST_BYTES = 1 << 50
"""Of a size; more are a slip of the keyboard, and beyond what a program's counts hold."""


def parse_size(text: str, name: str = "size") -> int:
    """Return the bytes that "512K", "1.5 MiB" (powers of 1024) or "16MB" (of 1000) mean.

    Parameters
    ----------
    name : of what is parsed, for the error.

    Raises
    ------
    InputError : for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    if not match or match[2] not in _UNITS:
        raise InputError(f"{name} is {text!r}, needs a number and a unit: 512K, 16M, 1G or 16MB")
    count = float(match[1]) * _UNITS[match[2]]
    if count > MOST_BYTES:
        raise InputError(f"{name} is {text!r}, needs at most {size(MOST_BYTES)}")
    return round(count)  # checked before: digits enough are infinite


_RATE = re.compile(
    r"(?P<number>\d+(\.\d+)?)\s*(?P<prefix>[kmgt]?)((?-i:B/s|Bps)|(?P<bits>bit(/s)?|(?-i:bps)))",
    re.ASCII | re.IGNORECASE,
)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}

SLOWEST, FASTEST = 1e4, 1e13
"""That a bandwidth can have: 80 kbit/s to 80 Tbit/s."""


def parse_bandwidth(text: str, name: str = "bandwidth") -> float:
    """Return the bytes per second that "10Gbit/s", "10Gbps" or "1.25 GB/s" mean.

    B, of bytes, is a capital; the case of other letters does not count.

    Parameters
    ----------
    name : of what is parsed, for the error.

    Raises
    ------
    InputError : for anything else.
    """
    match = _RATE.fullmatch(text.strip())
    rate = float(match["number"]) * _PREFIXES[match["prefix"].lower()] if match else 0.0
    if match and match["bits"]:
        rate /= 8
    if not SLOWEST <= rate <= FASTEST:
        raise InputError(
            f"{name} is {text!r}, needs a number with kbit/s, Mbit/s, Gbit/s, MB/s or GB/s, "
            "from 80 kbit/s to 80 Tbit/s, such as 10Gbit/s"
        )
    return rate


_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

LONGEST_S = 1e9
"""Of a time; it is about thirty years."""


def parse_time(text: str, name: str = "time", *, least_s: float = 0.0) -> float:
    """Return the seconds that "30s", "5 min", "120ms", "30us" or "12h" mean.

    Parameters
    ----------
    name : of what is parsed, for the error.
    least_s : seconds that it needs at least.

    Raises
    ------
    InputError : for anything else, and for less.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(us|ms|s|min|h|d)", text.strip(), re.ASCII)
    if not match:
        raise InputError(
            f"{name} is {text!r}, needs a number and a unit of us, ms, s, min, h or d: 30s or 5min"
        )
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not least_s <= seconds <= LONGEST_S:
        raise InputError(f"{name} is {text!r}, needs {duration(1e6 * least_s)} to {LONGEST_S:g} s")
    return seconds


def parse_count(text: str, name: str = "count") -> int:
    """Return the number of things that "6M" (6,000,000), "1.5K" or "250000" mean: not bytes.

    Parameters
    ----------
    name : of what is parsed, for the error.

    Raises
    ------
    InputError : for anything else.
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMG]?)", text.strip())
    if not parts:
        raise InputError(f"{name} is {text!r}, needs a number: 250000, 250K or 6M")
    count = Fraction(parts[1]) * _COUNTS[parts[2]]
    if count > MOST_BYTES:
        raise InputError(f"{name} is {text!r}, needs at most {MOST_BYTES:,}")
    if count.denominator > 1:
        raise InputError(f"{name} is {text!r}, needs a whole number")
    return int(count)


def size(count: int, like: int | None = None) -> str:
    """Return a number of bytes with its unit: KB, MB, ... where `like` is round in those, else KiB.

    Parameters
    ----------
    like : the size that the page or table is about, such as 8,000,000, typed as 8MB; `count` itself
        if absent.
    """
    named = count if like is None else like
    (decimal, _), (binary, _) = _scaled(named, 1000, 15), _scaled(named, 1024, 15)
    is_round = named >= 1000 and len(str(named).rstrip("0")) <= 3
    if is_round and len(decimal) <= len(binary):
        text, power = _scaled(count, 1000, 4)
        return f"{text} {'KMGT'[power - 1]}B" if power else f"{text} B"
    text, power = _scaled(count, 1024, 4)
    return f"{text} {'KMGT'[power - 1]}iB" if power else f"{text} B"


def _scaled(count: int, base: int, digits: int) -> tuple[str, int]:
    """Return a count over the largest power of `base` up to the fourth, and that power."""
    power = sum(count >= base**exponent for exponent in range(1, 5))
    return f"{count / base**power:.{digits}g}", power


def duration(us: float | None) -> str:
    """Return microseconds in us, ms or s; nothing for None."""
    if us is None:
        return ""
    for unit, unit_us in (("s", 1e6), ("ms", 1e3)):
        if us >= unit_us:
            return f"{us / unit_us:.4g} {unit}"
    return f"{us:.4g} us"


def ms(us: float) -> str:
    """Return microseconds in ms, whatever their size: for columns that are to be compared."""
    return f"{us / 1000:,.0f} ms" if us >= 100_000 else f"{us / 1000:.3g} ms"


def rate(beta_us_per_mb: float) -> str:
    """Return the rate of a link or capacity in Mbit/s, or in Gbit/s from ten on."""
    mbit_per_s = mbit(beta_us_per_mb)
    if round(mbit_per_s) < GBIT_FROM:  # rounded: four digits of it have no exponent
        return f"{mbit_per_s:.4g} Mbit/s"
    return f"{mbit_per_s / 1000:.4g} Gbit/s"


def gb_per_s(beta_us_per_mb: float) -> str:
    """Return the rate at which data passes a cut or a capacity, in GB/s."""
    return f"{1e3 / beta_us_per_mb:.4g} GB/s"


def mbit(beta_us_per_mb: float) -> float:
    """Return the Mbit/s of a link or capacity."""
    return 8e6 / beta_us_per_mb
