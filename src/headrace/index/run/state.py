"""The state that all methods of an index share: its native map, and its types."""

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import _native
from headrace.index.configuration import Configuration
from headrace.index.errors import KeysError
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.columns import checked, keys_as
from headrace.index.run.keyed import KeyedRows
from headrace.index.run.times import is_time

REFUSALS = (ValueError, TypeError, IndexError)
"""Errors of the native map for a key or a value that is none of its types."""
ABSENT = object()
"""Stands for no value in calls of the native map."""


class IndexState(KeyedRows):
    """The native map of an index, and the types of its keys and values."""

    __slots__ = ("_configuration", "_dtype", "_map", "_plan", "_raw", "_value_dtype")

    _map: _native.IndexMap
    _configuration: Configuration
    _plan: IndexPlan | None
    _dtype: np.dtype
    _raw: np.dtype
    """Type of the keys in the native map: of times, their integers."""
    _value_dtype: np.dtype | None

    def _column(self, keys: Any) -> np.ndarray:
        """Return keys as the native map reads them."""
        return keys_as(keys, self._dtype).view(self._raw)

    def _answers(
        self, method: Callable[..., Any], keys: Any, dtype: type[np.generic]
    ) -> np.ndarray:
        """Return the answers of a native method, one for each of an array of keys."""
        column = self._column(keys)
        answers = np.empty(len(column), dtype)
        checked(method, column, answers)
        return answers

    def _empty_values(self, count: int) -> np.ndarray | None:
        return None if self._value_dtype is None else np.empty(count, self._value_dtype)

    def _needs_values(self, remedy: str) -> None:
        if self._value_dtype is None:
            raise KeysError(f"this index has keys alone: {remedy}")


def keys_error(key: Any, error: Exception) -> KeysError:
    """Return the error for a key, or its value, that the native map has refused."""
    if isinstance(error, KeysError):
        return error
    if key is None:
        return KeysError("the key is None, needs a number")
    return KeysError(str(error))


def for_one(method: Callable[..., Any], key: Any, *arguments: Any) -> Any:
    """Call a native method with one key; return NotImplemented if it is none.

    Raises
    ------
    KeysError : the key, or a value, is none of the index's type.
    """
    try:
        return method(key, *arguments)
    except REFUSALS as error:
        raise keys_error(key, error) from error


def numbers_list(keys: np.ndarray) -> list[Any]:
    """Return keys one by one: Python's numbers, or NumPy's times."""
    return list(keys) if is_time(keys.dtype) else keys.tolist()
