"""Tables of embedding rows in files and as tensors: import and export between epochs.

A table's file has the columns `id`, rising, and `row`: the numbers that the model reads, or with
the optimizer's state behind them; then also `dim`, how many the model reads, and `steps`, of
training so far, by which some optimizers weigh the state: Parquet's metadata, or numbers of
NumPy's. A folder of tables has one for each, by name, in which a slash is "%2F" and a percent sign
"%25".
"""

import zipfile
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.tables import TableGroup
from headrace.files import whole_files

TableFileFormat = Literal["parquet", "npz"]

BLOCK = 1 << 16
"""Rows that move at once."""

_MOST_ROWS = 1 << 27
"""Of a table of which there is a tensor of all rows."""

_STEPS, _DIM = "steps", "dim"
"""Numbers beside rows that have an optimizer's state."""

_Rows = tuple[NDArray[np.int64], NDArray[Any]]


def table_blocks(servers: ServerConnections, table: int) -> Iterator[_Rows]:
    """Yield ids, rising, and rows of a table that exist at the servers."""
    after = -1
    while True:
        ids, rows = servers.export(table, after, BLOCK)
        if len(ids):
            yield ids, rows
            after = int(ids[-1])
        if len(ids) < BLOCK:
            return


def whole_table(
    servers: ServerConnections, description: JobDescription, table: int
) -> NDArray[Any]:
    """Return the numbers of all rows of a table that the model reads: [rows, dim].

    Rows that training has not used have their initial values.

    Raises
    ------
    EmbeddingError : the table has more than 2^27 rows: its files have those that exist.
    """
    shape = description.tables[table]
    if not 0 < shape.rows <= _MOST_ROWS:
        raise EmbeddingError(
            f"table {shape.name} has too many rows for a tensor of all: save those that exist to "
            "files"
        )
    number, group = table_group_of(description, table)
    index = group.tables.index(table)
    rows = np.empty((shape.rows, group.dim), group.dtype)
    for start in range(0, shape.rows, BLOCK):
        ids = np.arange(start, min(start + BLOCK, shape.rows))
        ends = np.where(np.arange(len(group.tables)) < index, 0, len(ids))
        rows[start : start + len(ids)] = servers.read(number, ids, ends)[:, : group.dim]
    return rows


def save_tables(
    servers: ServerConnections,
    description: JobDescription,
    folder: Path,
    file_format: TableFileFormat,
    *,
    steps: int | None,
) -> None:
    """Write a file for each table, of the rows that exist; if it fails, files are as they were.

    Parameters
    ----------
    steps : of training, with which rows have the optimizer's state; None: they are without it.

    Raises
    ------
    EmbeddingError : there is no such format, or a file cannot be written.
    """
    if file_format not in get_args(TableFileFormat):
        formats = " or ".join(get_args(TableFileFormat))
        raise EmbeddingError(f"file_format is {file_format!r}, needs {formats}")
    write = _write_parquet if file_format == "parquet" else _write_npz
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_files() as opened:  # else some tables may be of an earlier save
            for number, table in enumerate(description.tables):
                _, group = table_group_of(description, number)
                width = group.dim if steps is None else group.width
                beside = {} if steps is None else {_STEPS: steps, _DIM: group.dim}
                blocks = ((ids, rows[:, :width]) for ids, rows in table_blocks(servers, number))
                with opened(folder / _file_name(table.name, file_format)) as file:
                    write(file, blocks, width, group.dtype, beside)
    except OSError as error:
        reason = error.strerror or error
        raise EmbeddingError(f"{folder}: tables cannot be written: {reason}") from error


def load_tables(
    servers: ServerConnections,
    description: JobDescription,
    folder: Path,
    steps: int,
    names: Collection[str] | None = None,
) -> int:
    """Write the rows of the tables' files to the servers.

    Return the training steps of the optimizer's state that the files have; `steps` if they have
    none.

    Parameters
    ----------
    names : of the tables that are loaded; None: all.

    Raises
    ------
    EmbeddingError : there is no table of a name; a table has no file there, one that is not as
        `save_tables` writes it, or one with rows of another width; an id is outside the table.
    """
    sources = {
        number: _source(folder, description.tables[number].name)
        for number in _numbers_of(description, names)
    }
    of_states: list[int] = []
    for number, path in sources.items():
        table = description.tables[number]
        _, group = table_group_of(description, number)
        beside = _numbers_beside(path)
        has_state = False
        for ids, rows in read_rows(path):
            width = rows.shape[1]
            _check_width(path, table.name, group, width, beside.get(_DIM))
            has_state = width == group.width > group.dim
            if len(ids) and (ids.min() < 0 or (table.rows and ids.max() >= table.rows)):
                raise EmbeddingError(
                    f"{path}: has ids of {ids.min()} to {ids.max()}, table {table.name} needs "
                    f"{f'0 to {table.rows - 1}' if table.rows else '0 or more'}"
                )
            servers.load(number, ids, np.ascontiguousarray(rows, group.dtype))
        if has_state and _STEPS in beside:
            of_states.append(beside[_STEPS])
    return max(of_states, default=steps)


def _numbers_of(description: JobDescription, names: Collection[str] | None) -> list[int]:
    """Return the numbers of the tables of some names; EmbeddingError if there is none of one."""
    tables = [table.name for table in description.tables]
    if names is None:
        return [*range(len(tables))]
    if isinstance(names, str) or not set(names) <= set(tables):
        raise EmbeddingError(
            f"tables to load are {names!r}, needs a list of some of {', '.join(tables)}"
        )
    return [number for number, table in enumerate(tables) if table in names]


def _check_width(path: Path, table: str, group: TableGroup, width: int, dim: int | None) -> None:
    """Check the width of rows in a file.

    Parameters
    ----------
    dim : numbers of such a row that a model reads; None: the file does not say.

    Raises
    ------
    EmbeddingError : a row has other numbers than the table's, or the state of another optimizer.
    """
    if dim in (None, group.dim) and width in (group.dim, group.width):
        return
    numbers, remedy = f"{width} numbers", ""
    if dim is not None and dim < width:
        numbers = f"{dim} numbers and {width - dim} of an optimizer's state"
        remedy = ": save them without state for another optimizer" * (dim == group.dim)
    widths = " or ".join(map(str, sorted({group.dim, group.width})))
    raise EmbeddingError(f"{path}: rows have {numbers}, table {table} needs {widths}{remedy}")


def table_group_of(description: JobDescription, table: int) -> tuple[int, TableGroup]:
    """Return the number of a table's group, and the group."""
    return next(
        (number, group) for number, group in enumerate(description.groups) if table in group.tables
    )


def _file_name(table: str, ending: str) -> str:
    """Return the name of a table's file: modules may have slashes in theirs."""
    return f"{table.replace('%', '%25').replace('/', '%2F')}.{ending}"


def _source(folder: Path, name: str) -> Path:
    paths = [folder / _file_name(name, ending) for ending in ("parquet", "npz")]
    existing = [path for path in paths if path.is_file()]
    if len(existing) > 1:
        first, second = (path.name for path in existing)
        raise EmbeddingError(
            f"{folder} has {first} and {second}, needs one of them: remove that of an earlier save"
        )
    if not existing:
        raise EmbeddingError(f"{folder} has no file of table {name}: needs {paths[0].name}")
    return existing[0]


def _write_parquet(
    file: BinaryIO, blocks: Iterator[_Rows], width: int, dtype: str, beside: Mapping[str, int]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = pa.list_(pa.from_numpy_dtype(np.dtype(dtype)), width)
    metadata: Mapping[Any, Any] = {name: str(number) for name, number in beside.items()}
    schema = pa.schema([("id", pa.int64()), ("row", row)], metadata=metadata or None)
    with pq.ParquetWriter(file, schema) as writer:
        for ids, rows in blocks:
            values = pa.array(np.ascontiguousarray(rows).reshape(-1))
            columns = [pa.array(ids), pa.FixedSizeListArray.from_arrays(values, width)]
            writer.write_table(pa.table(columns, schema=schema))


def _write_npz(
    file: BinaryIO, blocks: Iterator[_Rows], width: int, dtype: str, beside: Mapping[str, int]
) -> None:
    parts = list(blocks)
    ids = np.concatenate([np.empty(0, np.int64), *(part for part, _ in parts)])
    rows = np.concatenate([np.empty((0, width), dtype), *(part for _, part in parts)])
    columns: dict[str, Any] = {"id": ids, "row": rows, **beside}
    np.savez(file, **columns)


def read_rows(path: Path) -> Iterator[_Rows]:
    """Yield ids, rising, and rows of a table's file.

    Raises
    ------
    EmbeddingError : it is no file as `save_tables` writes it.
    """
    with _read_errors(path):
        yield from _npz_rows(path) if path.suffix == ".npz" else _parquet_rows(path)


def _numbers_beside(path: Path) -> Mapping[str, int]:
    """Return the numbers beside the rows of a table's file; an earlier version's lacks some."""
    import pyarrow.parquet as pq

    with _read_errors(path):
        if path.suffix == ".npz":
            with path.open("rb") as file, np.load(file, allow_pickle=False) as columns:
                return {name: int(columns[name]) for name in (_STEPS, _DIM) if name in columns}
        metadata = pq.read_schema(path).metadata or {}
        texts = {name: metadata.get(name.encode()) for name in (_STEPS, _DIM)}
        return {name: int(text) for name, text in texts.items() if text is not None}


@contextmanager
def _read_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise EmbeddingError(
            f"{path}: cannot be read as rows, needs integers id and rows of numbers row, as "
            f"batches.save writes them: {error}"
        ) from error


def _npz_rows(path: Path) -> Iterator[_Rows]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as columns:
        ids, rows = columns["id"], columns["row"]
    is_numeric = ids.dtype.kind in "iu" and rows.dtype.kind in "biuf"
    if not is_numeric or rows.ndim != 2 or ids.shape != rows.shape[:1]:
        raise ValueError(f"id is {ids.dtype} {ids.shape}, row {rows.dtype} {rows.shape}")
    for start in range(0, len(ids), BLOCK):
        yield ids[start : start + BLOCK], rows[start : start + BLOCK]


def _parquet_rows(path: Path) -> Iterator[_Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BLOCK, columns=["id", "row"]):
            ids, rows = batch.column("id"), batch.column("row")
            if not pa.types.is_integer(ids.type) or not pa.types.is_fixed_size_list(rows.type):
                raise ValueError(
                    f"id is {ids.type}, row {rows.type}, needs lists of one fixed size"
                )
            yield ids.to_numpy(), rows.flatten().to_numpy().reshape(len(rows), rows.type.list_size)
