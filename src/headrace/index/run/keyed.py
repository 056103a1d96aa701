"""Keys in order, and a value of each: the base of indexes in memory and in folders."""

from typing import Any

import numpy as np

from headrace.index.errors import KeysError


class KeyedRows:
    """Keys in order, and a value of each: in memory, or in a folder."""

    __slots__ = ()
    __array_ufunc__ = None  # so that `array | index` is the index's operator

    @property
    def value_dtype(self) -> np.dtype | None:
        """Type of the values; None: these are keys alone."""
        raise NotImplementedError

    def range(self, low: Any = None, high: Any = None) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the keys from `low` to below `high`, ascending, and their values.

        None: without that bound.
        """
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the keys of a set of keys.

        Raises
        ------
        KeysError : there are values, which an array of keys would drop.
        """
        if self.value_dtype is not None:
            raise KeysError(
                "an index with values is no array: its columns are keys() and values(), "
                "and get(keys) looks up an array or a column"
            )
        keys = self.range()[0]
        return keys if dtype is None else keys.astype(dtype)
