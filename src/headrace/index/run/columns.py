"""Arrays of keys and values, brought to the types of an index without a loss.

Nothing is rounded or wraps around: a number that the index's type cannot hold is an error. What has
the exact type already is used as it is, without a copy. Columns of pandas, Polars and Arrow are
arrays, too, if no element of them is missing.
"""

import operator
import os
from collections.abc import Callable, Collection, Iterator, Sequence, Set, ValuesView
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.index.errors import KeysError
from headrace.index.run.keyed import KeyedRows
from headrace.index.run.times import is_time, time_type, times_as, times_of
from headrace.index.tables import KEY_TYPES, VALUE_TYPES

_STRINGS = (
    "; strings: number them by names, keys = np.unique(strings, return_inverse=True), "
    "whose order they keep, and look one up by np.searchsorted(names, string)"
)
_COMPOSITE = (
    "; keys of several parts: pack them into one number, the first in the high bits, as in "
    "(first << 32) | second"
)
_OBJECTS = "; objects of Python: make numbers of them, as by numpy.array(keys, 'int64')"
_LISTED = Set | ValuesView | Iterator
"""Of these NumPy would make an array of one object."""
_ROWS = _LISTED | list | tuple
_EXACT = VALUE_TYPES["float64"][1]
"""Up to here a float64 holds every integer."""
_MOST_THREADS = 1 << 16
"""More sort nothing faster, and the native map counts them in 32 bits."""


def key_type_of(keys: np.ndarray) -> str:
    """Return the type of an index for these keys: of their kind, with 64 bits.

    Raises
    ------
    KeysError : the keys are not numbers, or have more than 64 bits.
    """
    if keys.dtype.itemsize <= 8:
        match keys.dtype.kind:
            case "u":
                return "uint64"
            case "i":
                return "int64"
            case "f":
                return "float64"
            case _:
                pass
    raise KeysError(
        f"keys have type {keys.dtype}, needs integers or floats of at most 64 bits{_advice(keys)}"
    )


def type_of_keys(keys: np.ndarray | None, dtype: Any) -> np.dtype:
    """Return the type of an index for these keys, times among them, or the one asked for.

    Raises
    ------
    KeysError : the type is none of an index's; the keys are neither numbers nor times.
    """
    if dtype is not None:
        try:
            asked = np.dtype(dtype)
        except TypeError:
            asked = None
        if asked is not None and is_time(asked):
            return time_type("dtype", asked)
        return np.dtype(named_type("dtype", dtype, KEY_TYPES))
    if keys is None:
        return np.dtype("uint64")
    if is_time(keys.dtype):
        return time_type("the type of keys", keys.dtype)
    return np.dtype(key_type_of(keys))


def value_type_of(values: np.ndarray) -> str:
    """Return the type of an index for these values: of their kind, with 32 or 64 bits.

    Raises
    ------
    KeysError : the values are not numbers, or have more than 64 bits.
    """
    kind = {"u": "uint", "i": "int", "f": "float"}.get(values.dtype.kind)
    if kind is None or values.dtype.itemsize > 8:
        raise KeysError(
            f"values have type {values.dtype}, needs integers or floats of at most 64 bits"
        )
    return f"{kind}{64 if values.dtype.itemsize == 8 else 32}"


def named_type(what: str, dtype: Any, accepted: Collection[str]) -> str:
    """Return the name of a NumPy type.

    Raises
    ------
    KeysError : it is none of those accepted.
    """
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in accepted:
        raise KeysError(f"{what} is {name}, needs one of {', '.join(accepted)}")
    return name


def row_of(what: str, numbers: Any) -> np.ndarray:
    """Return numbers as an array of one dimension.

    Raises
    ------
    KeysError : they are a slice or None; have more dimensions, or differ in length; an array has
        masked or missing elements; an integer of a list has no place in the type of all of them.
    """
    if isinstance(numbers, slice):
        raise KeysError(
            f"{what} are a slice, needs a key or an array of keys; range(low, high) returns those "
            "from low to below high, and their values"
        )
    if numbers is None:
        raise KeysError(f"{what} are None, needs numbers")
    if isinstance(numbers, KeyedRows):
        numbers = np.asarray(numbers)  # not by way of Arrow, where it is a table
    if isinstance(numbers, _LISTED):
        numbers = list(numbers)
    if _is_arrow(numbers):
        numbers = _of_arrow(what, numbers)
    if isinstance(numbers, np.ma.MaskedArray) and np.ma.is_masked(numbers):
        raise KeysError(f"{what}: elements of the array are masked, needs those that count alone")
    try:
        array = np.asarray(numbers)
    except (ValueError, TypeError, RuntimeError) as error:  # those of tensors, too
        raise KeysError(f"{what}: {error}") from error
    kind = getattr(getattr(numbers, "dtype", None), "kind", array.dtype.kind)
    if kind in "iu" and array.dtype.kind not in "iu":  # pandas rounds integers beside a missing one
        raise KeysError(f"{what}: elements of the column are missing, needs those that count alone")
    if array.shape == (0,) and (array.dtype == object or isinstance(numbers, list | tuple)):
        # of nothing, which has no type: NumPy makes float64 of a list, pandas and Arrow objects
        return np.empty(0, np.uint64 if what == "keys" else np.float64)
    if array.dtype == np.float64 and isinstance(numbers, Sequence):
        array = _not_rounded(what, numbers, array)
    if array.ndim == 0:
        array = array.reshape(1)
    if array.ndim != 1:
        advice = _COMPOSITE if what == "keys" else ""
        raise KeysError(f"{what} have {array.ndim} dimensions, needs one{advice}")
    if array.dtype == object:
        times = times_of(what, array)
        return array if times is None else times
    return array


def _not_rounded(what: str, numbers: Sequence[Any], array: np.ndarray) -> np.ndarray:
    """Return numbers that NumPy has made floats of.

    It does so of integers beside floats, and where some integers are beyond int64.
    """
    integers = [number for number in numbers if isinstance(number, int | np.integer)]
    are_integers = 0 < len(integers) == len(numbers)
    if are_integers and (min(integers) >= 0 or max(integers) < 1 << 63):
        return np.array(integers, np.uint64 if min(integers) >= 0 else np.int64)
    for place, number in enumerate(numbers):
        if not isinstance(number, int | np.integer) or abs(int(number)) <= _EXACT:
            continue
        if are_integers or int(float(number)) != int(number):  # it holds 2^60, too
            raise KeysError(
                f"{what}: number {place} is {number}, which float64 does not hold exactly, and "
                "no integer type holds all of them"
            )
    return array


def is_row(numbers: Any) -> bool:
    """Return whether `row_of` takes these as a row of numbers, not as one."""
    return isinstance(numbers, _ROWS) or np.ndim(numbers) > 0


def _is_arrow(numbers: Any) -> bool:
    """Return whether it is a column of Arrow or Polars.

    Those of pandas have missing elements of their own, which NumPy's arrays of them show.
    """
    if isinstance(numbers, np.ndarray | list | tuple) or type(numbers).__module__.startswith(
        "pandas"
    ):
        return False
    return hasattr(numbers, "__arrow_c_array__") or hasattr(numbers, "__arrow_c_stream__")


def _of_arrow(what: str, column: Any) -> np.ndarray:
    try:
        array = pa.chunked_array(column) if hasattr(column, "__arrow_c_stream__") else column
        if not isinstance(array, pa.ChunkedArray):
            array = pa.chunked_array([pa.array(array)])
    except (pa.ArrowInvalid, TypeError) as error:
        raise KeysError(f"{what} are no column of Arrow: {error}") from error
    if array.null_count:
        raise KeysError(f"{what}: {array.null_count} of {len(array)} are null, needs none")
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        raise KeysError(
            f"{what} have type {array.type}, needs times without a zone: cast them to "
            f"timestamp('{array.type.unit}')"
        )
    if pa.types.is_dictionary(array.type):
        numbers = pa.types.is_primitive(array.type.value_type)
        advice = "; cast them to the type of their values" if numbers else _STRINGS
        raise KeysError(f"{what} have type {array.type}, needs numbers{advice}")
    if pa.types.is_nested(array.type):
        raise KeysError(f"{what} have type {array.type}, needs numbers{_COMPOSITE}")
    return array.to_numpy()


def _advice(keys: np.ndarray) -> str:
    """Return a remedy for keys that are no numbers."""
    first = keys[0] if keys.dtype == object and len(keys) else None
    if keys.dtype.kind in "UST" or isinstance(first, str | bytes):
        return _STRINGS
    if keys.dtype.names is not None or isinstance(first, Sequence):
        return _COMPOSITE
    return _OBJECTS if keys.dtype == object else ""


def equal_number(key: Any, dtype: np.dtype) -> Any:
    """Return the int or float that a number of another type equals, as 1.0 is 1; None: none."""
    convert = float if dtype.kind == "f" else int
    # NumPy counts durations among its integers
    if type(key) is convert or isinstance(key, np.timedelta64):
        return None
    if not isinstance(key, Real | Decimal | np.bool_):
        return None
    exact: Any = key
    if isinstance(key, Integral | np.bool_):
        exact = int(key)  # NumPy compares its integers with floats as floats
    try:
        number = convert(exact)
    except (ValueError, OverflowError):  # NaN and infinities have no integer
        return None
    return number if number == exact else None


def count_as(what: str, number: Any, least: int, most: int | None = None) -> int:
    """Return a number of keys, threads, shards or bytes as an integer.

    Raises
    ------
    KeysError : it is no integer, less than `least`, or more than `most`.
    """
    bounds = f"at least {least}" if most is None else f"{least} to {most}"
    try:
        count = operator.index(number)
    except TypeError:
        raise KeysError(f"{what} is {number!r}, needs an integer of {bounds}") from None
    if count < least or (most is not None and count > most):
        raise KeysError(f"{what} is {count}, needs {bounds}")
    return count


def threads_as(threads: Any) -> int:
    """Return how many threads sort keys: by default as many as there are processors.

    Raises
    ------
    KeysError : `threads` is no integer, or less than 1.
    """
    processors = len(os.sched_getaffinity(0))
    return processors if threads is None else min(count_as("threads", threads, 1), _MOST_THREADS)


def keys_as(keys: Any, dtype: np.dtype, what: str = "keys") -> np.ndarray:
    """Return keys as a contiguous array of an index's type.

    Raises
    ------
    KeysError : a key cannot be held by the type, and the message has its position; the keys are a
        tuple, which could be one key of several parts.
    """
    if what == "keys" and isinstance(keys, tuple):
        raise KeysError(
            f"keys are the tuple {keys!r}, needs a key, or a list or an array of keys{_COMPOSITE}"
        )
    array = row_of(what, keys)
    if is_time(dtype):
        if len(array) == 0:
            return np.empty(0, dtype)
        array = times_as(what, array, dtype)
    elif array.dtype != dtype:
        array = _converted(what, array, dtype)
    return np.ascontiguousarray(array)


def values_as(values: Any, dtype: np.dtype | None, count: int) -> np.ndarray | None:
    """Return values as a contiguous array of an index's type; one number is repeated.

    Raises
    ------
    KeysError : a value cannot be held by the type; their number is not `count`; there are values
        for an index without, or the other way round.
    """
    if dtype is None:
        if values is not None:
            raise KeysError(
                "values are given, but this index has keys alone: make it with values, or with "
                "value_dtype"
            )
        return None
    if values is None:
        raise KeysError(f"values are missing: this index has values of type {dtype}")
    array = row_of("values", values)
    if not is_row(values):
        array = np.repeat(array, count)
    if len(array) != count:
        raise KeysError(f"values are {len(array)}, keys {count}: needs one value for each key")
    if array.dtype != dtype:
        rounded = dtype.kind == "f" and array.dtype.kind == "f"
        array = _rounded(array, dtype) if rounded else _converted("values", array, dtype)
    return np.ascontiguousarray(array)


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
    beyond = np.flatnonzero(np.isinf(rounded) & np.isfinite(values))
    if len(beyond):
        raise KeysError(
            f"values: number {beyond[0]} is {values[beyond[0]]}, which {dtype} does not hold"
        )
    return rounded


def _converted(what: str, numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if len(numbers) == 0:
        return np.empty(0, dtype)
    if numbers.dtype.kind not in "uif" or numbers.dtype.itemsize > 8:
        advice = _advice(numbers) if what == "keys" else ""
        raise KeysError(f"{what} have type {numbers.dtype}, needs {dtype}{advice}")
    if dtype.kind != "f" and numbers.dtype.kind == "f":
        raise KeysError(f"{what} have type {numbers.dtype}, needs {dtype}")
    if numbers.dtype.kind != "f":
        _check_exact(what, numbers, dtype)
    return numbers.astype(dtype)


def _check_exact(what: str, integers: np.ndarray, dtype: np.dtype) -> None:
    least, most = VALUE_TYPES[dtype.name]
    if int(integers.min()) >= least and int(integers.max()) <= most:
        return
    for position, integer in enumerate(integers.tolist()):
        # a float holds larger ones, too, that end in zeros: 2^60
        is_float = dtype.kind == "f" and int(dtype.type(integer)) == integer
        if not (is_float or least <= integer <= most):
            raise KeysError(
                f"{what}: number {position} is {integer}, which {dtype} does not hold exactly"
            )


def checked(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a native method; what it refuses is a `KeysError`."""
    try:
        return method(*arguments)
    except (ValueError, TypeError, IndexError) as error:
        raise KeysError(str(error)) from error
