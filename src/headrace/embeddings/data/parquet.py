"""Parquet files of examples, whose columns the user names."""

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.data.criteo import check_rows
from headrace.embeddings.data.dense import DenseScale
from headrace.embeddings.data.examples import Examples, merged_examples
from headrace.embeddings.data.parquet_columns import (
    IdColumn,
    IdForms,
    check_schema,
    id_column,
    number_column,
)
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.errors import ExampleError
from headrace.facades import public_value

_ROWS = 1 << 14
"""Converted at once: a row group may have millions."""

_BUFFER_BYTES = 1 << 18
"""Read ahead of every column: row groups are not read in whole."""


@public_value("headrace.embeddings")
class ParquetFormat:
    """Columns of Parquet files, by their names.

    An id is an integer of 0 to 2^63 - 1, or the hash of a text, which is the same everywhere:
    FNV-1a of 64 bits over its bytes, mixed by the last steps of SplitMix64, without the lowest bit.
    A missing id is 2^63 - 1. Lists are bags of ids; a missing list is an empty one.

    Attributes
    ----------
    ids : columns of ids, one for each table: integers, texts, or lists of these.
    label : column of labels, any finite numbers of 32 bits; None: examples have none.
    dense : columns of features that are numbers; a missing one is 0.
    scale : of these.
    rows : of each table: integers are below them, hashes of texts are taken modulo rows - 1, and
        row 0 is that of missing texts; None: ids are not limited.

    Raises
    ------
    ExampleError : there is no column of ids, or `rows` are not those of their tables.
    """

    ids: tuple[str, ...] = ()
    label: str | None = "label"
    dense: tuple[str, ...] = ()
    scale: DenseScale = DenseScale.NONE
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.ids:
            raise ExampleError("no column of ids is named, needs one or more")
        check_rows(self.rows, len(self.ids))

    @property
    def tables(self) -> int:
        """Columns of ids."""
        return len(self.ids)

    def read(self, paths: Iterable[str | Path], rejects: Rejects) -> Iterator[Examples]:
        """Yield the examples of files, some thousands at once, of one row group after the other.

        Raises
        ------
        ExampleError : a file cannot be read, has no such columns, or they have other types; more
            rows are rejected than may be.
        """
        forms = IdForms()
        for path in map(Path, paths):
            for row, _, batch in _row_runs(path, self, forms, lambda _first, _stop: True):
                examples = _examples(batch, self, str(path), row, rejects)
                if len(examples):
                    yield examples
        rejects.finish()

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return {
            "ids": list(self.ids),
            "label": self.label,
            "dense": list(self.dense),
            "scale": self.scale.value,
            "rows": None if self.rows is None else list(self.rows),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the layout that `to_fields` described; KeyError, TypeError or ValueError."""
        rows = fields["rows"]
        return cls(
            ids=tuple(fields["ids"]),
            label=fields["label"],
            dense=tuple(fields["dense"]),
            scale=DenseScale(fields["scale"]),
            rows=None if rows is None else tuple(rows),
        )


def matching_columns(path: str | Path, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return a file's columns that have some names, in which * stands for any characters.

    They are in the order of the patterns, then in that of the file.

    Raises
    ------
    ExampleError : the file cannot be read, or has no column of such a name.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        names: list[str] = parquet.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise ExampleError(f"{path}: cannot be read: {error}") from error
    columns: list[str] = []
    for pattern in patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise ExampleError(
                f"{path}: has no column {pattern!r}, has {', '.join(names) or 'none'}"
            )
        columns.extend(matches)
    return tuple(dict.fromkeys(columns))


def parquet_batches(
    paths: Iterable[str | Path],
    layout: ParquetFormat,
    size: int,
    is_own: Callable[[int], bool],
    rejects: Rejects,
    *,
    drop_last: bool = False,
) -> Iterator[Examples]:
    """Yield some of the batches of `size` rows; rejected rows are left out of their batch.

    Row groups without a row of these batches are not read.

    Parameters
    ----------
    is_own : takes a batch's number; True where the batch is among them.
    drop_last : whether a last batch of fewer rows is left out.

    Raises
    ------
    ExampleError : as `ParquetFormat.read`.
    """
    before = 0
    forms = IdForms()
    pending: list[Examples] = []
    for path in map(Path, paths):
        rows = 0
        is_needed = partial(_any_own, is_own, size, before)
        for row, count, batch in _row_runs(path, layout, forms, is_needed):
            rows = row + count
            if batch is None:
                continue
            start = row
            while start < rows:
                number, offset = divmod(before + start, size)
                stop = min(rows, start + size - offset)
                if is_own(number):
                    part = batch.slice(start - row, stop - start)
                    pending.append(_examples(part, layout, str(path), start, rejects))
                    if (before + stop) % size == 0:
                        yield merged_examples(pending)
                        pending = []
                start = stop
        before += rows
    if pending and not drop_last:
        yield merged_examples(pending)


def rows_of_file(path: str | Path) -> int:
    """Return the rows of a file.

    Raises
    ------
    ExampleError : it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return parquet.read_metadata(path).num_rows
    except (OSError, pa.ArrowException) as error:
        raise ExampleError(f"{path}: cannot be read: {error}") from error


def _any_own(is_own: Callable[[int], bool], size: int, before: int, first: int, stop: int) -> bool:
    """Return whether rows `first` to `stop` - 1 of a file are in own batches."""
    return any(map(is_own, range((before + first) // size, (before + stop - 1) // size + 1)))


def _row_runs(
    path: Path, layout: ParquetFormat, forms: IdForms, is_needed: Callable[[int, int], bool]
) -> Iterator[tuple[int, int, Any]]:
    """Yield rows of a file: those before them, their number, and they; None where not needed.

    Raises
    ------
    ExampleError : the file cannot be read, or its columns are others, or of another form than in
        earlier files.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    numbers = (*(() if layout.label is None else (layout.label,)), *layout.dense)
    names = list(dict.fromkeys((*numbers, *layout.ids)))
    row = 0
    try:
        schema = parquet.read_schema(path)
        check_schema(str(path), schema, numbers, layout.ids)
        forms.check(str(path), schema, layout.ids)
        # Texts that a file has in a dictionary are hashed once.
        texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
        with parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=_BUFFER_BYTES, read_dictionary=texts
        ) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if not is_needed(row, row + rows):
                    yield row, rows, None
                    row += rows
                    continue
                for batch in file.iter_batches(
                    _ROWS, row_groups=[group], columns=names, use_threads=False
                ):
                    yield row, len(batch), batch
                    row += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise ExampleError(f"{path}: cannot be read: {error}") from error


def _examples(
    batch: Any, layout: ParquetFormat, source: str, row: int, rejects: Rejects
) -> Examples:
    """Return the examples of some rows of a file, of which `row` are before these."""
    rows = (None,) * len(layout.ids) if layout.rows is None else layout.rows
    label = None if layout.label is None else number_column(batch.column(layout.label), None)
    dense = [number_column(batch.column(name), 0.0) for name in layout.dense]
    ids = [
        id_column(batch.column(name), count) for name, count in zip(layout.ids, rows, strict=True)
    ]
    columns = [  # one name can have several
        *([] if label is None or layout.label is None else [(layout.label, label)]),
        *zip(layout.dense, dense, strict=True),
        *zip(layout.ids, ids, strict=True),
    ]
    rejects.count(len(batch))
    accepted = np.ones(len(batch), np.bool_)
    for _, column in columns:
        accepted &= ~column.wrong
    for place in np.flatnonzero(~accepted).tolist():
        name, column = next(named for named in columns if named[1].wrong[place])
        content = {name: _printable(batch.column(name)[place]) for name in batch.schema.names}
        problem = f"column {name!r} is {content[name]!r}, needs {column.expected}"
        rejects.reject(source, row + place + 1, problem, repr(content).encode(), unit="row")
    if not accepted.all():
        ids = [_selected(column, accepted) for column in ids]
    scaled = [layout.scale.apply(column.numbers[accepted]) for column in dense]
    return Examples(
        labels=None if label is None else label.numbers[accepted].astype(np.float32),
        dense=_matrix(scaled, int(accepted.sum())),
        ids=tuple(column.ids for column in ids),
        lengths=tuple(column.lengths for column in ids),
    )


def _printable(scalar: Any) -> Any:
    """Return a value of Arrow for a line of text, also where its own text is none."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return "text that is no UTF-8"


def _matrix(columns: list[NDArray[np.float32]], rows: int) -> NDArray[np.float32]:
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0), np.float32)


def _selected(column: IdColumn, rows: NDArray[np.bool_]) -> IdColumn:
    """Return the ids of some rows."""
    if column.lengths is None:
        return IdColumn(column.ids[rows], None, column.wrong[rows], column.expected)
    return IdColumn(
        column.ids[np.repeat(rows, column.lengths)],
        column.lengths[rows],
        column.wrong[rows],
        column.expected,
    )
