"""An index's columns as a table of Arrow."""

import numpy as np
import pyarrow as pa

from headrace.index.errors import KeysError
from headrace.index.run.times import is_time

_UNITS = ("s", "ms", "us", "ns")


def table_of(keys: np.ndarray, values: np.ndarray | None, key: str, value: str) -> pa.Table:
    """Return keys and values as columns of a table.

    Raises
    ------
    KeysError : both columns have one name; Arrow has no type for the keys' unit.
    """
    if values is not None and key == value:
        raise KeysError(f"both columns are named {key!r}, needs two names")
    columns = {key: pa.array(_in_unit_of_arrow(keys))}
    if values is not None:
        columns[value] = pa.array(values)
    return pa.table(columns)


def _in_unit_of_arrow(keys: np.ndarray) -> np.ndarray:
    if not is_time(keys.dtype):
        return keys
    kind = "datetime64" if keys.dtype.kind == "M" else "timedelta64"
    unit, count = np.datetime_data(keys.dtype)
    if unit in _UNITS and count == 1:
        return keys
    try:
        converted = keys.astype(f"{kind}[s]")
        if np.array_equal(converted.astype(keys.dtype), keys):
            return converted
    except OverflowError:  # a second has too many of the unit
        pass
    raise KeysError(f"keys have type {keys.dtype}, which Arrow has no type for")
