"""Reading an index in order: ranges, neighbours of keys, positions."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace.index.errors import KeysError
from headrace.index.run.columns import checked, count_as, row_of
from headrace.index.run.cursor import IndexCursor
from headrace.index.run.state import REFUSALS, IndexState, for_one, keys_error, numbers_list

BLOCK = 1 << 16
"""Keys that iteration reads at once."""
_FIRST_BLOCK = 64
_POSITIONS = (int, np.integer)


class OrderedReads(IndexState):
    """Methods of an index that read its keys in order."""

    __slots__ = ()

    # -- ranges ------------------------------------------------------------------------------------

    def scan(self, first: Any, count: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the first `count` keys that are not below `first`, ascending, and their values."""
        return self._scan(first, None, count_as("count", count, 0))

    def range(self, low: Any = None, high: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the keys from `low` to below `high`, ascending, and their values.

        None: without that bound.
        """
        keys, values = self._scan(low, high, BLOCK)
        if len(keys) == BLOCK:  # a longer range: again, as one call
            keys, values = self._scan(low, high, sys.maxsize)
        return keys, values

    def blocks(
        self, low: Any = None, high: Any = None, size: int = BLOCK, *, reverse: bool = False
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Iterate over a range in blocks of at most `size` keys, and their values.

        Keys ascend, or with `reverse` descend, from the end of the range.
        """
        most = count_as("size", size, 1)
        return self._blocks(low, high, most, most, reverse=reverse)

    def irange(
        self,
        minimum: Any = None,
        maximum: Any = None,
        inclusive: tuple[bool, bool] = (True, True),
        reverse: bool = False,
    ) -> Iterator[Any]:
        """Iterate over the keys from `minimum` to `maximum`, as `SortedDict.irange` does.

        Parameters
        ----------
        minimum, maximum : None: without that bound.
        inclusive : whether each bound belongs to the range.
        reverse : from the end of the range.
        """
        end: list[Any] = []
        if maximum is not None and inclusive[1] and self._is_in(maximum, minimum, inclusive[0]):
            end = [self.floor(maximum)]
        blocks = self._blocks(
            minimum,
            maximum,
            _FIRST_BLOCK,
            BLOCK,
            after=minimum is not None and not inclusive[0],
            reverse=reverse,
        )
        if reverse:
            yield from end
        for keys, _ in blocks:
            yield from numbers_list(keys)
        if not reverse:
            yield from end

    def __iter__(self) -> Iterator[Any]:
        for keys, _ in self._blocks(None, None, _FIRST_BLOCK, BLOCK):
            yield from numbers_list(keys)

    def __reversed__(self) -> Iterator[Any]:
        for keys, _ in self._blocks(None, None, _FIRST_BLOCK, BLOCK, reverse=True):
            yield from numbers_list(keys)

    def keys(self) -> np.ndarray:
        """Return all keys, ascending."""
        return self.range()[0]

    def values(self) -> np.ndarray | None:
        """Return all values in the order of their keys; None if this is a set of keys."""
        return self.range()[1]

    def cursor(self, key: Any = None) -> IndexCursor:
        """Return a cursor at the least key that is not below `key`; None: at the first key."""
        cursor = IndexCursor(self._map)
        cursor.seek(key)
        return cursor

    # -- neighbours --------------------------------------------------------------------------------

    def floor(self, keys: Any) -> Any:
        """Return the largest key of the index that is not above a key; None if there is none.

        Of an array of keys it returns bounds, values and whether they exist, as `lower_bound` does.
        """
        return self._neighbour(keys, False)

    def ceiling(self, keys: Any) -> Any:
        """Return the least key of the index that is not below a key; None if there is none.

        Of an array of keys it returns bounds, values and whether they exist, as `lower_bound` does.
        """
        return self._neighbour(keys, True)

    def lower_bound(self, keys: Any) -> tuple[Any, Any, Any]:
        """Return for each key the least key of the index that is not below it.

        Returns
        -------
        bounds : keys; 0 where there is none. Of one key a number, or None.
        values : their values; None if this is a set of keys. Of one key a number, or None.
        found : bool: whether there is such a key.
        """
        return self._bound(keys, True)

    def upper_bound(self, keys: Any) -> tuple[Any, Any, Any]:
        """Return for each key the least key of the index that is above it, as `lower_bound`."""
        return self._bound(keys, False)

    def min(self) -> Any:
        """Return the least key; None if there is none."""
        return self._map.min()

    def max(self) -> Any:
        """Return the largest key; None if there is none."""
        return self._map.max()

    # -- positions ---------------------------------------------------------------------------------

    def rank(self, keys: Any) -> Any:
        """Return how many keys of the index are below a key, or (int64) below each of an array.

        Leaves know their counts: the first call after a change adds them up.
        """
        rank = for_one(self._map.rank_of_one, keys)
        if rank is not NotImplemented:
            return rank
        return self._answers(self._map.rank, keys, np.int64)

    bisect_left = rank

    def bisect_right(self, key: Any) -> int:
        """Return how many keys of the index are not above a key, as `SortedDict.bisect_right`."""
        return self._rank_above(key)

    bisect = bisect_right

    def select(self, positions: Any) -> Any:
        """Return the key that has so many keys below it, or those of an array of positions.

        Negative positions count from the end.

        Raises
        ------
        IndexError : the index has fewer keys.
        """
        if isinstance(positions, _POSITIONS):
            return self.peekitem(positions)[0]
        size = len(self)
        places = row_of("positions", positions)
        if places.dtype.kind not in "iu" and len(places):
            raise KeysError(f"positions have type {places.dtype}, needs integers")
        beyond = np.flatnonzero((places < -size) | (places >= size))
        if len(beyond):
            raise IndexError(f"position {places[beyond[0]]} is beyond the {size} keys")
        places = places.astype(np.int64)
        places = np.where(places < 0, places + size, places)
        keys = np.empty(len(places), self._dtype)
        self._map.select(places, keys.view(self._raw), self._empty_values(len(places)))
        return keys

    def peekitem(self, index: Any = -1) -> tuple[Any, Any]:
        """Return the key at a position, and its value; by default the last.

        Raises
        ------
        IndexError : there is no such position.
        """
        counted = type(index) is int and 0 <= index <= sys.maxsize
        pair: Any = self._map.select_one(index if counted else self._position(index))
        return pair

    def islice(
        self, start: int | None = None, stop: int | None = None, reverse: bool = False
    ) -> Iterator[Any]:
        """Iterate over the keys from one position to below another, as `SortedDict.islice`."""
        first, end, _ = slice(start, stop).indices(len(self))
        if first >= end:
            return
        bounds = self.select(np.array([first, end - 1]))
        yield from self.irange(*bounds, reverse=reverse)

    # -- how ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._map.size()

    def _position(self, index: Any) -> int:
        if not isinstance(index, _POSITIONS):
            raise KeysError(f"the position is {index!r}, needs an integer")
        place, size = int(index), len(self)
        if not -size <= place < size:
            raise IndexError(f"position {place} is beyond the {size} keys")
        return place + size if place < 0 else place

    def _is_in(self, key: Any, minimum: Any, inclusive: bool) -> bool:
        """Return whether a key is present, and above a bound or, `inclusive`, at it."""
        if for_one(self._map.contains_one, key) is not True:
            return False
        if minimum is None:
            return True
        # keys of the index, as dates and times of Python and pandas do not compare with each other
        least, _, exists = self._bound(minimum, inclusive)
        return exists is True and least <= self.floor(key)

    def _rank_above(self, key: Any) -> int:
        above = for_one(self._map.bound_of_one, key, True, False)
        if above is NotImplemented:
            raise KeysError(f"key is {key!r}, needs one key; `rank` takes arrays")
        return self.rank(above[0]) if above[2] else len(self)

    def _neighbour(self, keys: Any, up: bool) -> Any:
        try:
            key: Any = self._map.neighbour_of_one(keys, up, True)
        except REFUSALS as error:
            raise keys_error(keys, error) from error
        return self._neighbours(keys, up, True) if key is NotImplemented else key

    def _bound(self, keys: Any, own: bool) -> tuple[Any, Any, Any]:
        try:
            bound: Any = self._map.bound_of_one(keys, True, own)
        except REFUSALS as error:
            raise keys_error(keys, error) from error
        return self._neighbours(keys, True, own) if bound is NotImplemented else bound

    def _neighbours(
        self, keys: Any, up: bool, own: bool
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        column = self._column(keys)
        bounds = np.zeros(len(column), self._dtype)
        present = np.empty(len(column), np.bool_)
        values = None if self._value_dtype is None else np.zeros(len(column), self._value_dtype)
        checked(self._map.neighbours, column, up, own, bounds.view(self._raw), values, present)
        bounds.view(self._raw)[~present] = 0
        return bounds, values, present

    def _blocks(
        self,
        low: Any,
        high: Any,
        size: int,
        most: int,
        *,
        after: bool = False,
        reverse: bool = False,
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """Iterate over a range in blocks that grow from `size` to at most `most` keys."""
        while True:
            keys, values = self._scan(low, high, size, after=after, reverse=reverse)
            if len(keys):
                yield keys, values
            if len(keys) < size:
                return
            if reverse:
                high = keys[-1]
            else:
                low, after = keys[-1], True
            size = min(8 * size, most)

    def _scan(
        self, first: Any, end: Any, count: int, *, after: bool = False, reverse: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        scan: Callable[..., int] = self._map.scan
        while True:
            room = min(count, len(self) + 1)
            keys, values = np.empty(room, self._dtype), self._empty_values(room)
            read = checked(scan, first, end, after, keys.view(self._raw), values, reverse)
            if read < room or room == count:
                break
            # full although there was room for all: other threads have inserted meanwhile
        if 2 * read >= room:
            return keys[:read], None if values is None else values[:read]
        return keys[:read].copy(), None if values is None else values[:read].copy()
