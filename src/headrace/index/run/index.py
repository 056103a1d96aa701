"""`Index`: an ordered map from numbers to numbers, for one key or for arrays of keys."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from headrace import _native
from headrace.facades import offered_by
from headrace.index.configuration import Configuration
from headrace.index.errors import InvariantError, KeysError
from headrace.index.plan.plan import IndexPlan
from headrace.index.run.arrow import table_of
from headrace.index.run.columns import (
    checked,
    count_as,
    is_row,
    keys_as,
    named_type,
    row_of,
    threads_as,
    type_of_keys,
    value_type_of,
    values_as,
)
from headrace.index.run.keyed import KeyedRows
from headrace.index.run.mapping import MappingMethods
from headrace.index.run.order import BLOCK
from headrace.index.run.times import TimeKeys, is_time
from headrace.index.tables import VALUE_TYPES

if TYPE_CHECKING:
    import pyarrow as pa


@offered_by("headrace.index")
class Index(MappingMethods):
    """An ordered map of 64-bit keys to values of 32 or 64 bits, or a set of keys.

    It has the methods of dictionaries and, in order, of ``SortedDict``; `keys` and `values` return
    arrays. ``index[low:high]`` is an index of the keys from `low` to below `high`.

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
        int64 or float64, or times (`datetime64`, `timedelta64`) in their unit. -0.0 is the same key
        as 0.0. A mapping or an index: its keys, and its values if none are given. None: an empty
        index.
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

    __slots__ = ()

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
        sorting_threads = threads_as(threads)
        if isinstance(keys, Mapping | KeyedRows):
            keys, own_values = _columns_of(keys)
            values = own_values if values is None else values
        numbers = None if keys is None else row_of("keys", keys)
        if values is not None and is_row(values):
            values = row_of("values", values)
        value_type = _value_type(values, value_dtype)
        if plan is not None and configuration is not None:
            raise KeysError("both a plan and a configuration are given, needs one of them")
        self._plan, self._configuration = structure_of(
            (configuration or Configuration()) if plan is None else plan
        )
        self._dtype = type_of_keys(numbers, dtype)
        self._raw = np.dtype(np.int64) if is_time(self._dtype) else self._dtype
        self._value_dtype = None if value_type is None else np.dtype(value_type)
        times = TimeKeys(self._dtype) if is_time(self._dtype) else None
        self._map = _native.IndexMap(
            self._raw.name,
            value_type or "none",
            native_configuration(self._configuration),
            times and times.number_of,
            times and times.key_of,
        )
        if numbers is not None:
            self._build(numbers, values, sorting_threads)
        elif values is not None:
            raise KeysError("values are given without keys")

    def _build(self, keys: np.ndarray, values: Any, threads: int) -> None:
        column = keys_as(keys, self._dtype).view(self._raw)
        data = values_as(values, self._value_dtype, len(column))
        try:
            self._map.build(column, data, threads)
        except ValueError as error:
            raise KeysError(str(error)) from error

    # -- what it is --------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype:
        """Type of the keys: uint64, int64 or float64, or of times with their unit."""
        return self._dtype

    @property
    def native_dtype(self) -> np.dtype:
        """Type of the keys in the native map, for the stages of this capability: int64 of times."""
        return self._raw

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

    # -- columns -----------------------------------------------------------------------------------

    @classmethod
    def fromkeys(cls, keys: Any, value: Any = None) -> Self:
        """Return an index of keys, all with one value; None: a set of keys."""
        if isinstance(keys, Mapping | KeyedRows):
            keys = _columns_of(keys)[0]
        return cls(keys, value)

    def to_arrow(self, key: str = "key", value: str = "value") -> "pa.Table":
        """Return keys and values, in order, as a table of Arrow with columns of these names.

        Numbers are not copied again. Polars and DuckDB read an index itself, as such a table.

        Raises
        ------
        KeysError : Arrow has no type for the keys' unit of time.
        """
        return table_of(*self.range(), key, value)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    # -- structure and copies ----------------------------------------------------------------------

    def configure(self, plan: IndexPlan | Configuration) -> None:
        """Set the configuration of leaves that are made from now on; `convert` changes others."""
        self._plan, self._configuration = structure_of(plan)
        self._map.configure(native_configuration(self._configuration))

    def convert(self, cursor: int = 0, most_keys: int = BLOCK) -> int | None:
        """Convert leaves to the configuration, from a cursor on, of about `most_keys` keys.

        Returns the next call's cursor, or None at the end.
        """
        first = count_as("cursor", cursor, 0)
        return checked(self._map.convert, first, count_as("most_keys", most_keys, 1))

    def shrink_to_fit(self) -> None:
        """Give memory back that erased keys left: the leaves are made anew, in what they need.

        An index with at most 65,536 keys left does so by itself when it erases.
        """
        self._map.shrink_to_fit()

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
        for name in ("_configuration", "_dtype", "_plan", "_raw", "_value_dtype"):
            object.__setattr__(self, name, getattr(source, name))

    def _like(self, keys: np.ndarray, values: np.ndarray | None) -> Self:
        return self._restored(keys, values, self._plan, self._configuration)

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


def _columns_of(source: Any) -> tuple[Any, Any]:
    if isinstance(source, KeyedRows):
        return source.range()
    return list(source), list(source.values())


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
