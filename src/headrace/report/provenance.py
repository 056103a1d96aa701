"""Provenance of an artifact in words: a row for each value, labelled by the names on its path."""

from collections.abc import Mapping
from typing import Any

from headrace.job.load import LOAD, load_text

_MOST = 200
"""Characters of a value; a longer one is cut."""


def labelled_rows(values: Mapping[str, Any], *, most: int = _MOST) -> list[tuple[str, str]]:
    """Return (label, value) rows of a mapping of JSON, such as a provenance.

    Parameters
    ----------
    most : characters of a value; a longer one is cut.
    """
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        label = name.replace("_", " ")
        if name == LOAD:
            rows.append((label, load_text(values)))
        elif isinstance(value, Mapping):
            rows += [(f"{label}: {inner}", text) for inner, text in labelled_rows(value, most=most)]
        else:
            rows.append((label, _cut(_in_words(value), most)))
    return rows


def _in_words(value: Any) -> str:
    match value:
        case None:
            return "not stated"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case list() | tuple():
            return ", ".join(map(_in_words, value)) or "none"
        case Mapping():
            return ", ".join(f"{name} {_in_words(inner)}" for name, inner in value.items())
        case _:
            return str(value)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
