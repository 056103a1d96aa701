"""The protocol of dictionaries, for an index: methods named as those of dict and SortedDict."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, Self

import numpy as np

from headrace.index.errors import KeysError
from headrace.index.run.columns import checked, equal_number, is_row, row_of, values_as
from headrace.index.run.items import IndexItems
from headrace.index.run.keyed import KeyedRows
from headrace.index.run.order import OrderedReads
from headrace.index.run.state import ABSENT, REFUSALS, for_one, keys_error
from headrace.index.run.times import is_time

_NOT_ONE = "needs one key; of an array find the values, then erase"


class MappingMethods(OrderedReads):
    """Methods of an index that dictionaries have, and operations on two of them."""

    __slots__ = ()
    __hash__ = None  # pyright: ignore[reportAssignmentType]

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
        column = self._column(keys)
        found = np.empty(len(column), np.bool_)
        if self._value_dtype is None:
            checked(self._map.contains, column, found)
            return None, found
        array: Any = out
        if array is not None and not (isinstance(array, np.ndarray) and array.flags.writeable):
            raise KeysError(f"out is {out!r}, needs an array that may be written to")
        if array is not None and not array.dtype.isnative:
            raise KeysError(f"out has type {array.dtype}, needs {self._value_dtype}")
        values = np.empty(len(column), self._value_dtype) if out is None else out
        checked(self._map.find, column, values, found, default)
        return values, found

    def contains(self, keys: Any) -> Any:
        """Return whether one key is present, or an array of bool for an array of keys."""
        present = for_one(self._map.contains_one, keys)
        if present is not NotImplemented:
            return present
        return self._answers(self._map.contains, keys, np.bool_)

    def __contains__(self, key: Any) -> bool:
        try:
            present: Any = self._map.contains_one(key)
        except REFUSALS:
            present = NotImplemented
        if present is not NotImplemented:
            return present
        if isinstance(key, list | np.ndarray):
            raise KeysError(f"key is {key!r}, needs one key: `contains` takes arrays")
        # it cannot be a key, unless it equals one: 1.0 is 1
        number = equal_number(key, self._dtype)
        return number is not None and number in self

    def get(self, keys: Any, default: Any = None) -> Any:
        """Return the value of one key, or of each of an array; `default` for absent ones.

        For an array `default` is a number, 0 if None. A set of keys returns as `contains` does.
        """
        if self._value_dtype is None:
            return self.contains(keys)
        try:
            value = self._map.find_one(keys, ABSENT)
        except REFUSALS as error:
            raise keys_error(keys, error) from error
        if value is ABSENT:
            return default
        return self.find(keys, default)[0] if value is NotImplemented else value

    def __getitem__(self, keys: Any) -> Any:
        """Return the value of one key, or of each of an array; of a slice of keys, an index.

        ``index[low:high]`` has the keys from `low` to below `high`, as a copy.

        Raises
        ------
        KeyError : a key is absent; of an array the first such one is named.
        KeysError : this is a set of keys.
        """
        try:
            value = self._map.find_one(keys, ABSENT)
        except REFUSALS as error:
            raise keys_error(keys, error) from error
        if value is ABSENT:
            self._needs_values("use `contains`")
            raise KeyError(keys)
        if value is not None and value is not NotImplemented:
            return value
        if isinstance(keys, slice):
            return self._like(*self.range(*_bounds(keys)))
        self._needs_values("use `contains`")
        column = self._column(keys).view(self._dtype)
        values, present = self.find(column)
        _check_present(column, present)
        return values

    def items(self) -> IndexItems:
        """Return the pairs of keys and values, ascending: a view, as a dictionary's.

        Raises
        ------
        KeysError : this is a set of keys.
        """
        self._needs_values("iterate over it")
        return IndexItems(self)

    # -- changes -----------------------------------------------------------------------------------

    def insert(self, keys: Any, values: Any = None) -> int:
        """Insert keys, or assign the values of present ones; return how many are new.

        Of equal keys in an array the last counts.
        """
        if (values is None) == (self._value_dtype is None):
            is_new = for_one(self._map.insert_one, keys, values)
            if is_new is not NotImplemented:
                return int(is_new)
        column = self._column(keys)
        data = values_as(values, self._value_dtype, len(column))
        return checked(self._map.insert_or_assign, column, data)

    def __setitem__(self, keys: Any, values: Any) -> None:
        """Insert one key or an array, or assign their values; of a slice, those of its keys."""
        try:
            is_new = self._map.insert_one(keys, values)
        except REFUSALS as error:
            raise keys_error(keys, error) from error
        if is_new is not NotImplemented:
            return
        if isinstance(keys, slice):
            column, _ = self.range(*_bounds(keys))
            self.assign(column, values)
        else:
            self.insert(keys, values)

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
        self._needs_values("use `insert`")
        column = self._column(keys)
        fresh = row_of("fresh", fresh)
        numbers = values_as(fresh, self._value_dtype, len(fresh))
        values = np.empty(len(column), self._value_dtype)
        new = np.empty(len(column), np.bool_)
        checked(self._map.find_or_insert, column, numbers, values, new)
        return values, new

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, which is inserted with `default` if it is absent."""
        self._needs_values("use `insert`")
        if default is None:
            values_as(None, self._value_dtype, 1)
        value = for_one(self._map.find_or_insert_one, key, default)
        if value is NotImplemented:
            raise KeysError(f"key is {key!r}, needs one key: `find_or_insert` takes arrays")
        return value

    def assign(self, keys: Any, values: Any) -> int:
        """Assign the values of present keys, and skip absent ones; return how many are present."""
        column = self._column(keys)
        data = values_as(values, self._value_dtype, len(column))
        return checked(self._map.update, column, data)

    def update(self, other: Any = (), /) -> None:
        """Insert all of another index, of a mapping, or pairs of a key and a value, as one batch.

        The values of present keys are assigned. A set of keys takes an array of keys, too.
        """
        keys, values = self._columns_of(other)
        if len(keys):
            self.insert(keys, values)

    def pop(self, key: Any, default: Any = ABSENT) -> Any:
        """Erase a key, and return the value that it had; of an absent one `default`.

        Raises
        ------
        KeyError : the key is absent, and there is no default.
        KeysError : this is a set of keys.
        """
        self._needs_values("use `erase`")
        value = for_one(self._map.take_one, key, ABSENT)
        if value is NotImplemented:
            raise KeysError(f"key is {key!r}, {_NOT_ONE}")
        if value is not ABSENT:
            return value
        if default is ABSENT:
            raise KeyError(key)
        return default

    def popitem(self, index: int = -1) -> tuple[Any, Any]:
        """Erase the key at a position, by default the last, and return it and its value.

        Raises
        ------
        KeyError : the index is empty.
        IndexError : there is no such position.
        """
        if len(self) == 0:
            raise KeyError("the index is empty")
        pair: Any = self._map.take_at(self._position(index))
        if pair is None:  # another thread has erased meanwhile
            raise KeyError("the index has no such position any more")
        return pair

    def erase(self, keys: Any) -> int:
        """Erase keys, and skip absent ones; return how many were present."""
        was_present = for_one(self._map.erase_one, keys)
        if was_present is not NotImplemented:
            return int(was_present)
        return checked(self._map.erase, self._column(keys))

    def __delitem__(self, keys: Any) -> None:
        """Erase keys, or those of a slice.

        Raises
        ------
        KeyError : a key is absent; of an array the first such one is named, and none is erased.
        """
        was_present = for_one(self._map.erase_one, keys)
        if was_present is NotImplemented:
            if isinstance(keys, slice):
                checked(self._map.erase_range, *_bounds(keys))
                return
            column = self._column(keys).view(self._dtype)
            _check_present(column, self.contains(column))
            self.erase(column)
        elif not was_present:
            raise KeyError(keys)

    def clear(self) -> None:
        """Erase all keys, and give the memory back."""
        self._map.clear()

    # -- two of them -------------------------------------------------------------------------------

    def union(self, other: Any) -> Self:
        """Return an index of the keys of both; the values of `other` count where both have a key.

        The structure is this one's. `other` is what `update` takes.
        """
        keys, values = self._columns_of(other)
        united = self.copy()
        if len(keys):
            united.insert(keys, values)
        return united

    def intersection(self, other: Any) -> Self:
        """Return an index of the keys that `other` has, too, with the values of this one.

        `other` is an index, a mapping, or keys.
        """
        keys, values = self.range()
        present = self._in_other(keys, other)
        return self._like(keys[present], None if values is None else values[present])

    def difference(self, other: Any) -> Self:
        """Return an index of the keys that `other` lacks. `other` is as of `intersection`."""
        keys, values = self.range()
        absent = ~self._in_other(keys, other)
        return self._like(keys[absent], None if values is None else values[absent])

    def __or__(self, other: Any) -> Any:
        return self.union(other) if _combines(other) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return self._of(other).union(self) if _combines(other) else NotImplemented

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __and__(self, other: Any) -> Any:
        return self.intersection(other) if _combines(other) else NotImplemented

    __rand__ = __and__

    def __sub__(self, other: Any) -> Any:
        return self.difference(other) if _combines(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self._of(other).difference(self) if _combines(other) else NotImplemented

    def __eq__(self, other: object) -> bool:
        """Return whether another index or mapping has the same keys and values."""
        if other is self:
            return True
        if isinstance(other, MappingMethods):
            return self._equals(other)
        if not isinstance(other, Set if self._value_dtype is None else Mapping):
            return NotImplemented
        if len(self) != len(other):
            return False
        keys: Iterable[Any] = other
        if is_time(self._dtype):  # dates of Python and NumPy are equal, their hashes are not
            try:
                keys = self._column(list(other)).view(self._dtype)
            except KeysError:
                return False
        if not isinstance(other, Mapping):
            return set(self) == set(keys)
        return dict(self.items()) == dict(zip(keys, other.values(), strict=True))

    def _equals(self, other: "MappingMethods") -> bool:
        if len(self) != len(other):
            return False
        mine, others = self.range(), other.range()
        return _alike(mine[0], others[0]) and _alike(mine[1], others[1])

    def _columns_of(self, other: Any) -> tuple[Any, Any]:
        """Return the keys and values of an index, a mapping, or pairs."""
        if isinstance(other, KeyedRows):
            return other.range()
        if self._value_dtype is None:
            listed = isinstance(other, Iterable) and not is_row(other)
            return row_of("keys", list(other) if listed else other), None
        rows = other if isinstance(other, Mapping) else pairs_of(other)
        return list(rows), list(rows.values())

    def _in_other(self, keys: np.ndarray, other: Any) -> np.ndarray:
        if isinstance(other, MappingMethods) and other._dtype == self._dtype:
            return other.contains(keys)
        others = other.range()[0] if isinstance(other, KeyedRows) else other
        numbers = row_of("keys", list(others) if isinstance(others, Mapping) else others)
        try:
            return np.isin(keys, self._column(numbers).view(self._dtype))
        except KeysError:
            if is_time(self._dtype) or numbers.dtype.kind not in "uif":
                raise
        # numbers of which the type holds some: Python compares them without rounding
        equal = set(numbers.tolist())
        return np.array([key in equal for key in keys.tolist()], np.bool_)

    def _of(self, other: Any) -> Self:
        keys, values = self._columns_of(other)
        empty = self._like(np.empty(0, self._dtype), self._empty_values(0))
        if len(keys):
            empty.insert(keys, values)
        return empty

    def _like(self, keys: np.ndarray, values: np.ndarray | None) -> Self:
        """Return an index of its configuration with other keys."""
        raise NotImplementedError

    def copy(self) -> Self:
        """Return a copy, whose leaves are all of the configuration."""
        raise NotImplementedError


def _bounds(keys: slice) -> tuple[Any, Any]:
    if keys.step is not None:
        raise KeysError(
            f"keys are a slice with step {keys.step!r}, needs one without: its bounds are keys, "
            "and keys()[start:stop:step] goes by positions"
        )
    return keys.start, keys.stop


def _combines(other: object) -> bool:
    return isinstance(other, KeyedRows | Mapping | Set | np.ndarray)


def pairs_of(pairs: Any) -> dict[Any, Any]:
    """Return pairs of a key and a value as a dictionary.

    Raises
    ------
    KeysError : they are none.
    """
    try:
        return dict(pairs)
    except (TypeError, ValueError) as error:
        raise KeysError(
            f"needs an index, a mapping, or pairs of a key and a value: {error}; arrays of keys "
            "and values are inserted by `insert`"
        ) from error


def _alike(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    exact = a.dtype.kind == b.dtype.kind or "f" not in (a.dtype.kind + b.dtype.kind)
    if not exact:  # NumPy would round the integers
        return a.tolist() == b.tolist()
    floats = a.dtype.kind == "f"
    return bool(np.array_equal(a, b, equal_nan=floats))


def _check_present(keys: np.ndarray, present: np.ndarray) -> None:
    """Raise KeyError, naming the first key that is not in the index, and how many are not."""
    missing = np.flatnonzero(~present)
    if len(missing):
        first = keys[missing[0]]
        raise KeyError(f"{first} ({len(missing)} of {len(present)} keys are not there)")
