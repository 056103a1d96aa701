"""Untrusted files: read within limits, with errors that name the place."""

import math
from pathlib import Path

from headrace.errors import TopologyError

MAX_BYTES = 16 * 2**20
"""A topology of a thousand GPUs takes a tenth of this; larger files are of another kind."""


def read_limited(path: str | Path) -> bytes:
    """Return the file's content.

    Raises
    ------
    TopologyError : if it cannot be read or is larger than `MAX_BYTES`.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TopologyError(f"{path}: cannot be read: {reason}") from error
    if len(content) > MAX_BYTES:
        raise TopologyError(f"{path}: is larger than {MAX_BYTES} bytes, needs a topology file")
    return content


def decoded(content: bytes, source: str) -> str:
    """Return the text of UTF-8 bytes, without a byte order mark."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError(
            f"{source}: byte {error.start} is no UTF-8, needs a text file: save it as UTF-8"
        ) from error


def finite(found: float, where: str, *, zero: bool = False, limit: float = 1e15) -> float:
    """Return `found` if it is above 0 (or 0, with `zero`) and no larger than `limit`."""
    if not math.isfinite(found) or found > limit or found < 0 or (found == 0 and not zero):
        least = "of at least 0" if zero else "above 0"
        raise TopologyError(f"{where} is {found!r}, needs a number {least}, at most {limit:g}")
    return found
