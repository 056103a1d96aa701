"""`ShardedIndex`: keys and the rows that they have in a table, for many threads."""

import os
from typing import Any, Self

import numpy as np

from headrace import _native
from headrace.facades import offered_by
from headrace.index.configuration import Configuration
from headrace.index.errors import InvariantError, KeysError
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.columns import (
    checked,
    count_as,
    key_type_of,
    keys_as,
    named_type,
    row_of,
    threads_as,
)
from headrace.index.run.index import native_configuration, structure_of
from headrace.index.tables import KEY_TYPES

NO_ROW = -1
"""Stands for the row of a key that has none."""
_MOST_SHARDS = 256


@offered_by("headrace.index")
class ShardedIndex:
    """A map of keys to rows of a table, which many threads look up and extend at once.

    The index numbers the rows: a new key gets the least row that is free, so rows are 0 to below
    `rows`, and a table of so many rows has room for all keys. Keys are spread over shards by a
    hash; lookups take no lock, and an insertion locks the shard of its key alone. All calls take
    arrays and run without the interpreter's lock.

    A row goes through three states: in use by one key; retired, by `erase`, while threads that
    have looked it up may still read it; free, by `release`, for the next new key.

    Of several threads that insert one key, a single one is told that the key is new: the one that
    writes the row's first contents. Others may read the row before that.

    Parameters
    ----------
    keys : to begin with, each once. Their kind is the index's key type: uint64, int64 or float64.
    rows : their rows, one for each key, each once; None: 0, 1, ... in the order of the keys.
    dtype : key type, if it is not that of `keys`; uint64 if there are no keys.
    shards : 1 to 256, rounded up to a power of two; about twice as many as threads that insert.
    plan : an index plan, its file, or a configuration, of each shard.
    threads : for sorting the keys; default: as many as there are processors.

    Raises
    ------
    KeysError : keys are not numbers, are NaN, appear twice, or are beyond their type; rows are
        negative or appear twice; `shards` is out of range.
    ArtifactError : the file of the plan is none.
    """

    __slots__ = ("_configuration", "_dtype", "_map")

    def __init__(
        self,
        keys: Any = None,
        rows: Any = None,
        *,
        dtype: Any = None,
        shards: int = 16,
        plan: IndexPlan | Configuration | str | os.PathLike[str] | None = None,
        threads: int | None = None,
    ) -> None:
        sorting_threads = threads_as(threads)
        if keys is None and rows is not None:
            raise KeysError("rows are given without keys")
        numbers = None if keys is None else row_of("keys", keys)
        if dtype is not None:
            key_type = named_type("dtype", dtype, KEY_TYPES)
        else:
            key_type = "uint64" if numbers is None else key_type_of(numbers)
        self._dtype = np.dtype(key_type)
        self._configuration = structure_of(Configuration() if plan is None else plan)[1]
        self._map = checked(
            _native.IndexRows,
            key_type,
            count_as("shards", shards, 1, _MOST_SHARDS),
            native_configuration(self._configuration),
        )
        if numbers is None:
            return
        column = keys_as(numbers, self._dtype)
        first = np.arange(len(column)) if rows is None else _rows_as(rows)
        checked(self._map.build, column, first, sorting_threads)

    @property
    def dtype(self) -> np.dtype:
        """Type of the keys: uint64, int64 or float64."""
        return self._dtype

    @property
    def configuration(self) -> Configuration:
        """Configuration of the leaves of every shard."""
        return self._configuration

    @property
    def shards(self) -> int:
        """Number of shards, a power of two."""
        return self._map.shards()

    @property
    def rows(self) -> int:
        """Rows that a table needs: one more than the largest that is in use or retired."""
        return self._map.rows()

    @property
    def free_rows(self) -> int:
        """Rows below `rows` that new keys get first."""
        return self._map.free_rows()

    @property
    def retired_rows(self) -> int:
        """Rows that `erase` has returned, and that are not released."""
        return self._map.retired_rows()

    @property
    def nbytes(self) -> int:
        """Memory of the shards, in bytes."""
        return self._map.bytes()

    def __len__(self) -> int:
        return self._map.size()

    def __repr__(self) -> str:
        return (
            f"<ShardedIndex of {len(self)} keys, {self._dtype} to {self.rows} rows, "
            f"{self.shards} shards, {self._configuration.name}>"
        )

    def find(self, keys: Any) -> np.ndarray:
        """Return the row (int64) of each key, -1 for a key that has none."""
        column = keys_as(keys, self._dtype)
        rows = np.empty(len(column), np.int64)
        checked(self._map.find, column, rows)
        return rows

    def find_or_insert(self, keys: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the row of each key; keys that have none get one.

        New keys get the least free rows, in the order in which they first appear.

        Returns
        -------
        rows : int64, in the order of the keys; equal keys have one row.
        new : bool, one for each key: it had no row. Of equal keys only the first is new.
        """
        column = keys_as(keys, self._dtype)
        rows = np.empty(len(column), np.int64)
        new = np.empty(len(column), np.bool_)
        checked(self._map.find_or_insert, column, rows, new)
        return rows, new

    def erase(self, keys: Any) -> np.ndarray:
        """Erase keys; return the row (int64) that each had, -1 for a key that had none.

        These rows are retired: no key gets them before `release`.
        """
        column = keys_as(keys, self._dtype)
        rows = np.empty(len(column), np.int64)
        checked(self._map.erase, column, rows)
        return rows

    def release(self, rows: Any) -> None:
        """Let new keys have retired rows, when no thread reads these any more; -1 is left out.

        Raises
        ------
        KeysError : a row is not retired, or appears twice; no row is released.
        """
        numbers = _rows_as(rows)
        checked(self._map.release, numbers[numbers != NO_ROW])

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all keys, ascending, and their rows (int64).

        Of keys that other threads insert or erase meanwhile some are included.
        """
        while True:
            room = len(self) + 1
            keys, rows = np.empty(room, self._dtype), np.empty(room, np.int64)
            count = self._map.scan(keys, rows)
            if count < room:  # else other threads have inserted meanwhile
                return keys[:count], rows[:count]

    def verify(self) -> None:
        """Check every invariant of the structure; not while other threads change it.

        Raises
        ------
        InvariantError : naming the shard's node and the invariant, or the rows.
        """
        try:
            self._map.verify()
        except RuntimeError as error:
            raise InvariantError(str(error)) from error

    def __reduce__(self) -> tuple[Any, ...]:
        keys, rows = self.items()
        return self._restored, (keys, rows, str(self._dtype), self.shards, self._configuration)

    @classmethod
    def _restored(
        cls,
        keys: np.ndarray,
        rows: np.ndarray,
        dtype: str,
        shards: int,
        configuration: Configuration,
    ) -> Self:
        return cls(keys, rows, dtype=dtype, shards=shards, plan=configuration)


def _restored(*content: Any) -> ShardedIndex:  # pyright: ignore[reportUnusedFunction]
    # of pickles of versions before 0.2
    return ShardedIndex._restored(*content)  # pyright: ignore[reportPrivateUsage]


def _rows_as(rows: Any) -> np.ndarray:
    return keys_as(rows, np.dtype(np.int64), "rows")
