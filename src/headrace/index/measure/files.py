"""Traces in files: NumPy archives, Parquet tables, and key sets of NumPy and SOSD.

- ``.npz``: arrays ``keys`` and ``operations`` of one length, and ``loaded`` if there are keys
  before the first operation.
- ``.parquet``: columns ``key`` and ``operation``, a number or a name; the rows of operation
  ``load`` (4) are the keys before the first operation.
- ``.npy``: one row of keys; other files: SOSD's binary form, a 64-bit count and as many keys, of 32
  bits where the file's name ends with ``uint32``. They have no operations: a workload is made of
  them (`headrace.index.measure.workload`).
"""

import tokenize
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.files import refuse_pipe
from headrace.index.errors import TraceError
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.trace import LOAD, OPERATIONS, Trace

_NAMES = (*OPERATIONS, "load")
_DAMAGE = (
    *(ValueError, EOFError, SyntaxError, tokenize.TokenError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError),
)
"""Errors of NumPy's readers for other bytes than theirs: of arrays and their headers, which are
Python's text; of archives, the last for encrypted ones and compressions that are unknown."""


def read_trace(path: str | Path, workload: Workload | None = None) -> Trace:
    """Read a trace, or a key set, of which a workload is made.

    Raises
    ------
    TraceError : naming the file, the array, what was found and what is needed; the file has
        operations, and a workload other than the default is given.
    """
    path = Path(path)
    refuse_pipe(path, TraceError)  # its readers ask for the place in a file
    try:
        if path.suffix in (".npz", ".parquet"):
            if workload is not None and replace(workload, seed=0) != Workload():
                raise TraceError("has operations: those of a workload are for keys alone")
            return _archive(path) if path.suffix == ".npz" else _table(path)
        keys = _array(path) if path.suffix == ".npy" else _sosd(path)
        return workload_trace(keys, workload or Workload())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except _DAMAGE as error:
        raise TraceError(f"{path}: is not {path.suffix[1:] or 'a key set'}: {error}") from error


def _array(path: Path) -> np.ndarray:
    stored: Any = np.load(path, allow_pickle=False)
    if not isinstance(stored, np.ndarray):
        stored.close()
        raise TraceError("is an archive of arrays, needs one array: name it .npz")
    return stored


def _archive(path: Path) -> Trace:
    stored: Any = np.load(path, allow_pickle=False)  # by its content, whatever the name
    if isinstance(stored, np.ndarray):
        raise TraceError("is one array, needs an archive of keys and operations: name it .npy")
    with stored as arrays:
        for name in arrays:
            if name not in ("keys", "operations", "loaded"):
                raise TraceError(f"array '{name}' is unknown, needs keys, operations and loaded")
        for name in ("keys", "operations"):
            if name not in arrays:
                raise TraceError(f"array '{name}' is missing, needs keys and operations")
        return Trace.of(arrays["keys"], arrays["operations"], arrays.get("loaded"))


def _table(path: Path) -> Trace:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except pa.ArrowException as error:
        raise TraceError(f"is not Parquet: {error}") from error
    columns: dict[str, Any] = {}
    for name in ("operation", "key"):
        if name not in table.column_names:
            raise TraceError(f"column '{name}' is missing, needs operation and key")
        if table.column(name).null_count:
            raise TraceError(f"column '{name}' has {table.column(name).null_count} empty cells")
        columns[name] = table.column(name).to_numpy()
    numbers = _numbers(columns["operation"])
    is_loaded = numbers == LOAD
    keys = columns["key"]
    return Trace.of(keys[~is_loaded], numbers[~is_loaded], keys[is_loaded])


def _numbers(operations: np.ndarray) -> np.ndarray:
    if operations.dtype.kind in "ui":
        return operations
    names, places = np.unique(operations.astype(str), return_inverse=True)
    unknown = [str(name) for name in names if name not in _NAMES]
    if unknown:
        raise TraceError(f"column 'operation' has '{unknown[0]}', needs {', '.join(_NAMES)}")
    return np.array([_NAMES.index(name) for name in names], dtype=np.uint8)[places]


def _sosd(path: Path) -> np.ndarray:
    kind = np.uint32 if path.name.endswith("uint32") else np.uint64
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = np.fromfile(file, dtype="<u8", count=1)
        count = int(head[0]) if len(head) else 0
        needed = 8 + count * np.dtype(kind).itemsize
        if not len(head) or file_bytes != needed:
            raise TraceError(
                f"has {file_bytes} bytes, needs {needed if len(head) else 8}: a 64-bit count and "
                f"that many keys of {np.dtype(kind).itemsize * 8} bits (SOSD's form), or a name "
                "that ends with .npz, .npy or .parquet"
            )
        return np.fromfile(file, dtype=np.dtype(kind).newbyteorder("<"), count=count)
