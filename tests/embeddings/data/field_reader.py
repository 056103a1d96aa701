"""Reader of text files of clicks that goes field by field: what the native one is compared with."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace._native import MISSING_ID, FieldKind

_PATTERNS: Mapping[FieldKind, str] = {
    FieldKind.SKIPPED: r"[^\n]*",
    FieldKind.LABEL: r"0{0,17}[01]",
    FieldKind.INTEGER: r"(-?[0-9]{1,18})?",
    FieldKind.HOUR: r"[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])([01][0-9]|2[0-3])",
    FieldKind.HASH: r"([0-9a-fA-F]{1,8})?",
    FieldKind.CODE: r"(-?[0-9]{1,9})?",
}
_NUMBERS: Mapping[FieldKind, Callable[[str], int]] = {
    FieldKind.LABEL: int,
    FieldKind.INTEGER: lambda text: int(text or 0),
    FieldKind.HOUR: int,
    FieldKind.HASH: lambda text: int(text, 16) if text else MISSING_ID,
    FieldKind.CODE: lambda text: _code(int(text)) if text else MISSING_ID,
}


class Line(NamedTuple):
    """Numbers of a line's fields, or the first wrong one: -1 where their number is wrong."""

    numbers: list[int]
    wrong: int | None


def read_line(
    line: str, kinds: tuple[FieldKind, ...], rows: tuple[int, ...], separator: str
) -> Line:
    """Parse a line without its end."""
    fields = line.split(separator)
    if len(fields) != len(kinds):
        return Line([], -1)
    numbers: list[int] = []
    for place, (field, kind, count) in enumerate(zip(fields, kinds, rows, strict=True)):
        if not re.fullmatch(_PATTERNS[kind], field):
            return Line([], place)
        if kind is FieldKind.SKIPPED:
            continue
        number = _NUMBERS[kind](field)
        if count and kind in (FieldKind.HASH, FieldKind.CODE):
            number = 1 + number % (count - 1) if field else 0
        numbers.append(number)
    return Line(numbers, None)


def _code(number: int) -> int:
    return number if number >= 0 else MISSING_ID - number
