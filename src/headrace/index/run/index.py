"""`Index`: an ordered map from numbers to numbers, for one key or for arrays of keys."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace import _native
from headrace.facades import offered_by
from headrace.index.configuration import Configuration
from headrace.index.errors import InvariantError, KeysError
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.columns import (
    checked,
    key_type_of,
    keys_as,
    named_type,
    row_of,
    value_type_of,
    values_as,
)
from headrace.index.tables import KEY_TYPES, VALUE_TYPES

BLOCK = 1 << 16
"""Keys that iteration reads at once."""

_SINGLE = (int, float, np.integer, np.floating)
_ABSENT = object()


@offered_by("headrace.index")
class Index:
    """An ordered map of 64-bit keys to values of 32 or 64 bits, or a set of keys.

    Most methods take one key or an array of keys, of any number type that the index's own type
    holds exactly. Arrays are the fast path: a call on many keys runs without the interpreter and
    without its lock, and fetches memory ahead.

    Threads may share an index. Each call holds the index's lock for its duration, so calls happen
    one after another, and a batch is one call. Iteration reads blocks: it has no lock between two,
    and continues after the last key that it returned, whatever has changed.

    A forked child (`multiprocessing`, PyTorch's ``DataLoader``) has a copy, which is whole: a fork
    waits for calls that other threads have begun.

    An error about keys or values is raised before anything changes. If memory ends within a batch
    of insertions (MemoryError), the keys before are in the index.

    Parameters
    ----------
    keys : in any order; of equal keys the last is kept. Their kind is the index's key type: uint64,
        int64 or float64. -0.0 is the same key as 0.0. None: an empty index.
    values : one for each key, or one number for all. Integers and floats have 32 bits if their type
        has at most so many, else 64. None: a set of keys.
    dtype : key type, if it is not that of `keys`; uint64 if there are no keys.
    value_dtype : value type, if it is not that of `values`.
    plan : an index plan, its file, or a configuration.
    configuration : instead of a plan.
    threads : for sorting the keys; default: as many as there are processors.

    Raises
    ------
    KeysError : keys or values are not numbers, are NaN (keys), differ in length, or are beyond
        their type; the message has the position.
    ArtifactError : the file of the plan is none.
    """

    __slots__ = ("_configuration", "_dtype", "_map", "_plan", "_value_dtype")

    def __init__(
        self,
        keys: Any = None,
        values: Any = None,
        *,
        dtype: Any = None,
        value_dtype: Any = None,
        plan: IndexPlan | Configuration | str | os.PathLike[str] | None = None,
        configuration: Configuration | None = None,
        threads: int | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise KeysError(f"threads is {threads}, needs at least 1")
        numbers = None if keys is None else row_of("keys", keys)
        key_type = _key_type(numbers, dtype)
        value_type = _value_type(values, value_dtype)
        if plan is not None and configuration is not None:
            raise KeysError("both a plan and a configuration are given, needs one of them")
        self._plan, self._configuration = structure_of(
            (configuration or Configuration()) if plan is None else plan
        )
        self._dtype = np.dtype(key_type)
        self._value_dtype = None if value_type is None else np.dtype(value_type)
        self._map = _native.IndexMap(
            key_type, value_type or "none", native_configuration(self._configuration)
        )
        if numbers is not None:
            self._build(numbers, values, threads)
        elif values is not None:
            raise KeysError("values are given without keys")

    def _build(self, keys: np.ndarray, values: Any, threads: int | None) -> None:
        column = keys_as(keys, self._dtype)
        data = values_as(values, self._value_dtype, len(column))
        try:
            self._map.build(column, data, threads or len(os.sched_getaffinity(0)))
        except ValueError as error:
            raise KeysError(str(error)) from error

    # -- what it is --------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        """Type of the keys: uint64, int64 or float64."""
        return self._dtype

    @property
    def value_dtype(self) -> np.dtype | None:
        """Type of the values; None: this is a set of keys."""
        return self._value_dtype

    @property
    def plan(self) -> IndexPlan | None:
        """The plan in force; None: none was given, or the configuration was changed since."""
        return self._plan

    @property
    def configuration(self) -> Configuration:
        """Configuration of leaves that are made from now on."""
        return self._configuration

    @property
    def nbytes(self) -> int:
        """Memory of its leaves and nodes that the allocator gave and that was touched, in bytes."""
        return self.statistics()["bytes"]

    @property
    def native(self) -> _native.IndexMap:
        """The native map, for the stages of this capability."""
        return self._map

    def __len__(self) -> int:
        return self._map.size()

    def __repr__(self) -> str:
        values = "" if self._value_dtype is None else f" to {self._value_dtype}"
        return f"<Index of {len(self)} keys, {self._dtype}{values}, {self._configuration.name}>"

    def statistics(self) -> dict[str, Any]:
        """Return figures of the structure.

        "size" in keys, "bytes"; "inner_nodes", "comparison_nodes" and "slots"; "leaves" and "keys"
        by type of leaf; "depth" and "mean_depth" in inner nodes; "changes" of the structure,
        "moved_keys" by all of them and "largest_change_keys" by one.
        """
        return self._map.statistics()

    def verify(self) -> None:
        """Check every invariant of the structure, in time linear in the number of keys.

        Raises
        ------
        InvariantError : naming the node and the invariant.
        """
        try:
            self._map.verify()
        except RuntimeError as error:
            raise InvariantError(str(error)) from error

    # -- lookups -----------------------------------------------------------------------------------

    def find(
        self, keys: Any, default: Any = None, *, out: np.ndarray | None = None
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the values of an array of keys, and whether each key is present.

        Parameters
        ----------
        default : value of absent keys; None: 0.
        out : array of the index's value type that values are written to.

        Returns
        -------
        values : one for each key; None if this is a set of keys.
        found : bool, one for each key.
        """
        column = keys_as(keys, self._dtype)
        found = np.empty(len(column), np.bool_)
        if self._value_dtype is None:
            checked(self._map.contains, column, found)
            return None, found
        array: Any = out
        if array is not None and not (isinstance(array, np.ndarray) and array.flags.writeable):
            raise KeysError(f"out is {out!r}, needs an array that may be written to")
        values = np.empty(len(column), self._value_dtype) if out is None else out
        checked(self._map.find, column, values, found, default)
        return values, found

    def contains(self, keys: Any) -> Any:
        """Return whether one key is present, or an array of bool for an array of keys."""
        if isinstance(keys, _SINGLE):
            return checked(self._map.contains_one, keys)
        column = keys_as(keys, self._dtype)
        found = np.empty(len(column), np.bool_)
        checked(self._map.contains, column, found)
        return found

    def __contains__(self, key: Any) -> bool:
        return checked(self._map.contains_one, key)

    def get(self, keys: Any, default: Any = None) -> Any:
        """Return the value of one key, or of each of an array; `default` for absent ones.

        For an array `default` is a number, 0 if None. A set of keys returns as `contains` does.
        """
        if self._value_dtype is None:
            return self.contains(keys)
        if isinstance(keys, _SINGLE):
            return checked(self._map.find_one, keys, default)
        return self.find(keys, default)[0]

    def __getitem__(self, keys: Any) -> Any:
        """Return the value of one key, or of each of an array.

        Raises
        ------
        KeyError : a key is absent; of an array the first such one is named.
        KeysError : this is a set of keys.
        """
        if self._value_dtype is None:
            raise KeysError("this index has keys alone: use `contains`")
        if isinstance(keys, _SINGLE):
            value = checked(self._map.find_one, keys, _ABSENT)
            if value is _ABSENT:
                raise KeyError(keys)
            return value
        values, present = self.find(keys)
        _check_present(keys, present)
        return values

    # -- changes -----------------------------------------------------------------------------------

    def insert(self, keys: Any, values: Any = None) -> int:
        """Insert keys, or assign the values of present ones; return how many are new.

        Of equal keys in an array the last counts.
        """
        if isinstance(keys, _SINGLE):
            if (values is None) != (self._value_dtype is None):
                values_as(values, self._value_dtype, 1)
            return int(checked(self._map.insert_one, keys, values))
        column = keys_as(keys, self._dtype)
        data = values_as(values, self._value_dtype, len(column))
        return checked(self._map.insert_or_assign, column, data)

    def find_or_insert(self, keys: Any, fresh: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of each key; keys that are not in the index are inserted, as one call.

        For ids and their rows in a table: `fresh` are the rows that are free. Several threads that
        insert often use a `ShardedIndex`, which numbers rows itself.

        Parameters
        ----------
        fresh : values that new keys take, in the order in which these first appear: at least as
            many as keys are new, of which the first ``new.sum()`` are used.

        Returns
        -------
        values : in the order of the keys; equal keys have one value.
        new : bool, one for each key: it was not in the index. Of equal keys only the first is new.

        Raises
        ------
        KeysError : as `insert`; `fresh` has too few values; this is a set of keys.
        """
        if self._value_dtype is None:
            raise KeysError("this index has keys alone: use `insert`")
        column = keys_as(keys, self._dtype)
        numbers = values_as(fresh, self._value_dtype, len(row_of("fresh", fresh)))
        values = np.empty(len(column), self._value_dtype)
        new = np.empty(len(column), np.bool_)
        checked(self._map.find_or_insert, column, numbers, values, new)
        return values, new

    def __setitem__(self, keys: Any, values: Any) -> None:
        self.insert(keys, values)

    def update(self, keys: Any, values: Any) -> int:
        """Assign the values of present keys, and skip absent ones; return how many are present."""
        column = keys_as(keys, self._dtype)
        data = values_as(values, self._value_dtype, len(column))
        return checked(self._map.update, column, data)

    def erase(self, keys: Any) -> int:
        """Erase keys, and skip absent ones; return how many were present."""
        if isinstance(keys, _SINGLE):
            return int(checked(self._map.erase_one, keys))
        return checked(self._map.erase, keys_as(keys, self._dtype))

    def __delitem__(self, keys: Any) -> None:
        """Erase keys.

        Raises
        ------
        KeyError : a key is absent; of an array the first such one is named, and none is erased.
        """
        if isinstance(keys, _SINGLE):
            if not self.erase(keys):
                raise KeyError(keys)
            return
        column = keys_as(keys, self._dtype)
        _check_present(column, self.contains(column))
        self.erase(column)

    def clear(self) -> None:
        """Erase all keys, and give the memory back."""
        self._map.clear()

    def shrink_to_fit(self) -> None:
        """Give memory back that erased keys left: the leaves are made anew, in what they need.

        An index with at most 65,536 keys left does so by itself when it erases.
        """
        self._map.shrink_to_fit()

    # -- in order ----------------------------------------------------------------------------------

    def scan(self, first: Any, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the first `count` keys that are not below `first`, ascending, and their values."""
        return self._scan(first, None, False, count)

    def range(self, low: Any = None, high: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the keys from `low` to below `high`, ascending, and their values.

        None: without that bound.
        """
        keys, values = self._scan(low, high, False, BLOCK)
        if len(keys) == BLOCK:  # a longer range: again, as one call
            keys, values = self._scan(low, high, False, sys.maxsize)
        return keys, values

    def blocks(
        self, low: Any = None, high: Any = None, size: int = BLOCK
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Iterate over a range in blocks of at most `size` keys, ascending, and their values."""
        if size < 1:
            raise KeysError(f"size is {size}, needs at least 1")
        after = False
        while True:
            keys, values = self._scan(low, high, after, size)
            if len(keys):
                yield keys, values
            if len(keys) < size:
                return
            low, after = keys[-1], True

    def __iter__(self) -> Iterator[Any]:
        for keys, _ in self.blocks():
            yield from keys

    def keys(self) -> np.ndarray:
        """Return all keys, ascending."""
        return self.range()[0]

    def values(self) -> np.ndarray | None:
        """Return all values in the order of their keys; None if this is a set of keys."""
        return self.range()[1]

    def lower_bound(self, keys: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Return for each key the least key of the index that is not below it.

        Returns
        -------
        bounds : keys; 0 where there is none.
        values : their values; None if this is a set of keys.
        found : bool: whether there is such a key.
        """
        column = keys_as(keys, self._dtype)
        bounds = np.zeros(len(column), self._dtype)
        found = np.empty(len(column), np.bool_)
        values = None if self._value_dtype is None else np.zeros(len(column), self._value_dtype)
        checked(self._map.lower_bound, column, bounds, values, found)
        bounds[~found] = 0
        return bounds, values, found

    def min(self) -> int | float | None:
        """Return the least key; None if there is none."""
        least: Any = self._map.min()
        return least

    def max(self) -> int | float | None:
        """Return the largest key; None if there is none."""
        most: Any = self._map.max()
        return most

    def _scan(
        self, first: Any, end: Any, after: bool, count: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if count < 0:
            raise KeysError(f"count is {count}, needs at least 0")
        while True:
            room = min(count, len(self) + 1)
            keys = np.empty(room, self._dtype)
            values = None if self._value_dtype is None else np.empty(room, self._value_dtype)
            read = checked(self._map.scan, first, end, after, keys, values)
            if read < room or room == count:
                break
            # full although there was room for all: other threads have inserted meanwhile
        if 2 * read >= room:
            return keys[:read], None if values is None else values[:read]
        return keys[:read].copy(), None if values is None else values[:read].copy()

    # -- structure and copies ----------------------------------------------------------------------

    def configure(self, plan: IndexPlan | Configuration) -> None:
        """Set the configuration of leaves that are made from now on; `convert` changes others."""
        self._plan, self._configuration = structure_of(plan)
        self._map.configure(native_configuration(self._configuration))

    def convert(self, cursor: int = 0, most_keys: int = BLOCK) -> int | None:
        """Convert leaves to the configuration, from a cursor on, of about `most_keys` keys.

        Returns the next call's cursor, or None at the end.
        """
        if most_keys < 1:
            raise KeysError(f"most_keys is {most_keys}, needs at least 1")
        return checked(self._map.convert, cursor, most_keys)

    def copy(self) -> Self:
        """Return a copy, whose leaves are all of the configuration."""
        copied = type(self).__new__(type(self))
        copied._take(self)
        copied._map = self._map.copy()
        return copied

    __copy__ = copy

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        return self.copy()

    def _take(self, source: Self) -> None:
        for name in ("_configuration", "_dtype", "_plan", "_value_dtype"):
            object.__setattr__(self, name, getattr(source, name))

    def __reduce__(self) -> tuple[Any, ...]:
        keys, values = self.range()
        return self._restored, (keys, values, self._plan, self._configuration)

    @classmethod
    def _restored(
        cls,
        keys: np.ndarray,
        values: np.ndarray | None,
        plan: IndexPlan | None,
        configuration: Configuration,
    ) -> Self:
        if plan is not None:
            return cls(keys, values, plan=plan)
        return cls(keys, values, configuration=configuration)


def native_configuration(configuration: Configuration) -> _native.IndexConfiguration:
    """Return a configuration as the native map takes it."""
    return _native.IndexConfiguration(**configuration.to_head())


def _restored(  # pyright: ignore[reportUnusedFunction]
    kind: type[Index], *content: Any
) -> Index:
    # of pickles of versions before 0.2
    return kind._restored(*content)  # pyright: ignore[reportPrivateUsage]


def _key_type(keys: np.ndarray | None, dtype: Any) -> str:
    if dtype is not None:
        return named_type("dtype", dtype, KEY_TYPES)
    return "uint64" if keys is None else key_type_of(keys)


def _value_type(values: Any, dtype: Any) -> str | None:
    if dtype is not None:
        return named_type("value_dtype", dtype, VALUE_TYPES)
    return None if values is None else value_type_of(row_of("values", values))


def structure_of(
    structure: IndexPlan | Configuration | str | os.PathLike[str],
) -> tuple[IndexPlan | None, Configuration]:
    """Return the plan of a structure, if it has one, and its configuration.

    Raises
    ------
    KeysError : it is neither a plan, nor a path, nor a configuration.
    ArtifactError : the file of the plan is none.
    """
    if isinstance(structure, Configuration):
        return None, structure
    if isinstance(structure, IndexPlan):
        return structure, structure.configuration
    try:
        path = Path(structure)
    except TypeError:
        raise KeysError(
            f"the structure is given by {structure!r}, needs an index plan, its file, or a "
            "Configuration"
        ) from None
    plan = IndexPlan.load(path)
    return plan, plan.configuration


def _check_present(keys: Any, present: np.ndarray) -> None:
    """Raise KeyError, naming the first key that is not in the index, and how many are not."""
    missing = np.flatnonzero(~present)
    if len(missing):
        first = row_of("keys", keys)[missing[0]]
        raise KeyError(f"{first} ({len(missing)} of {len(present)} keys are not there)")
