"""Indexes that are kept in a folder: what is committed survives the end of the process."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace import _native
from headrace._native import DurableBatch as NativeBatch
from headrace.errors import ForkError
from headrace.facades import offered_by
from headrace.files import write_whole
from headrace.forks import ThreadLock
from headrace.index.errors import FolderError, KeysError
from headrace.index.run.columns import (
    count_as,
    equal_number,
    is_row,
    keys_as,
    named_type,
    values_as,
)
from headrace.index.run.index import Index
from headrace.index.run.keyed import KeyedRows
from headrace.index.run.mapping import pairs_of

BLOCK = 1 << 16
"""Keys that iteration reads at once."""
_TYPES_FILE = "types.json"
_KEYS = ("uint64", "int64", "float64")
_LAST = (1 << 64) - 1
_FORMAT = 1


def open(  # noqa: A001 - as `dbm.open`
    folder: str | os.PathLike[str],
    *,
    key: Any = None,
    value: Any = None,
    read_only: bool = False,
    recover: bool = False,
    checkpoint_log_bytes: int = 64 << 20,
) -> "DurableIndex":
    """Open the index that a folder keeps, or create it.

    Parameters
    ----------
    key, value : types of keys and values: uint64, int64 or float64. None: those of the folder, or
        uint64 and int64 of a new one.
    read_only : read what was committed, also while another process writes: no lock is taken. The
        index is as of now; `DurableIndex.refresh` reads what was committed since.
    recover : after a loss of power, open with what lies before groups that were committed without
        `sync` and are lost in part, and after a log was cut or removed with what is left of it.
    checkpoint_log_bytes : a snapshot is written in the background once the logs have so many bytes,
        and as many as the last one: it bounds the time of the next opening. 0: never.

    Raises
    ------
    KeysError : `key` or `value` is none of these types, or not that of the folder.
    FolderError : the folder is open for writing already, a file is damaged or missing (the message
        names it and the offset), or the folder cannot be read or written.
    """
    path = _named_path(folder)
    log_bytes = min(count_as("checkpoint_log_bytes", checkpoint_log_bytes, 0), _LAST)
    if not read_only:
        return _open_to_write(path, key, value, recover, log_bytes)
    if recover:
        raise KeysError("a folder is recovered by writing: open it without read_only")
    return _open_to_read(path, key, value)


def _open_to_read(path: Path, key: Any, value: Any) -> "DurableIndex":
    while True:
        stored = _stored_types(path)
        if stored is None and (key is None or value is None) and path.is_dir():
            raise FolderError(
                f"{path}: has no {_TYPES_FILE}: it is being created, or was made in C++; open it "
                "again, or give key and value"
            )
        key_type, value_type = _agreed_types(key, value, stored)
        native = _done(_native.DurableReader, str(path), key_type)
        if _stored_types(path) == stored:  # else another process has created or replaced it since
            return DurableIndex(path, native, key_type, value_type, read_only=True)


def _open_to_write(
    path: Path, key: Any, value: Any, recover: bool, log_bytes: int
) -> "DurableIndex":
    while True:
        stored = _stored_types(path)
        key_type, value_type = _agreed_types(key, value, stored)
        native = _done(_native.DurableRows, str(path), key_type, recover, log_bytes)
        with ExitStack() as failing:
            failing.callback(native.close)
            if _stored_types(path) != stored:
                continue  # another process has created or replaced it since
            if stored is None:
                if (key is None or value is None) and native.groups() + native.size() > 0:
                    raise FolderError(
                        f"{path}: has rows and no {_TYPES_FILE}, as where it was made in C++: give "
                        "key and value"
                    )
                _store_types(path, {"format": _FORMAT, "key": key_type, "value": value_type})
            failing.pop_all()
            return DurableIndex(path, native, key_type, value_type, read_only=False)


def _named_path(folder: str | os.PathLike[str]) -> Path:
    if os.fspath(folder) == "":
        raise FolderError("the name of the folder is empty")
    try:
        path = Path(folder).absolute()  # files are opened by it, also after a change of directory
    except FileNotFoundError:
        raise FolderError(f"{folder}: the working directory is gone: change to another") from None
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FolderError(f"{str(path)!r}: the name is no UTF-8, needs one that is") from None
    return path


@offered_by("headrace.index")
class DurableBatch:
    """Changes of a durable index that are committed as one group: all survive, or none.

    `DurableIndex.batch` makes one. As a context it commits at the end, unless an exception leaves
    the block. Threads may share a batch: each call holds its lock.
    """

    __slots__ = ("_changes", "_index", "_lock", "_sync")

    def __init__(self, index: "DurableIndex", native: NativeBatch, sync: bool) -> None:
        self._index = index
        self._changes = native
        self._lock = ThreadLock()
        self._sync = sync

    def insert(self, keys: Any, values: Any) -> None:
        """Insert a key or an array of keys, or assign their values, as of the commit."""
        column = keys_as(keys, self._index.dtype)
        data = values_as(values, self._index.value_dtype, len(column))
        assert data is not None
        with self._lock:
            _done(self._changes.put, column, data.view(np.uint64))

    def erase(self, keys: Any) -> None:
        """Erase a key or an array of keys, as of the commit; absent ones are skipped."""
        column = keys_as(keys, self._index.dtype)
        with self._lock:
            _done(self._changes.erase, column)

    def __len__(self) -> int:
        """Return the number of changes."""
        with self._lock:
            return self._changes.size()

    def commit(self) -> None:
        """Commit the changes as one group; the batch is empty after."""
        with self._lock:
            self._index._commit(self._changes, self._sync)  # pyright: ignore[reportPrivateUsage]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.commit()


@offered_by("headrace.index")
class DurableIndex(KeyedRows):
    """An ordered map of numbers to numbers that a folder keeps: `headrace.index.open` makes one.

    Every change is committed as a group. When a commit returns, the group survives the end of the
    process; with `sync`, a loss of power, too. One process writes; others open the folder with
    ``read_only=True``. Threads may share an index: each call holds its lock.

    In a child of a fork every member raises `ForkError` but `close`, which does nothing there;
    indexes that only read work on as copies.
    """

    __slots__ = ("_dtype", "_native", "_path", "_read_only", "_value_dtype")

    def __init__(
        self, path: Path, native: Any, key_type: str, value_type: str, *, read_only: bool
    ) -> None:
        self._path = path
        self._native = native
        self._dtype = np.dtype(key_type)
        self._value_dtype = np.dtype(value_type)
        self._read_only = read_only

    # -- properties --------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def dtype(self) -> np.dtype:
        """Type of the keys."""
        return self._dtype

    @property
    def value_dtype(self) -> np.dtype:
        """Type of the values."""
        return self._value_dtype

    @property
    def read_only(self) -> bool:
        """True: it was opened to read alone."""
        return self._read_only

    @property
    def groups(self) -> int:
        """Number of groups that were committed ever, or read so far."""
        return _done(self._open.groups)

    def __len__(self) -> int:
        return _done(self._open.size)

    def __repr__(self) -> str:
        if self._native is None:
            return f"<closed DurableIndex in {self._path}>"
        mode = ", read-only" if self._read_only else ""
        return (
            f"<DurableIndex of {len(self)} keys, {self._dtype} to {self._value_dtype}, "
            f"in {self._path}{mode}>"
        )

    # -- lookups -----------------------------------------------------------------------------------

    def find(self, keys: Any, default: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of keys, `default` (None: 0) for absent ones, and which are present."""
        column = keys_as(keys, self._dtype)
        values = np.empty(len(column), self._value_dtype)
        present = np.empty(len(column), np.bool_)
        _done(self._open.find, column, values.view(np.uint64), present)
        if default is not None:
            values[~present] = values_as(default, self._value_dtype, 1)
        return values, present

    def get(self, keys: Any, default: Any = None) -> Any:
        """Return the value of one key or `default`, or of each of an array (None: 0)."""
        if is_row(keys):
            return self.find(keys, default)[0]
        values, present = self.find(keys)
        return values[0].item() if present[0] else default

    def contains(self, keys: Any) -> Any:
        """Return whether one key is present, or an array of bool for an array of keys."""
        present = self.find(keys)[1]
        return present if is_row(keys) else bool(present[0])

    def __contains__(self, key: Any) -> bool:
        if isinstance(key, list | np.ndarray):
            raise KeysError(f"key is {key!r}, needs one key: `contains` takes arrays")
        if is_row(key):
            return False
        number = equal_number(key, self._dtype)
        try:
            return bool(self.contains(key if number is None else number))
        except KeysError:
            return False

    def __getitem__(self, keys: Any) -> Any:
        """Return the value of one key, or of each of an array.

        Raises
        ------
        KeyError : a key is absent; of an array the first such one is named.
        """
        column = keys_as(keys, self._dtype)
        values, present = self.find(column)
        if not present.all():
            raise KeyError(column[np.argmin(present)].item())
        return values if is_row(keys) else values[0].item()

    # -- in order ----------------------------------------------------------------------------------

    def scan(self, first: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first `count` keys that are not below `first`, ascending, and their values."""
        most, code = count_as("count", count, 0), self._code(first, 0)
        while True:
            room = min(most, len(self) + 1)
            keys, values = self._scan(code, _LAST, room)
            if len(keys) < room or room == most:
                return keys, values
            # full although there was room for all: other threads have committed meanwhile

    def range(self, low: Any = None, high: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys from `low` to below `high`, ascending, and their values.

        None: without that bound. Long ranges are read in blocks: a group may be committed between.
        """
        blocks = list(self.blocks(low, high))
        if not blocks:
            return np.empty(0, self._dtype), np.empty(0, self._value_dtype)
        keys, values = zip(*blocks, strict=True)
        return np.concatenate(keys), np.concatenate(values)

    def blocks(
        self, low: Any = None, high: Any = None, size: int = BLOCK
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterate over a range in blocks of at most `size` keys, ascending, and their values."""
        most = min(count_as("size", size, 1), len(self) + 1)
        first, end = self._code(low, 0), self._code(high, _LAST + 1)
        while first < end:
            keys, values = self._scan(first, end - 1, most)
            if len(keys):
                yield keys, values
            if len(keys) < most:
                return
            first = self._code(keys[-1], 0) + 1

    def __iter__(self) -> Iterator[Any]:
        for keys, _ in self.blocks():
            yield from keys.tolist()

    def keys(self) -> np.ndarray:
        """Return all keys, ascending."""
        return self.range()[0]

    def values(self) -> np.ndarray:
        """Return all values in the order of their keys."""
        return self.range()[1]

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over pairs of keys and values, ascending."""
        for keys, values in self.blocks():
            yield from zip(keys.tolist(), values.tolist(), strict=True)

    def snapshot(self) -> Index:
        """Return an index in memory of all rows as of now, which later groups do not change."""
        room = len(self) + 1
        while True:  # one scan is of one moment
            keys, values = self._scan(0, _LAST, room)
            if len(keys) < room:
                return Index(keys, values, dtype=self._dtype, value_dtype=self._value_dtype)
            room *= 2

    # -- changes -----------------------------------------------------------------------------------

    def batch(self, *, sync: bool = False) -> DurableBatch:
        """Return a batch of changes that are committed as one group."""
        self._check_writable()
        return DurableBatch(self, NativeBatch(self._dtype.name), sync)

    def insert(self, keys: Any, values: Any, *, sync: bool = False) -> None:
        """Commit insertions of a key or an array of keys, or new values of them, as one group.

        Of equal keys in an array the last counts.
        """
        batch = self.batch(sync=sync)
        batch.insert(keys, values)
        batch.commit()

    def erase(self, keys: Any, *, sync: bool = False) -> None:
        """Commit erasures of a key or an array of keys as one group; absent ones are skipped."""
        batch = self.batch(sync=sync)
        batch.erase(keys)
        batch.commit()

    def update(self, other: Any, /, *, sync: bool = False) -> None:
        """Commit the keys and values of an index, a mapping, or pairs as one group."""
        if isinstance(other, KeyedRows):
            self.insert(*other.range(), sync=sync)
            return
        rows = other if isinstance(other, Mapping) else pairs_of(other)
        self.insert(list(rows), list(rows.values()), sync=sync)

    def __setitem__(self, keys: Any, values: Any) -> None:
        self.insert(keys, values)

    def __delitem__(self, keys: Any) -> None:
        """Erase one key, or an array of keys as one group.

        Raises
        ------
        KeyError : a key is absent; of an array the first such one is named, and none is erased.
        """
        column = keys_as(keys, self._dtype)
        self[column]
        self.erase(column)

    def replace(self, keys: Any, values: Any) -> None:
        """Replace all rows, much faster than by commits; they survive a loss of power after."""
        self._check_writable()
        column = keys_as(keys, self._dtype)
        data = values_as(values, self._value_dtype, len(column))
        assert data is not None
        _done(self._open.build, column, data.view(np.uint64))

    def sync(self) -> None:
        """Return once all that was committed survives a loss of power."""
        self._check_writable()
        _done(self._open.sync)

    def checkpoint(self) -> None:
        """Write a snapshot of all rows to the folder, which ends the logs before it.

        Calls of other threads go on meanwhile.
        """
        self._check_writable()
        _done(self._open.checkpoint)

    def refresh(self) -> bool:
        """Read what was committed since, if opened to read alone.

        Returns whether rows may have changed: there were commits, or a snapshot was written.

        Raises
        ------
        FolderError : a folder with values of another type has taken the place of the one that was
            opened: this index is closed.
        KeysError : a folder with keys of another type has: this index is as before.
        """
        if not (self._read_only and _done(self._open.refresh)):
            return False
        stored = _stored_types(self._path)
        if stored is not None and stored.get("value") != self._value_dtype.name:
            self.close()  # files of rows do not tell types of values apart: these were misread
            raise FolderError(
                f"{self._path}: is another folder now than the one that was opened, with values of "
                f"type {stored.get('value')} in place of {self._value_dtype}; open it again"
            )
        return True

    def close(self) -> None:
        """Close the folder for other processes to open; again, without effect."""
        native, self._native = self._native, None
        if native is not None and not self._read_only:
            _done(native.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"an index in a folder is neither copied nor pickled: open {self._path} with "
            "read_only=True in the other process, or pass snapshot()"
        )

    # -- how ---------------------------------------------------------------------------------------

    @property
    def _open(self) -> Any:
        if self._native is None:
            raise FolderError(f"{self._path}: is closed; open it again")
        return self._native

    def _check_writable(self) -> None:
        if self._read_only:
            raise FolderError(f"{self._path}: is open to read alone; open it without read_only")

    def _commit(self, batch: NativeBatch, sync: bool) -> None:
        if batch.size():
            _done(self._open.commit, batch, sync)
            batch.clear()

    def _code(self, key: Any, default: int) -> int:
        return default if key is None else _done(self._open.code, key)

    def _scan(self, first: int, last: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        keys = np.empty(count, self._dtype)
        values = np.empty(count, self._value_dtype)
        read = _done(self._open.scan, first, last, keys, values.view(np.uint64))
        return keys[:read], values[:read]


def _done(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a native function; its errors are those of `open`."""
    try:
        return call(*arguments)
    except MemoryError:
        raise
    except (RuntimeError, OSError) as error:
        text = str(error)
        if "this one was forked from it" in text:
            raise ForkError(text) from None
        for option in ("accept_unsynced_loss", "accept_closed_loss"):
            text = text.replace(option, "recover=True")
        raise FolderError(text) from None
    except (ValueError, TypeError, IndexError) as error:
        raise KeysError(str(error)) from error


def _stored_types(folder: Path) -> dict[str, Any] | None:
    """Return the types that a folder's index has; None: it is new, or has no file of them."""
    path = folder / _TYPES_FILE
    try:
        types = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise FolderError(f"{folder}: is a file, needs a folder, or a path to create one") from None
    except (OSError, ValueError) as error:
        raise FolderError(f"{path}: cannot be read: {error}") from error
    if not isinstance(types, dict) or types.get("format") != _FORMAT:
        raise FolderError(f"{path}: is not the file of types of this version")
    return types


def _store_types(folder: Path, types: dict[str, Any]) -> None:
    try:
        write_whole(folder / _TYPES_FILE, json.dumps(types).encode())
    except OSError as error:
        raise FolderError(f"{folder / _TYPES_FILE}: cannot be written: {error}") from error


def _agreed_types(key: Any, value: Any, stored: dict[str, Any] | None) -> tuple[str, str]:
    return _agreed("key", key, stored, "uint64"), _agreed("value", value, stored, "int64")


def _agreed(what: str, asked: Any, stored: dict[str, Any] | None, default: str) -> str:
    name = None if asked is None else named_type(what, asked, _KEYS)
    if stored is None:
        return name or default
    stored_type = named_type(f"{_TYPES_FILE}: {what}", stored.get(what), _KEYS)
    if name is not None and name != stored_type:
        raise KeysError(f"{what} is {name}, the folder has {stored_type}")
    return stored_type
