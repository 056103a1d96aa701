"""Keys that are times: `datetime64` and `timedelta64` of one unit, held as their integers."""

from datetime import date, timedelta
from typing import Any

import numpy as np

from headrace.index.errors import KeysError

_SCALARS: dict[str, tuple[type, ...]] = {
    "M": (np.datetime64, date),  # a datetime is a date
    "m": (np.timedelta64, timedelta),
}
_ADVICE = "needs a time without one: convert it to UTC and drop the zone"


class TimeKeys:
    """Single keys of one time type, to integers and back.

    Parameters
    ----------
    dtype : `datetime64` or `timedelta64` with a unit.
    """

    __slots__ = ("_dtype", "_type")

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._type = dtype.type

    def number_of(self, key: Any) -> Any:
        """Return the integer of one time; NotImplemented for what is no single key.

        Raises
        ------
        KeysError : it is a number, has a time zone, is NaT, or the unit does not hold it.
        """
        if not isinstance(key, _SCALARS[self._dtype.kind]):
            if isinstance(key, int | float | np.generic) or key is None:
                raise KeysError(f"key is {key!r}, needs {self._dtype}")
            return NotImplemented
        time = _scalar(key, self._type)
        exact = _held_exactly(time, self._dtype)
        if exact is None:
            reason = "is NaT" if np.isnat(time) else f"is {key!r}, which {self._dtype} cannot hold"
            raise KeysError(f"key {reason}, needs {self._dtype}")
        return int(exact.astype(np.int64))

    def key_of(self, number: int) -> np.generic:
        """Return the time of an integer."""
        return self._type(number, np.datetime_data(self._dtype))


def is_time(dtype: np.dtype) -> bool:
    """Return whether a type is of times."""
    return dtype.kind in "mM"


def time_type(what: str, dtype: np.dtype) -> np.dtype:
    """Return a type of times in this machine's byte order.

    Raises
    ------
    KeysError : it has no unit.
    """
    if np.datetime_data(dtype)[0] == "generic":
        raise KeysError(f"{what} is {dtype} without a unit, needs one: {dtype}[ns], for example")
    return dtype.newbyteorder("=")


def times_of(what: str, objects: np.ndarray) -> np.ndarray | None:
    """Return an array of Python's or pandas' time objects as times; None: they are no times.

    Raises
    ------
    KeysError : one has a time zone, is missing, or is of another type than the first.
    """
    for kind, scalars in _SCALARS.items():
        if len(objects) and isinstance(objects[0], scalars):
            scalar = np.datetime64 if kind == "M" else np.timedelta64
            for position, time in enumerate(objects):
                if not isinstance(time, scalars):
                    raise KeysError(f"{what}: number {position} is {time!r}, needs a time")
            return np.array([_scalar(time, scalar) for time in objects])
    return None


def times_as(what: str, times: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return times in another unit, none of them NaT.

    Raises
    ------
    KeysError : they are not of this kind, or the unit does not hold one exactly.
    """
    if times.dtype.kind != dtype.kind:
        raise KeysError(f"{what} have type {times.dtype}, needs {dtype}")
    missing = np.flatnonzero(np.isnat(times))
    if len(missing):
        raise KeysError(f"{what}: number {missing[0]} is NaT, needs times")
    if times.dtype == dtype:
        return times.astype(dtype, copy=False)
    try:
        converted = times.astype(dtype)
        wrong = np.flatnonzero(converted.astype(times.dtype) != times)
    except OverflowError as error:
        raise KeysError(f"{what} have type {times.dtype}, which {dtype} cannot hold") from error
    if len(wrong):
        raise KeysError(
            f"{what}: number {wrong[0]} is {times[wrong[0]]}, which {dtype} does not hold exactly"
        )
    return converted


def _scalar(key: Any, kind: type[np.generic]) -> Any:
    if getattr(key, "tzinfo", None) is not None:
        raise KeysError(f"key {key!r} has a time zone, {_ADVICE}")
    if isinstance(key, np.generic):
        return key
    # of pandas, whose times have nanoseconds
    name = "to_datetime64" if kind is np.datetime64 else "to_timedelta64"
    convert = getattr(key, name, None)
    return kind(key) if convert is None else convert()


def _held_exactly(time: Any, dtype: np.dtype) -> Any:
    """Return a time in a unit; None: it is NaT, or the unit does not hold it."""
    if np.isnat(time):
        return None
    try:
        exact = time.astype(dtype)
        return exact if not np.isnat(exact) and exact.astype(time.dtype) == time else None
    except (OverflowError, TypeError):
        return None
