"""Avazu's files of clicks: CSV with a header; files for tests have no column `click`.

The hour of the day is the one number of an example, from 0 to below 1, and the 21 columns from C1
on are its ids: hashes of 32 bits, or integers. A field of these may be empty: its id is `MISSING`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace._native import FieldKind
from headrace.embeddings.data.criteo import check_rows
from headrace.embeddings.data.examples import Examples
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.data.text import LineFormat, parse_lines, text_blocks
from headrace.embeddings.errors import ExampleError
from headrace.facades import public_value

_HASHES = (
    *("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model"),
)
_KINDS: Mapping[str, FieldKind] = {
    "id": FieldKind.SKIPPED,  # of the line
    "click": FieldKind.LABEL,
    "hour": FieldKind.HOUR,
    "C1": FieldKind.CODE,
    "banner_pos": FieldKind.CODE,
    **dict.fromkeys(_HASHES, FieldKind.HASH),
    "device_type": FieldKind.CODE,
    "device_conn_type": FieldKind.CODE,
    **{f"C{number}": FieldKind.CODE for number in range(14, 22)},
}
HEADER = tuple(_KINDS)
TABLES = tuple(name for name in HEADER if name not in ("id", "click", "hour"))
"""Columns of ids."""


def field_kind(column: str) -> FieldKind:
    """Return the kind of fields of a column."""
    return _KINDS[column]


@public_value("headrace.embeddings")
class AvazuFormat:
    """Layout of files of Avazu's format, and numbers of rows for their ids.

    Attributes
    ----------
    labelled : whether clicks are read: files then need that column.
    rows : of each table: ids are taken modulo rows - 1, row 0 is that of empty fields; None: an id
        is the hash or the integer itself, and 2^32 + n of a negative integer -n.
    """

    labelled: bool = True
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_rows(self.rows, len(TABLES))

    @property
    def tables(self) -> int:
        """Columns of ids."""
        return len(TABLES)

    def read(self, paths: Iterable[str | Path], rejects: Rejects) -> Iterator[Examples]:
        """Yield the examples of files, some thousands at once; compressed files are unpacked.

        Raises
        ------
        ExampleError : a file cannot be read or has another header, or more lines are rejected than
            may be.
        """
        for path in map(Path, paths):
            yield from _read_file(path, self, rejects)
        rejects.finish()

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return {
            "labelled": self.labelled,
            "rows": None if self.rows is None else list(self.rows),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the layout that `to_fields` described; KeyError, TypeError or ValueError."""
        rows = fields["rows"]
        return cls(labelled=fields["labelled"], rows=None if rows is None else tuple(rows))


def _read_file(path: Path, layout: AvazuFormat, rejects: Rejects) -> Iterator[Examples]:
    header: bytes | None = None
    line = 1
    for block in text_blocks(path):
        text = block
        if header is None:
            header, _, text = block.partition(b"\n")
        examples, lines = parse_avazu(text, header, layout, str(path), line, rejects)
        line += lines
        if len(examples):
            yield examples


def parse_avazu(
    text: bytes, header: bytes, layout: AvazuFormat, source: str, line: int, rejects: Rejects
) -> tuple[Examples, int]:
    """Return the examples of some lines, and the number of lines.

    Parameters
    ----------
    header : the file's first line.
    source, line : the file, and its lines before these, for messages.

    Raises
    ------
    ExampleError : the header is another one, or more lines are rejected than may be.
    """
    fields = _lines(source, header.rstrip(b"\r\n").decode("utf-8", "replace"), layout)
    numbers, lines = parse_lines(text, fields, source, line, rejects)
    labels, hours, ids = np.split(numbers, (layout.labelled, layout.labelled + 1))
    examples = Examples(
        labels=labels[0].astype(np.float32) if layout.labelled else None,
        dense=(hours[0] % 100 / 24).astype(np.float32)[:, None],
        ids=tuple(ids),
        lengths=(None,) * len(TABLES),
    )
    return examples, lines


def _lines(source: str, header: str, layout: AvazuFormat) -> LineFormat:
    names = header.split(",")
    expected = tuple(name for name in HEADER if name != "click" or "click" in names)
    for place, (name, needed) in enumerate(zip(names, expected, strict=False)):
        if name != needed:
            raise ExampleError(
                f"{source}: line 1: column {place + 1} of the header is {name!r}, needs {needed!r}"
            )
    if len(names) != len(expected):
        raise ExampleError(
            f"{source}: line 1: the header has {len(names)} columns, needs {len(expected)}"
        )
    if layout.labelled and "click" not in names:
        raise ExampleError(f"{source}: has no column 'click', as files for tests; needs labels")
    kinds = dict(_KINDS)
    if not layout.labelled:
        kinds["click"] = FieldKind.SKIPPED
    rows = dict(
        zip(TABLES, (0,) * len(TABLES) if layout.rows is None else layout.rows, strict=True)
    )
    return LineFormat(
        separator=",",
        kinds=tuple(kinds[name] for name in names),
        rows=tuple(rows.get(name, 0) for name in names),
    )
