"""Criteo's files of clicks: a label, 13 integers and 26 hashes a line, separated by tabs.

Kaggle's data set and the 24 days of the Terabyte one have this format; files for tests have no
label. A field may be empty: an integer is 0 then, and a hash is the id `MISSING`, a row of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace._native import MISSING_ID, FieldKind
from headrace.embeddings.data.dense import DenseScale
from headrace.embeddings.data.examples import Examples
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.data.text import LineFormat, parse_lines, text_blocks
from headrace.embeddings.errors import ExampleError
from headrace.facades import public_value

INTEGERS = 13
HASHES = 26
MISSING = MISSING_ID
"""Id of an empty field: hashes have 32 bits."""


@public_value("headrace.embeddings")
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
        check_rows(self.rows, HASHES)

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


def criteo_lines(layout: CriteoFormat) -> LineFormat:
    """Return the fields of a line."""
    label = (FieldKind.LABEL,) * layout.labelled
    kinds = (*label, *(FieldKind.INTEGER,) * INTEGERS, *(FieldKind.HASH,) * HASHES)
    rows = (0,) * HASHES if layout.rows is None else layout.rows
    return LineFormat(
        separator="\t", kinds=kinds, rows=(*(0,) * (layout.labelled + INTEGERS), *rows)
    )


def check_rows(rows: tuple[int, ...] | None, tables: int) -> None:
    """Raise ExampleError unless `rows` are those of so many tables, where they are given."""
    if rows is None:
        return
    if len(rows) != tables:
        raise ExampleError(f"rows are of {len(rows)} tables, needs {tables}")
    if min(rows, default=2) < 2:
        raise ExampleError(f"a table has {min(rows)} rows, needs 2 or more")


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
    for path in map(Path, paths):
        lines = 0
        for text in text_blocks(path):
            examples, count = parse_criteo(text, layout, str(path), lines, rejects)
            lines += count
            if len(examples):
                yield examples
    rejects.finish()


def parse_criteo(
    text: bytes, layout: CriteoFormat, source: str, line: int, rejects: Rejects
) -> tuple[Examples, int]:
    """Return the examples of some lines, and the number of lines.

    Parameters
    ----------
    source, line : the file, and its lines before these, for messages.
    """
    numbers, lines = parse_lines(text, criteo_lines(layout), source, line, rejects)
    labels, integers, hashes = np.split(numbers, (layout.labelled, layout.labelled + INTEGERS))
    return (
        Examples(
            labels=labels[0].astype(np.float32) if layout.labelled else None,
            dense=np.ascontiguousarray(layout.scale.apply(integers).T),
            ids=tuple(hashes),
            lengths=(None,) * HASHES,
        ),
        lines,
    )
