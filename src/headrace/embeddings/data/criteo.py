"""Criteo's files of clicks: a label, 13 integers and 26 hashes a line, separated by tabs.

Kaggle's data set and the Terabyte one have this format; files for tests have no label. A field may
be empty: an integer is 0 then, and a hash is the id `MISSING`, a row of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.data.examples import Examples
from headrace.embeddings.data.parse import Numbers, Spans, decimals, hexadecimals, split_lines
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.errors import ExampleError
from headrace.facades import offered_by

INTEGERS = 13
HASHES = 26
MISSING = 1 << 32
"""Id of an empty field: hashes have 32 bits."""

_BLOCK_BYTES = 4 << 20
"""Read at once: some 16,000 lines."""


@offered_by("headrace.embeddings")
class DenseScale(Enum):
    """Scale of the integers, whose range is wide.

    LOG is ln(x + 1), of negative ones 0, as in DLRM's code. LOG_PLUS_3 is ln(x + 3), of those
    below -2 0, as in TorchRec's code. LOG_SQUARED is the integer part of ln(x) squared where x is
    above 2, else x, as in solutions of Kaggle's competition.
    """

    LOG = "log"
    LOG_PLUS_3 = "log-plus-3"
    LOG_SQUARED = "log-squared"
    NONE = "none"

    def apply(self, numbers: NDArray[np.int64 | np.float64]) -> NDArray[np.float32]:
        """Return the scaled numbers."""
        numbers = numbers.astype(np.float64)
        if self is DenseScale.LOG:
            numbers = np.log(np.maximum(numbers, 0.0) + 1.0)
        elif self is DenseScale.LOG_PLUS_3:
            numbers = np.log(np.maximum(numbers, -2.0) + 3.0)
        elif self is DenseScale.LOG_SQUARED:
            numbers = np.where(
                numbers > 2, np.floor(np.log(np.maximum(numbers, 1.0)) ** 2), numbers
            )
        return numbers.astype(np.float32)


@offered_by("headrace.embeddings")
@dataclass(frozen=True, slots=True, kw_only=True)
class CriteoFormat:
    """Layout of files of Criteo's format, and numbers of rows for their hashes.

    Attributes
    ----------
    labelled : whether lines begin with a label.
    scale : of the integers.
    rows : of each table: hashes are taken modulo rows - 1, row 0 is that of empty fields; None: an
        id is the hash itself.
    """

    labelled: bool = True
    scale: DenseScale = DenseScale.LOG
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.rows is None:
            return
        if len(self.rows) != HASHES:
            raise ExampleError(f"rows are of {len(self.rows)} tables, needs {HASHES}")
        if min(self.rows) < 2:
            raise ExampleError(f"a table has {min(self.rows)} rows, needs 2 or more")

    @property
    def columns(self) -> int:
        """Fields of a line."""
        return self.labelled + INTEGERS + HASHES

    @property
    def tables(self) -> int:
        """Columns of ids."""
        return HASHES

    def read(self, paths: Iterable[str | Path], rejects: Rejects) -> Iterator[Examples]:
        """Yield the examples of files, as `read_criteo`."""
        return read_criteo(paths, self, rejects)

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return {
            "labelled": self.labelled,
            "scale": self.scale.value,
            "rows": None if self.rows is None else list(self.rows),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the layout that `to_fields` described; KeyError, TypeError or ValueError."""
        rows = fields["rows"]
        return cls(
            labelled=fields["labelled"],
            scale=DenseScale(fields["scale"]),
            rows=None if rows is None else tuple(rows),
        )


def read_criteo(
    paths: Iterable[str | Path], layout: CriteoFormat, rejects: Rejects | None = None
) -> Iterator[Examples]:
    """Yield the examples of files, some thousands at once; compressed files are unpacked.

    Parameters
    ----------
    rejects : takes lines that are no examples; None: the first such line is an error.

    Raises
    ------
    ExampleError : a file cannot be read, or more lines are rejected than may be.
    """
    rejects = Rejects() if rejects is None else rejects
    for path in paths:
        yield from _read_file(Path(path), layout, rejects)
    rejects.finish()


def _read_file(path: Path, layout: CriteoFormat, rejects: Rejects) -> Iterator[Examples]:
    import pyarrow as pa

    lines = 0
    remainder = b""
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while block := _block(stream, remainder):
                text, remainder = block
                if text:
                    examples, count = parse_criteo(text, layout, str(path), lines, rejects)
                    lines += count
                    if len(examples):
                        yield examples
    except OSError as error:
        raise ExampleError(f"{path}: cannot be read: {error}") from error


def _block(stream: BinaryIO, remainder: bytes) -> tuple[bytes, bytes] | None:
    """Return whole lines, and the beginning of the next one; None at the end."""
    content = stream.read(_BLOCK_BYTES)
    if not content:
        return (
            (remainder if remainder.endswith(b"\n") else remainder + b"\n", b"")
            if remainder
            else None
        )
    content = remainder + content
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def parse_criteo(
    lines: bytes, layout: CriteoFormat, source: str, line: int, rejects: Rejects
) -> tuple[Examples, int]:
    """Return the examples of some lines, and the number of lines.

    Parameters
    ----------
    source, line : the file, and its lines before these, for messages.
    """
    text = np.frombuffer(lines, np.uint8)
    ends, fields, regular = split_lines(text, layout.columns)
    first_id = layout.labelled + INTEGERS
    integers = decimals(text, _columns(fields, 0, first_id))
    hashes = hexadecimals(text, _columns(fields, first_id, layout.columns))
    wrong = np.concatenate([_wrong_integers(integers, layout), hashes.wrong], axis=1)
    wrong |= np.pad(hashes.numbers >= MISSING, ((0, 0), (first_id, 0)))
    accepted = ~wrong.any(axis=1)
    rejects.count(len(ends))
    if not (accepted.all() and regular.all()):
        for index, column in _rejected(regular, wrong):
            begin = ends[index - 1] if index else 0
            content = lines[begin : ends[index]].rstrip(b"\r\n")
            rejects.reject(source, line + index + 1, _reason(content, column, layout), content)
    labels = integers.numbers[accepted, 0].astype(np.float32) if layout.labelled else None
    dense = layout.scale.apply(integers.numbers[accepted, layout.labelled :])
    ids = _ids(hashes, layout)[accepted]
    return (
        Examples(
            labels=labels,
            dense=dense,
            ids=tuple(np.ascontiguousarray(column) for column in ids.T),
            lengths=(None,) * HASHES,
        ),
        len(ends),
    )


def _columns(fields: Spans, start: int, stop: int) -> Spans:
    return Spans(fields.starts[:, start:stop], fields.ends[:, start:stop])


def _wrong_integers(integers: Numbers, layout: CriteoFormat) -> NDArray[np.bool_]:
    wrong = integers.wrong.copy()
    if layout.labelled:
        label = integers.numbers[:, 0]
        wrong[:, 0] |= integers.empty[:, 0] | ((label != 0) & (label != 1))
    return wrong


def _ids(hashes: Numbers, layout: CriteoFormat) -> NDArray[np.int64]:
    if layout.rows is None:
        return np.where(hashes.empty, MISSING, hashes.numbers)
    hashed = 1 + hashes.numbers % (np.array(layout.rows) - 1)
    return np.where(hashes.empty, 0, hashed)


def _rejected(
    regular: NDArray[np.bool_], wrong: NDArray[np.bool_]
) -> Iterator[tuple[int, int | None]]:
    """Yield the number of each rejected line and its first wrong column, None: their number."""
    positions = np.flatnonzero(regular)
    columns: dict[int, int | None] = {int(row): None for row in np.flatnonzero(~regular)}
    for row in np.flatnonzero(wrong.any(axis=1)):
        columns[int(positions[row])] = int(wrong[row].argmax())
    yield from sorted(columns.items())


def _reason(content: bytes, column: int | None, layout: CriteoFormat) -> str:
    fields = content.split(b"\t")
    if column is None:
        return f"has {len(fields)} columns, needs {layout.columns}"
    field = fields[column].decode("utf-8", "replace")
    if column == 0 and layout.labelled:
        expected = "0 or 1"
    elif column >= layout.labelled + INTEGERS:
        expected = "a hash of up to 8 hexadecimal digits"
    else:
        expected = "an integer of up to 18 digits"
    return f"column {column + 1} is {field!r}, needs {expected}"
