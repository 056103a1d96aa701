"""Sizes, times and rates as people read them."""


def size(count: int) -> str:
    """Return a number of bytes in B, KiB, MiB or GiB."""
    for unit, one in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
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
    """Return the rate of a link or capacity in Mbit/s."""
    return f"{mbit(beta_us_per_mb):.4g} Mbit/s"


def mbit(beta_us_per_mb: float) -> float:
    """Return the Mbit/s of a link or capacity."""
    return 8e6 / beta_us_per_mb
