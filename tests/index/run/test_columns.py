"""Keys that are times, and columns of pandas, Polars and Arrow in and out."""

import copy
import itertools
import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sortedcontainers import SortedDict

from headrace.index import Index, KeysError, TraceRecorder

DAYS = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")


def test_times_are_keys_in_their_unit() -> None:
    days = DAYS.astype("datetime64[ns]")
    index = Index(days[::-1], np.arange(len(days))[::-1])
    expected = SortedDict(zip(days, range(len(days)), strict=True))
    assert index.dtype == "datetime64[ns]"
    assert index.keys().dtype == "datetime64[ns]"
    assert list(index) == list(expected)
    assert index[np.datetime64("2024-02-01")] == 31
    assert index[datetime(2024, 2, 1)] == index[date(2024, 2, 1)] == 31
    assert index.get(datetime(2024, 2, 1, 1)) is None
    assert index[DAYS[:3]].tolist() == [0, 1, 2]
    assert index[[date(2024, 1, 3), date(2024, 1, 1)]].tolist() == [2, 0]
    assert index.min() == days[0]
    assert index.floor(datetime(2024, 1, 9, 12)) == np.datetime64("2024-01-09")
    assert index.lower_bound(datetime(2024, 1, 9, 12)) == (np.datetime64("2024-01-10"), 9, True)
    assert index.rank(np.datetime64("2024-01-09T12")) == 9
    assert index.select([0, -1]).tolist() == days[[0, -1]].tolist()
    january = index[date(2024, 1, 1) : date(2024, 2, 1)]
    assert len(january) == 31
    assert january == dict(zip(days[:31], range(31), strict=True))
    assert list(index.irange(days[3], days[5])) == list(days[3:6])
    assert next(reversed(january)) == days[30]
    cursor = index.cursor(days[7])
    assert cursor.item == (days[7], 7)
    index[date(2025, 1, 1)] = 5
    assert index.max() == np.datetime64("2025-01-01")
    assert index.popitem() == (np.datetime64("2025-01-01"), 5)
    for other in (copy.copy(index), pickle.loads(pickle.dumps(index))):
        assert other == index
        assert other.dtype == index.dtype
    index.verify()


def test_an_index_of_times_is_recorded() -> None:
    index = Index(DAYS, 1)
    with TraceRecorder(index) as recorder:
        index.find(DAYS)
        index[DAYS[0]] = 2
    assert recorder.trace is not None
    assert len(recorder.trace) == len(DAYS) + 1


def test_bounds_are_dates_and_times_of_all_kinds() -> None:
    """A date and a time of Python do not compare with each other."""
    index = Index(DAYS)
    kinds = [date(2024, 1, 5), datetime(2024, 1, 5), np.datetime64("2024-01-05", "ns")]
    for low, high in itertools.product(kinds, kinds):
        assert list(index.irange(low, high)) == [DAYS[4]]
        assert list(index.irange(low, high, (False, True))) == []
    assert list(index.irange(date(2024, 1, 4), datetime(2024, 1, 6), (False, True))) == [*DAYS[4:6]]


def test_durations_are_keys() -> None:
    index = Index(np.array([3, -1, 2], "timedelta64[s]"), [1, 2, 3])
    assert index[timedelta(seconds=2)] == 3
    assert index.min() == np.timedelta64(-1, "s")
    assert timedelta(milliseconds=1) not in index
    assert Index([timedelta(hours=1)]).dtype == "timedelta64[us]"
    assert date(2024, 1, 1) in Index([date(2024, 1, 1)])
    assert len(Index(dtype="datetime64[ms]")) == 0


AWARE = datetime(2024, 1, 1, tzinfo=UTC)
WRONG: list[tuple[Callable[[Index], Any], str]] = [
    (lambda i: i[5], r"key is 5, needs datetime64\[D\]"),
    (lambda i: i[[5]], r"keys have type int64, needs datetime64\[D\]"),
    (lambda i: i[np.timedelta64(5, "D")], "needs datetime64"),
    (lambda i: i["2024-01-01"], "keys have type <U10, needs datetime64"),
    (lambda i: i["2024-01-01":], "key is '2024-01-01', needs a time"),
    (lambda i: i[np.datetime64("NaT")], "key is NaT"),
    (lambda i: i[np.array(["2024-01-01", "NaT"], "M8[D]")], "number 1 is NaT, needs times"),
    (lambda i: i[datetime(2024, 1, 1, 5)], "cannot hold"),
    (lambda i: i[np.array(["2024-01-01T05"], "M8[h]")], "number 0 is 2024-01-01T05, which"),
    (lambda i: i[AWARE], "has a time zone, needs a time without one"),
    (lambda i: i[[AWARE]], "has a time zone, needs a time without one"),
    (lambda i: Index([date(2024, 1, 1), 5]), "number 1 is 5, needs a time"),
    (lambda i: Index(dtype="datetime64"), "without a unit, needs one"),
    (lambda i: Index([1], dtype="datetime64[s]"), "keys have type int64, needs datetime64"),
    (lambda i: Index([1], [np.datetime64("2024-01-01")]), "values have type datetime64"),
    (lambda i: Index(np.array([1], "m8[as]")).to_arrow(), "which Arrow has no type for"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_times_that_cannot_be_keys_are_refused(call: Callable[[Index], Any], message: str) -> None:
    index = Index(DAYS, 1)
    with pytest.raises(KeysError, match=message):
        call(index)
    assert len(index) == len(DAYS)


def test_times_beyond_a_unit_are_not_in_an_index() -> None:
    """From days to nanoseconds NumPy wraps around: year 1 is a date of the 18th century."""
    index = Index(DAYS.astype("datetime64[ns]"))
    assert date(1, 1, 1) not in index
    assert np.datetime64("9999-12-31") not in index
    with pytest.raises(KeysError, match="9999-12-31"):
        index.insert(np.array(["9999-12-31"], "M8[D]"))
    for key in (None, 5, "2024-01-01", np.datetime64("NaT"), AWARE, timedelta(1)):
        assert key not in index


def test_columns_of_arrow_go_in_and_out() -> None:
    keys, values = pa.chunked_array([[3, 1], [2]]), pa.array([30.0, 10.0, 20.0])
    index = Index(keys, values)
    assert index == {1: 10.0, 2: 20.0, 3: 30.0}
    assert index[pa.array([1, 3])].tolist() == [10.0, 30.0]
    table = index.to_arrow("id", "price")
    assert table.to_pydict() == {"id": [1, 2, 3], "price": [10.0, 20.0, 30.0]}
    assert pa.table(index).equals(index.to_arrow())
    assert Index([1, 2]).to_arrow().column_names == ["key"]
    times = Index(DAYS, 1).to_arrow()
    assert times.schema.field("key").type == pa.timestamp("s")
    assert Index(times["key"], times["value"]) == Index(DAYS.astype("datetime64[s]"), 1)
    for wrong, message in (
        (pa.array([1, None]), "1 of 2 are null, needs none"),
        (pa.array(["a"]), "strings: number them"),
        (pa.array([0], pa.timestamp("s", "UTC")), "needs times without a zone: cast them"),
        (pa.array([{"a": 1}]), "keys of several parts: pack them"),
        (pa.array(["a"]).dictionary_encode(), "strings: number them"),
        (pa.array([1]).dictionary_encode(), "cast them to the type of their values"),
    ):
        with pytest.raises(KeysError, match=message):
            Index(wrong)
    with pytest.raises(KeysError, match="both columns are named 'a', needs two names"):
        index.to_arrow("a", "a")


def test_columns_of_nothing_have_no_type() -> None:
    """Those of pandas, of objects, and of Arrow, of the type null, were refused."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for column in (
        pd.Series([], dtype=object),
        pl.Series([]),
        pa.array([], pa.null()),
        pa.chunked_array([], pa.null()),
        np.array([], object),
    ):
        index = Index(column, column)
        assert (index.dtype, index.value_dtype) == (np.uint64, np.float64)
        assert Index([-1], [2]).find(column)[0].tolist() == []
        assert len(Index(column, dtype="datetime64[s]")) == 0


def test_sets_of_keys_take_columns() -> None:
    """`update` and `union` made a list of Arrow's scalars, which was refused."""
    keys = Index([1])
    keys.update(pa.array([2]))
    assert keys.union(pa.chunked_array([[3]])) == {1, 2, 3}
    assert keys.contains(Index([2, 3])).tolist() == [True, False]  # as keys of several parts


def test_no_array_is_made_of_keys_without_their_values() -> None:
    """pandas took the keys for values: `map` took the key at the position that a number names."""
    pd = pytest.importorskip("pandas")
    index, keys = Index([0, 1], [50, 70]), Index([5, 7])
    for call in (np.asarray, pd.Series, pd.DataFrame, pd.Series([1, 0]).map, keys.find):
        with pytest.raises(KeysError, match=r"no array: its columns are keys\(\) and values\(\)"):
            call(index)
    assert pd.Series(index.values(), index.keys()).to_dict() == {0: 50, 1: 70}
    assert np.isin([5, 6], keys).tolist() == [True, False]
    assert np.asarray(keys, np.float32).tolist() == pd.Series(keys).tolist() == [5, 7]


def test_integers_beside_a_missing_one_are_not_rounded() -> None:
    """pandas makes floats of such a column: 2^53 + 1 was stored as 2^53, without an error."""
    pd = pytest.importorskip("pandas")
    for dtype in ("Int64", "int64[pyarrow]"):
        column = pd.Series([2**53 + 1, None], dtype=dtype)
        assert Index([1], column[:1]).items() == {1: 2**53 + 1}.items()
        assert len(Index(column[:0], column[:0])) == 0
        with pytest.raises(KeysError, match="values: elements of the column are missing, needs"):
            Index([1, 2], column)
        with pytest.raises(KeysError, match="keys: elements of the column are missing, needs"):
            Index([1, 2], [3, 4]).find(column)


def test_lists_of_integers_are_of_the_type_that_holds_them() -> None:
    """NumPy makes floats of integers on both sides of 2^63, as of hashes: they were refused."""
    hashes = [2**64 - 1, 5, 2**63 + 1]
    index = Index(hashes, [1, 2, 3], value_dtype="uint64")
    assert index.dtype == np.uint64
    assert index == dict(zip(hashes, [1, 2, 3], strict=True))
    assert Index({2**64 - 1: 1.5, 5: 2.5}) == {2**64 - 1: 1.5, 5: 2.5}
    index.insert(hashes, [2**63, 0, 7])
    assert index[hashes].tolist() == [2**63, 0, 7]
    assert Index([np.uint64(5), -1]).dtype == np.int64  # was of floats
    with pytest.raises(KeysError, match="number 1 is 9223372036854775808, .* no integer type"):
        Index([-1, 2**63])


def test_floats_hold_large_integers_that_end_in_zeros() -> None:
    """An array of them was refused as not held exactly, which one of them was not."""
    index = Index([1.5, 2.0**60], np.array([1, 2], np.float32))
    assert index.find(np.array([2**60, 2**63], np.uint64))[1].tolist() == [True, False]
    index.insert([-(2**63)], [100_000_000])
    assert index[-(2.0**63)] == 1e8
    assert Index([1.5, 2**60]) == {1.5, 2.0**60}
    with pytest.raises(KeysError, match="number 1 is 1152921504606846977, which float64 does not"):
        index.contains([2**60, 2**60 + 1])
    with pytest.raises(KeysError, match="number 0 is 100000001, which float32 does not hold"):
        index.insert([1.0], [100_000_001])


def test_tensors_are_arrays_of_keys() -> None:
    """A tensor of several was refused as one key, and one of one key gave no array."""
    index = Index(torch.arange(4), torch.arange(4.0))
    for count in (1, 3):
        keys = torch.arange(count)
        assert index[keys].tolist() == list(range(count))
        assert index.contains(keys).tolist() == [True] * count
        assert index.insert(keys, keys.float()) == 0
    assert index[torch.tensor(2)] == 2.0
    assert Index([0.5, 2.0]).contains(torch.tensor([2.0])).tolist() == [True]


def test_columns_of_pandas_go_in_and_out() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"time": pd.date_range("2024-01-01", periods=4, freq="h"), "row": range(4)}
    )
    index = Index(frame["time"], frame["row"])
    assert index[frame["time"][2]] == index[pd.Timestamp("2024-01-01T02")] == 2
    assert index[frame["time"][:2]].tolist() == [0, 1]
    assert index[[pd.Timestamp("2024-01-01T02")]].tolist() == [2]
    assert pd.Timestamp("2024-01-01T02:00:00.000000001") not in index
    back = index.to_arrow("time", "row").to_pandas()
    assert back["row"].tolist() == [0, 1, 2, 3]
    assert (back["time"] == frame["time"]).all()
    assert Index(pd.Series([2, 1], dtype="Int64")) == {1, 2}
    assert Index(pd.Series([1.0]), pd.Series([float("nan")])).values() is not None
    with pytest.raises(KeysError):
        Index(pd.Series([1, None], dtype="Int64"))
    with pytest.raises(KeysError, match="time zone"):
        Index(frame["time"].dt.tz_localize("UTC"))


def test_columns_of_polars_go_in_and_out() -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"key": [3, 1], "value": [30, 10]})
    index = Index(frame["key"], frame["value"])
    assert pl.DataFrame(index).to_dict(as_series=False) == {"key": [1, 3], "value": [10, 30]}
    assert index[frame["key"]].tolist() == [30, 10]
    times = pl.Series([datetime(2024, 1, 1)])
    assert datetime(2024, 1, 1) in Index(times)
    with pytest.raises(KeysError, match="1 of 2 are null"):
        Index(pl.Series([1, None]))
    with pytest.raises(KeysError, match="without a zone"):
        Index(times.dt.replace_time_zone("UTC"))
