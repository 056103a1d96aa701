"""A trace: the keys that an index holds at first, and the operations on it, in order.

Keys are *codes*: 64-bit unsigned numbers in the order of the keys that they stand for.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headrace.facades import public_value
from headrace.fields import shown
from headrace.files import whole_file
from headrace.index.errors import TraceError
from headrace.index.tables import KEY_TYPES

FIND, INSERT, ERASE, SCAN = range(4)
OPERATIONS = ("find", "insert", "erase", "scan")
"""Names of operations by number. An insert assigns where the key is present; a scan reads on from
its key, `SCAN_LENGTH` keys."""

SCAN_LENGTH = 100

LOAD = len(OPERATIONS)
"""Operation of a row of a table that is a key before the first operation."""

KINDS: Mapping[str, type] = {name: np.dtype(name).type for name in KEY_TYPES}
"""Types of keys."""

_SIGN = np.uint64(1 << 63)
_MOST = np.uint64((1 << 64) - 1)


def encode(keys: Any, what: str = "keys") -> tuple[np.ndarray, str]:
    """Return the codes of keys, and the kind of the keys (a name of `KINDS`).

    Signed numbers have their sign bit inverted; doubles are in the order of IEEE 754, with -0.0 as
    0.0. Narrower numbers are widened.

    Raises
    ------
    TraceError : the keys are not one row of integers or doubles, or one is NaN.
    """
    values = np.asarray(keys)
    if values.ndim != 1:
        raise TraceError(f"{what}: have {values.ndim} dimensions, needs one")
    if values.dtype.kind not in "uif" or values.dtype.itemsize > 8:
        raise TraceError(
            f"{what}: have type {values.dtype}, needs unsigned or signed integers, or floats, of "
            "at most 64 bits"
        )
    if values.dtype.kind == "u":
        return values.astype(np.uint64), "uint64"
    if values.dtype.kind == "i":
        return values.astype(np.int64).view(np.uint64) ^ _SIGN, "int64"
    wide = values.astype(np.float64)
    missing = np.flatnonzero(np.isnan(wide))
    if len(missing):
        raise TraceError(f"{what}: key {missing[0]} is NaN ({len(missing)} are), needs numbers")
    bits = wide.view(np.uint64)
    bits[bits == _SIGN] = 0  # -0.0, by bits: a sum flushes subnormal numbers where that is set
    return bits ^ np.where(bits >> np.uint64(63), _MOST, _SIGN), "float64"


def decode(codes: np.ndarray, kind: str) -> np.ndarray:
    """Return the keys of a kind that codes stand for: the inverse of `encode`."""
    if kind == "uint64":
        return codes.copy()
    if kind == "int64":
        return (codes ^ _SIGN).view(np.int64)
    return (codes ^ np.where(codes >> np.uint64(63), _SIGN, _MOST)).view(np.float64)


@public_value("headrace.index", eq=False)
class Trace:
    """Operations on an index that holds some keys at first.

    Attributes
    ----------
    loaded : codes (uint64) that are present before the first operation, in any order.
    operations : `FIND`, `INSERT` (or assign), `ERASE` or `SCAN` (uint8), in order.
    keys : code (uint64) of each operation; of a scan the first key that it may return.
    kind : type of the keys that the codes stand for, a name of `KINDS`.

    Raises
    ------
    TraceError : naming the array, what was found and what is needed.
    """

    loaded: np.ndarray
    operations: np.ndarray
    keys: np.ndarray
    kind: str = "uint64"

    def __post_init__(self) -> None:
        types = {"loaded": np.uint64, "operations": np.uint8, "keys": np.uint64}
        for name, needed in types.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != needed or array.ndim != 1:
                dtype = getattr(array, "dtype", type(array).__name__)
                raise TraceError(f"{name}: have type {dtype}, needs one row of {needed.__name__}")
        if len(self.operations) != len(self.keys):
            raise TraceError(
                f"operations are {len(self.operations)}, keys {len(self.keys)}: needs one key for "
                "each operation"
            )
        unknown = np.flatnonzero(self.operations > SCAN)
        if len(unknown):
            raise TraceError(
                f"operations: number {unknown[0]} is {self.operations[unknown[0]]}, needs 0 to "
                f"{SCAN} ({', '.join(OPERATIONS)})"
            )
        if self.kind not in KINDS:
            raise TraceError(f"kind is {shown(self.kind)}, needs one of {', '.join(KINDS)}")

    def __repr__(self) -> str:
        return f"<Trace: {len(self.keys):,} operations on {len(self.loaded):,} keys of {self.kind}>"

    @classmethod
    def of(cls, keys: Any, operations: Any, loaded: Any = None) -> "Trace":
        """Return the trace of keys of any number type.

        Raises
        ------
        TraceError : as `encode`, or the keys' types differ.
        """
        codes, kind = encode(keys)
        first, first_kind = encode([] if loaded is None else loaded, "loaded")
        if len(first) and len(codes) and first_kind != kind:
            raise TraceError(f"loaded: have type {first_kind}, but keys {kind}: needs one type")
        numbers = np.asarray(operations)
        if numbers.dtype.kind not in "ui":
            raise TraceError(f"operations: have type {numbers.dtype}, needs integers 0 to {SCAN}")
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) <= SCAN:
            raise TraceError(
                f"operations: go from {numbers.min()} to {numbers.max()}, needs 0 to {SCAN} "
                f"({', '.join(OPERATIONS)})"
            )
        return cls(
            loaded=first,
            operations=numbers.astype(np.uint8),
            keys=codes,
            kind=kind if len(codes) else first_kind,
        )

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def shares(self) -> dict[str, float]:
        """Share of each operation, by its name; all 0 without operations."""
        counts = np.bincount(self.operations, minlength=len(OPERATIONS))
        return {
            name: float(count) / max(len(self), 1)
            for name, count in zip(OPERATIONS, counts, strict=True)
        }

    def final_size(self) -> int:
        """Return the number of keys after the last operation."""
        changes = (self.operations == INSERT) | (self.operations == ERASE)
        codes, inserted = self.keys[changes], self.operations[changes] == INSERT
        keys = distinct(np.concatenate([self.loaded, codes]))
        present = np.zeros(len(keys), dtype=bool)
        present[ranks_in(keys, self.loaded)] = True
        present[ranks_in(keys, codes)] = inserted  # of a key's changes the last is assigned last
        return int(present.sum())

    def save(self, path: str | Path) -> None:
        """Write it to a file that ``headrace index measure`` and the other commands read.

        Parameters
        ----------
        path : ends with ``.npz`` or ``.parquet``.

        Raises
        ------
        TraceError : it ends otherwise, or cannot be written; a file that was there stays as it was.
        """
        path = Path(path)
        if path.suffix not in (".npz", ".parquet"):
            raise TraceError(f"{path}: ends with '{path.suffix}', needs .npz or .parquet")
        write = self.write_arrays if path.suffix == ".npz" else self._write_table
        try:
            with whole_file(path) as file:
                write(file)
        except OSError as error:
            raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error

    def write_arrays(self, file: BinaryIO) -> None:
        """Write what `save` writes to a file whose name ends with ``.npz``."""
        np.savez(
            file,
            loaded=decode(self.loaded, self.kind),
            operations=self.operations,
            keys=decode(self.keys, self.kind),
        )

    def _write_table(self, file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        codes = np.concatenate([self.loaded, self.keys])
        numbers = np.full(len(codes), LOAD, dtype=np.uint8)
        numbers[len(self.loaded) :] = self.operations
        keys = decode(codes, self.kind)
        parquet.write_table(pa.table({"operation": numbers, "key": keys}), file)


def distinct(codes: np.ndarray) -> np.ndarray:
    """Return the distinct codes, ascending: `np.unique`, which hashes and takes longer."""
    ordered = np.sort(codes)
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def ranks_in(keys: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return for each code how many of the ascending `keys` are below it."""
    order = np.argsort(codes)  # neighbours share cache lines of the keys
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[order] = np.searchsorted(keys, codes[order])
    return ranks
