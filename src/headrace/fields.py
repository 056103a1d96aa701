"""Typed reading of the fields of an artifact's head, stricter than JSON.

Every function returns its argument in the wanted type or raises TypeError with the value found;
the caller adds the file and the field. Python's own conversions would take 0.9 for rank 0 and a
string for a list of letters.
"""

import operator
from collections.abc import Mapping
from typing import Any

_SHOWN = 200
"""Limit of characters of a value in a message: a file can hold a million of them."""


def shown(found: Any) -> str:
    """Return a value for a message, truncated if it is long."""
    text = repr(found)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def integer(found: Any) -> int:
    """Return an integer; raises TypeError for others, true and 1.0 included."""
    if isinstance(found, bool):
        raise TypeError(f"{shown(found)} is not an integer")
    try:
        return operator.index(found)
    except TypeError as error:
        raise TypeError(f"{shown(found)} is not an integer") from error


def number(found: Any) -> float:
    """Return a number; raises TypeError for others, true, None and text included."""
    if isinstance(found, bool | str | bytes):
        raise TypeError(f"{shown(found)} is not a number")
    try:
        return float(found)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{shown(found)} is not a number") from error


def boolean(found: Any) -> bool:
    """Return a boolean; raises TypeError for others, 0 and 1 included."""
    if not isinstance(found, bool):
        raise TypeError(f"{shown(found)} is not true or false")
    return found


def text(found: Any) -> str:
    """Return a text; raises TypeError for others, numbers included."""
    if not isinstance(found, str):
        raise TypeError(f"{shown(found)} is not a text")
    return found


def items(found: Any) -> list[Any]:
    """Return a list; raises TypeError for others, text included."""
    if not isinstance(found, list | tuple):
        raise TypeError(f"{shown(found)} is not a list")
    return list(found)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def table(found: Any) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(found, Mapping):
        raise TypeError(f"{shown(found)} is not an object")
    return found  # pyright: ignore[reportUnknownVariableType]
