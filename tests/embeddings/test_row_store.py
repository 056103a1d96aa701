"""Rows of a server: initial values recomputed in NumPy, and the calls of Python."""

import numpy as np
import pytest
from scipy.special import ndtri

from headrace import _native

GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix(z: np.ndarray) -> np.ndarray:
    """SplitMix64's output function."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(seed: int, table: int, ids: np.ndarray, dim: int) -> np.ndarray:
    """Return numbers above 0 and below 1, [ids, dim]."""
    with np.errstate(over="ignore"):
        key = mix(np.array([seed], np.uint64)) + GAMMA * np.uint64(table)
        rows = mix(key + GAMMA * (ids.astype(np.uint64) + np.uint64(1)))
        states = rows[:, None] + GAMMA * np.arange(1, dim + 1, dtype=np.uint64)
        return ((mix(states) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def store(*, float64: bool, most_bytes: int = 1 << 40) -> _native.RowStore:
    tables = [
        _native.RowTable(name="a", number=2, rows=1000, distribution="uniform", scale=0.5),
        _native.RowTable(name="b", number=4, rows=0, distribution="normal", scale=3.0),
        _native.RowTable(name="c", number=5, rows=0, distribution="constant", scale=-1.5),
    ]
    return _native.RowStore(
        tables,
        dim=6,
        state=2,
        state_initial=0.1,
        float64=float64,
        seed=17,
        memory=_native.RowMemory(most_bytes),
    )


IDS = np.array([999, 0, 3, (1 << 63) - 1, 5, 3, 77, 1 << 40], np.int64)
ENDS = np.array([3, 6, 8], np.int64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_initial_values_follow_from_seed_table_id_and_index(dtype: type) -> None:
    rows = store(float64=dtype is np.float64)
    values = np.empty((8, 8), dtype)
    rows.read(IDS, ENDS, values)
    assert [rows.rows(table) for table in range(3)] == [0, 0, 0]
    expected = np.full((8, 8), 0.1)
    expected[:3, :6] = (2 * uniform(17, 2, IDS[:3], 6) - 1) * 0.5
    expected[3:6, :6] = ndtri(uniform(17, 4, IDS[3:6], 6)) * 3.0
    expected[6:, :6] = -1.5
    if dtype is np.float64:
        np.testing.assert_allclose(values, expected, rtol=1e-14)
        assert np.array_equal(values[:3], expected[:3])
    else:
        np.testing.assert_allclose(values, expected, rtol=6e-8)
    fetched = np.empty_like(values)
    rows.fetch(IDS, ENDS, fetched)
    assert np.array_equal(fetched, values)
    assert [rows.rows(table) for table in range(3)] == [3, 3, 2]


def test_rows_are_written_and_listed() -> None:
    rows = store(float64=False)
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    values.flags.writeable = False  # as what arrives
    rows.write(IDS, ENDS, values)
    read = np.empty((8, 8), np.float32)
    rows.read(IDS, ENDS, read)
    assert np.array_equal(read, values)
    ids = np.empty(2, np.int64)
    listed = np.empty((2, 8), np.float32)
    assert rows.scan(1, -1, ids, listed) == 2
    assert ids.tolist() == [3, 5]
    assert np.array_equal(listed, values[[5, 4]])
    assert rows.scan(1, 5, ids, listed) == 1
    assert ids[0] == (1 << 63) - 1
    assert rows.table_bytes(0) >= 3 * 32


def test_wrong_calls_are_named() -> None:
    rows = store(float64=False)
    values = np.empty((8, 8), np.float32)
    with pytest.raises(ValueError, match="table a: id is 1000, needs 0 to 999"):
        rows.fetch(np.where(IDS == 0, 1000, IDS), ENDS, values)
    with pytest.raises(ValueError, match="values need the type float32"):
        rows.fetch(IDS, ENDS, values.astype(np.float64))
    with pytest.raises(TypeError):
        rows.fetch(IDS.astype(np.int32), ENDS, values)  # type: ignore[arg-type]
    values.flags.writeable = False
    with pytest.raises(TypeError):
        rows.read(IDS, ENDS, values)
    with pytest.raises(ValueError, match="distribution is zero, needs uniform, normal or constant"):
        _native.RowTable(name="a", number=0, rows=1, distribution="zero", scale=1.0)


def test_a_limit_on_memory_is_an_error() -> None:
    rows = store(float64=False, most_bytes=3_000_000)
    ids = np.arange(200_000, dtype=np.int64)
    ends = np.array([0, 200_000, 200_000])
    with pytest.raises(MemoryError, match="bytes of memory, may have 3000000"):
        rows.fetch(ids, ends, np.empty((len(ids), 8), np.float32))
    assert 0 < rows.rows(1) < 200_000
    values = np.empty((10, 8), np.float32)
    rows.fetch(ids[:10], np.array([0, 10, 10]), values)
    expected = ndtri(uniform(17, 4, ids[:10], 6)) * 3.0
    np.testing.assert_allclose(values[:, :6], expected, rtol=1e-6)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_rows_are_split_by_server_and_joined(shards: int) -> None:
    random = np.random.default_rng(shards)
    ids = random.integers(0, 1000, 300)
    ends = np.array([0, 100, 300])
    split = _native.split_rows(ids, ends, shards)
    assert np.array_equal(ids[split.places], split.ids)
    values = random.random((300, 4))
    gathered, joined = np.empty_like(values), np.empty_like(values)
    _native.gather_rows(split.places, values, gathered)
    assert np.array_equal(gathered, values[split.places])
    _native.scatter_rows(split.places, gathered, joined)
    assert np.array_equal(joined, values)
    tables = split.ends.reshape(shards, 3)
    assert np.array_equal(tables.sum(axis=0), ends)
    assert np.array_equal(tables[:, -1], np.diff(split.first))
    if shards > 1:
        counts = [len(set(ids[ids // shards == place])) for place in range(200)]
        assert max(counts) <= shards
        assert np.diff(split.first).min() > 300 / shards / 2


def test_a_large_table_has_memory_for_the_rows_that_are_used_alone() -> None:
    """Numbers of all ids would be of 8 KB beside each of rows that lie so far apart."""
    table = _native.RowTable(
        name="a", number=2, rows=(1 << 27) + 1, distribution="constant", scale=0.5
    )
    rows = _native.RowStore(
        [table], dim=6, state=2, state_initial=0.1, seed=17, memory=_native.RowMemory(1 << 40)
    )
    ids = np.arange(0, 1 << 27, 1 << 17)
    ends = np.array([len(ids)])
    rows.fetch(ids, ends, np.empty((len(ids), 8), np.float32))
    assert rows.table_bytes(0) < 200 * len(ids)
    ids[7] = (1 << 27) + 1
    with pytest.raises(ValueError, match="id is 134217729, needs 0 to 134217728"):
        rows.fetch(ids, ends, np.empty((len(ids), 8), np.float32))
