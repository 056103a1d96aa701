"""Reading of users' files, with errors that name the file and the reason."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import InputError

__all__ = ["load_json", "read_text"]


def read_text(path: str | Path, error: type[InputError] = InputError) -> str:
    """Return the text of a UTF-8 file.

    Raises
    ------
    error : naming the file, if it cannot be read or is not text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as found:
        raise error(f"{path}: cannot be read: {found.strerror or found}") from found
    except UnicodeDecodeError as found:
        raise error(f"{path}: cannot be read: byte {found.start} is no UTF-8") from found


def load_json(
    text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse JSON whose numbers are finite and whose integers have at most 64 bits.

    Python accepts any, which would fail later: no column holds them, and sums of very long ones
    cannot even be printed.

    Parameters
    ----------
    pairs : makes the value of an object from its fields, in order; None: a dictionary.

    Raises
    ------
    ValueError, RecursionError : for what is not such JSON.
    """
    return json.loads(
        text,
        parse_constant=_refuse_constant,
        parse_float=_finite,
        parse_int=_bounded,
        object_pairs_hook=pairs,
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _bounded(text: str) -> int:
    value = int(text) if len(text) <= 20 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{text[:24]} is out of range, needs an integer of at most 64 bits")
    return value
