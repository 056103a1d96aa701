"""Limits of untrusted files and numbers, with errors that name the place."""

import math

from headrace.errors import TopologyError

MAX_BYTES = 16 * 2**20
"""A topology of a thousand GPUs takes a tenth of this; larger files are of another kind."""

_MOST = 1e15


def finite(number: float, where: str, *, zero: bool = False) -> float:
    """Return `number` if it is above 0 (or 0, with `zero`) and no larger than 10^15."""
    if not math.isfinite(number) or number > _MOST or number < 0 or (number == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise TopologyError(f"{where} is {number!r}, needs a number {least}, at most {_MOST:g}")
    return number
