"""Numbers out of lines of text: whole columns at once."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_TAB, _NEWLINE, _RETURN, _MINUS = b"\t\n\r-"
_DECIMAL_DIGITS = 18
"""More may exceed 64 bits."""
_HEXADECIMAL_DIGITS = 15
"""More may exceed 63 bits."""
_INVALID = 255

_DIGITS = np.full(256, _INVALID, np.uint8)
_DIGITS[list(b"0123456789abcdef")] = np.arange(16)
_DIGITS[list(b"ABCDEF")] = np.arange(10, 16)


class Spans(NamedTuple):
    """Fields of some lines: [lines, columns] of where each begins and ends in the text."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class Lines(NamedTuple):
    """Lines of a text, without the last one where it has no end.

    Attributes
    ----------
    ends : [lines] of the places behind their last byte, the newline.
    fields : of the lines that have the right number of columns.
    regular : [lines]: which do.
    """

    ends: NDArray[np.int64]
    fields: Spans
    regular: NDArray[np.bool_]


def split_lines(text: NDArray[np.uint8], columns: int) -> Lines:
    """Split bytes into lines, and those into fields at their tabs."""
    newlines = np.flatnonzero(text == _NEWLINE)
    tabs = np.flatnonzero(text == _TAB)
    if len(newlines):
        tabs = tabs[tabs < newlines[-1]]
    else:
        tabs = tabs[:0]
    line_starts = np.concatenate([[0], newlines[:-1] + 1]) if len(newlines) else newlines
    tab_ends = np.searchsorted(tabs, newlines)
    counts = np.diff(tab_ends, prepend=0)
    regular = counts == columns - 1
    own = tabs if regular.all() else tabs[np.repeat(regular, counts)]
    inner = own.reshape(-1, columns - 1)
    stops = newlines[regular]
    if len(stops):
        stops = stops - (text[np.maximum(stops - 1, 0)] == _RETURN)
    starts = np.concatenate([line_starts[regular][:, None], inner + 1], axis=1)
    ends = np.concatenate([inner, stops[:, None]], axis=1)
    return Lines(newlines + 1, Spans(starts, ends), regular)


class Numbers(NamedTuple):
    """Numbers of some fields, of their shape.

    Attributes
    ----------
    numbers : int64; 0 where the field is empty or no number.
    empty, wrong : which fields are empty, and which are no numbers.
    """

    numbers: NDArray[np.int64]
    empty: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


def decimals(text: NDArray[np.uint8], fields: Spans) -> Numbers:
    """Parse integers of up to 18 digits, with a sign or without."""
    starts, ends = fields
    negative = text[np.minimum(starts, len(text) - 1)] == _MINUS
    negative &= ends > starts
    parsed = _digits(text, Spans(starts + negative, ends), 10, _DECIMAL_DIGITS)
    alone = negative & (ends == starts + 1)
    return Numbers(
        np.where(negative, -parsed.numbers, parsed.numbers),
        parsed.empty & ~negative,
        parsed.wrong | alone,
    )


def hexadecimals(text: NDArray[np.uint8], fields: Spans) -> Numbers:
    """Parse hexadecimal numbers of up to 15 digits."""
    return _digits(text, fields, 16, _HEXADECIMAL_DIGITS)


def _digits(text: NDArray[np.uint8], fields: Spans, base: int, most: int) -> Numbers:
    starts, ends = fields
    lengths = ends - starts
    numbers = np.zeros(starts.shape, np.int64)
    wrong = lengths > most
    longest = min(most, int(lengths.max(initial=0)))
    for place in range(longest):
        inside = lengths > place
        digits = _DIGITS[text[np.minimum(starts + place, len(text) - 1)]]
        wrong |= inside & (digits >= base)
        numbers = np.where(inside, numbers * base + digits, numbers)
    numbers[wrong] = 0
    return Numbers(numbers, lengths == 0, wrong)
