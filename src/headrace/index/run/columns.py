"""Arrays of keys and values, brought to the types of an index without a loss.

Nothing is rounded or wraps around: a number that the index's type cannot hold is an error. What has
the exact type already is used as it is, without a copy.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from headrace.index.errors import KeysError
from headrace.index.tables import VALUE_TYPES

_EXACT = VALUE_TYPES["float64"][1]
"""Up to here a float64 holds every integer."""


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
    raise KeysError(f"keys have type {keys.dtype}, needs integers or floats of at most 64 bits")


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
        masked elements; an integer of a list has no place in the type of all of them.
    """
    if isinstance(numbers, slice):
        raise KeysError(
            f"{what} are a slice, needs a key or an array of keys; range(low, high) returns those "
            "from low to below high, and their values"
        )
    if numbers is None:
        raise KeysError(f"{what} are None, needs numbers")
    if isinstance(numbers, np.ma.MaskedArray) and np.ma.is_masked(numbers):
        raise KeysError(f"{what}: elements of the array are masked, needs those that count alone")
    try:
        array = np.asarray(numbers)
    except ValueError as error:
        raise KeysError(f"{what}: {error}") from error
    if array.dtype == np.float64 and isinstance(numbers, Sequence):
        # NumPy makes floats of integers that have no type in common, and of those beside floats
        for place, number in enumerate(numbers):
            if isinstance(number, int | np.integer) and abs(int(number)) > _EXACT:
                raise KeysError(
                    f"{what}: number {place} is {number}, which float64 does not hold exactly, and "
                    "no integer type holds all of them"
                )
    if array.ndim == 0:
        array = array.reshape(1)
    if array.ndim != 1:
        raise KeysError(f"{what} have {array.ndim} dimensions, needs one")
    return array


def keys_as(keys: Any, dtype: np.dtype, what: str = "keys") -> np.ndarray:
    """Return keys as a contiguous array of an index's type.

    Raises
    ------
    KeysError : a key cannot be held by the type; the message has its position.
    """
    array = row_of(what, keys)
    if array.dtype != dtype:
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
            raise KeysError("values are given, but this index has keys alone")
        return None
    if values is None:
        raise KeysError(f"values are missing: this index has values of type {dtype}")
    array = row_of("values", values)
    if np.ndim(values) == 0:
        array = np.repeat(array, count)
    if len(array) != count:
        raise KeysError(f"values are {len(array)}, keys {count}: needs one value for each key")
    if array.dtype != dtype:
        rounded = dtype.kind == "f" and array.dtype.kind == "f"
        array = array.astype(dtype) if rounded else _converted("values", array, dtype)
    return np.ascontiguousarray(array)


def _converted(what: str, numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if len(numbers) == 0:
        return np.empty(0, dtype)
    if numbers.dtype.kind not in "uif" or numbers.dtype.itemsize > 8:
        raise KeysError(f"{what} have type {numbers.dtype}, needs {dtype}")
    if dtype.kind != "f" and numbers.dtype.kind == "f":
        raise KeysError(f"{what} have type {numbers.dtype}, needs {dtype}")
    if numbers.dtype.kind != "f":
        _check_exact(what, numbers, dtype)
    return numbers.astype(dtype)


def _check_exact(what: str, integers: np.ndarray, dtype: np.dtype) -> None:
    least, most = VALUE_TYPES[dtype.name]
    if int(integers.min()) >= least and int(integers.max()) <= most:
        return
    position = next(
        i for i, integer in enumerate(integers.tolist()) if not least <= integer <= most
    )
    raise KeysError(
        f"{what}: number {position} is {integers[position]}, which {dtype} does not hold exactly"
    )


def checked(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a native method; what it refuses is a `KeysError`."""
    try:
        return method(*arguments)
    except (ValueError, TypeError, IndexError) as error:
        raise KeysError(str(error)) from error
