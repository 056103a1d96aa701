"""Where an example of a batch comes from, for errors: its file and line, or row."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.data.files import AvazuData, CriteoData, ExampleData, ParquetData
from headrace.embeddings.data.parquet import parquet_batches, rows_of_file
from headrace.embeddings.data.parquet_columns import MISSING
from headrace.embeddings.data.parts import ReaderPart, batch_lines, parsed_lines
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.tables import EmbeddingTable


class OutsideId(NamedTuple):
    """An id that is outside its table, and the example that has it."""

    table: EmbeddingTable
    id: int
    example: int

    def error(self, origin: str) -> EmbeddingError:
        """Return the error that names them.

        Parameters
        ----------
        origin : of the example.
        """
        name, remedy = str(self.id), ""
        if self.id == MISSING:  # no table has as many rows
            name += ", as of a missing value"
            remedy = ": fill it in the data, or name the rows of tables in its layout (rows=)"
        elif self.id >= 0:
            remedy = ": give the table more rows, or the data smaller ids"
        return EmbeddingError(
            f"{origin}: table {self.table.name}: id {name}, needs 0 to {self.table.most_id}{remedy}"
        )


def first_outside(
    ids: Sequence[NDArray[np.int64]],
    lengths: Sequence[NDArray[np.int64] | None],
    tables: Sequence[EmbeddingTable],
) -> OutsideId | None:
    """Return the first id of the first table that has one outside; None: all are inside.

    Parameters
    ----------
    ids, lengths : of every table, as `Examples` has them.
    """
    for table, column, counts in zip(tables, ids, lengths, strict=True):
        most = table.most_id
        if not len(column) or (column.min() >= 0 and column.max() <= most):
            continue
        position = int(np.flatnonzero((column < 0) | (column > most))[0])
        ends = np.arange(1, len(column) + 1) if counts is None else np.cumsum(counts)
        example = int(np.searchsorted(ends, position, side="right"))
        return OutsideId(table, int(column[position]), example)
    return None


def example_origin(data: ExampleData, batch: int, example: int) -> str:
    """Return where an example of a training batch comes from, for errors: "clicks.tsv: line 7".

    Of files the batch is read again; examples of other data, and of files that cannot be read, have
    their numbers alone.

    Parameters
    ----------
    batch : its number in an epoch, as readers number it: rejected lines move no other batch.
    example : its number in the batch.
    """
    part = ReaderPart(reader=batch, readers=batch + 1, first=batch)
    return _origin(data, part, example) or f"batch {batch}, example {example}"


def origin_in_order(data: ExampleData, example: int) -> str:
    """Return where an example comes from, by its number among all that `read` yields."""
    return _origin(data, ReaderPart(), example) or f"example {example}"


def _origin(data: ExampleData, part: ReaderPart, example: int) -> str | None:
    if not isinstance(data, (CriteoData, AvazuData, ParquetData)):
        return None
    rejected = _Rejected()
    try:
        origins = (
            origin for origin in _origins(data, part, rejected) if origin not in rejected.origins
        )
        origin = next(islice(origins, example, None), None)
    except EmbeddingError:
        return None
    unit = "row" if isinstance(data, ParquetData) else "line"
    return None if origin is None else f"{origin[0]}: {unit} {origin[1]}"


class _Rejected(Rejects):
    """Origins of rejected lines, of which there may be any number."""

    def __init__(self) -> None:
        super().__init__(most_share=1.0)
        self.origins: set[tuple[str, int]] = set()

    def reject(
        self, source: str, line: int, problem: str, content: bytes, *, unit: str = "line"
    ) -> None:
        """Note the origin."""
        del problem, content, unit
        self.origins.add((source, line))


def _origins(
    data: CriteoData | AvazuData | ParquetData, part: ReaderPart, rejects: Rejects
) -> Iterator[tuple[str, int]]:
    """Yield files and lines of a part, each after rejected ones up to it have been noted."""
    if isinstance(data, ParquetData):
        batches = parquet_batches(data.paths, data.layout, data.batch, part.has, rejects)
        for batch, _ in zip(count(part.first, part.readers), batches, strict=False):
            yield from _row_origins(data, batch)
        return
    has_header = isinstance(data, AvazuData)
    for runs in batch_lines(data.paths, data.batch, part, has_header=has_header):
        for run in runs:
            parsed_lines(run, data.layout, rejects)
            for number in range(run.text.count(b"\n")):
                yield str(run.path), run.line + number + 1


def _row_origins(data: ParquetData, batch: int) -> Iterator[tuple[str, int]]:
    first, stop = batch * data.batch, (batch + 1) * data.batch
    before = 0
    for path in data.paths:
        rows = rows_of_file(path)
        for row in range(max(0, first - before), min(rows, stop - before)):
            yield path, row + 1
        before += rows
