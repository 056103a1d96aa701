"""Text files of clicks: lines of separated fields, as columns of numbers."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace._native import FieldKind, parse_click_lines
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.errors import ExampleError

_BLOCK_BYTES = 1 << 20
"""Read at once: some 4,000 lines, whose numbers stay in the processor's caches."""

_MOST_LINE_BYTES = 1 << 20
"""A file with a longer line is no text of clicks, and would be read into memory in whole."""

_EXPECTED: Mapping[FieldKind, str] = {
    FieldKind.LABEL: "0 or 1",
    FieldKind.INTEGER: "an integer of up to 18 digits",
    FieldKind.HOUR: "an hour as YYMMDDHH",
    FieldKind.HASH: "a hash of up to 8 hexadecimal digits",
    FieldKind.CODE: "an integer of up to 9 digits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """Fields of a line.

    Attributes
    ----------
    kinds : of the fields.
    rows : of each field that is an id, the rows of its table: ids are taken into 1 to rows - 1,
        empty fields to 0; 0: they are as they are.
    """

    separator: str
    kinds: tuple[FieldKind, ...]
    rows: tuple[int, ...]


@contextmanager
def read_errors(path: Path) -> Generator[None]:
    """Raise ExampleError, which names the file, where it cannot be read or unpacked."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:  # of bzip2, some are no OSError
        reason = getattr(error, "strerror", None) or error
        raise ExampleError(f"{path}: cannot be read: {reason}") from error


def text_blocks(path: Path) -> Iterator[bytes]:
    """Yield a file's lines, some thousands at once; compressed files are unpacked.

    The last line gets an end where it has none.

    Raises
    ------
    ExampleError : the file cannot be read, or is no text of lines.
    """
    import pyarrow as pa

    remainder = b""
    with read_errors(path), pa.input_stream(str(path), compression="detect") as stream:
        while content := stream.read(_BLOCK_BYTES):
            end = content.rfind(b"\n") + 1
            if end:
                yield remainder + content[:end]
                remainder = content[end:]
            else:
                remainder += content
            if len(remainder) > _MOST_LINE_BYTES:
                raise ExampleError(
                    f"{path}: has a line of more than {_MOST_LINE_BYTES} bytes, "
                    "needs text with an example a line"
                )
    if remainder:
        yield remainder + b"\n"


def parse_lines(
    text: bytes, layout: LineFormat, source: str, line: int, rejects: Rejects
) -> tuple[NDArray[np.int64], int]:
    """Return the numbers of some lines, and the number of lines.

    Numbers are [fields that are not skipped, accepted lines], each field's in one piece.

    Parameters
    ----------
    text : whole lines.
    source, line : the file, and its lines before these, for messages.

    Raises
    ------
    ExampleError : more lines are rejected than may be.
    """
    parsed = parse_click_lines(text, layout.kinds, layout.rows, layout.separator)
    rejects.count(parsed.lines)
    for number, field, begin, end in zip(
        parsed.rejected_lines.tolist(),
        parsed.rejected_fields.tolist(),
        parsed.rejected_begins.tolist(),
        parsed.rejected_ends.tolist(),
        strict=True,
    ):
        content = text[begin:end].rstrip(b"\r")
        rejects.reject(source, line + number + 1, _reason(content, field, layout), content)
    return parsed.numbers, parsed.lines


def _reason(content: bytes, field: int, layout: LineFormat) -> str:
    fields = content.split(layout.separator.encode())
    if field < 0:
        return f"has {len(fields)} columns, needs {len(layout.kinds)}"
    text = fields[field].decode("utf-8", "replace")
    return f"column {field + 1} is {text!r}, needs {_EXPECTED[layout.kinds[field]]}"
