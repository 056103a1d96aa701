"""Keys to rows of a table: batches against a dict, threads, rows that are used again."""

import copy
import heapq
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ArtifactError
from headrace.index import Configuration, Index, KeysError, ShardedIndex
from headrace.index.tables import LEAVES
from tests.tiers import case


class Rows:
    """What a `ShardedIndex` is to do, by a dict and a heap of free rows."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.free: list[int] = []
        self.end = 0

    def find_or_insert(self, keys: list[int]) -> tuple[list[int], list[bool]]:
        new = []
        for key in keys:
            new.append(key not in self.rows)
            if new[-1]:
                if self.free:
                    self.rows[key] = heapq.heappop(self.free)
                else:
                    self.rows[key], self.end = self.end, self.end + 1
        return [self.rows[key] for key in keys], new

    def erase(self, keys: list[int]) -> list[int]:
        return [self.rows.pop(key, -1) for key in keys]

    def release(self, rows: list[int]) -> None:
        self.free = sorted({*self.free, *rows} - {-1})
        while self.free and self.free[-1] == self.end - 1:
            self.end = self.free.pop()


KEYS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), max_size=40)
CALLS = st.lists(st.tuples(st.sampled_from(["find_or_insert", "erase", "release"]), KEYS))


@settings(max_examples=60, deadline=None)
@given(CALLS, st.sampled_from(LEAVES), st.sampled_from([1, 4, 16]))
def test_calls_do_what_a_dict_and_free_rows_do(
    calls: list[tuple[str, list[int]]], leaf: str, shards: int
) -> None:
    index = ShardedIndex(dtype=np.int64, shards=shards, plan=Configuration(leaf=leaf))
    model = Rows()
    retired: list[int] = []
    for call, numbers in calls:
        keys = np.array(numbers, np.int64)
        if call == "find_or_insert":
            rows, new = index.find_or_insert(keys)
            assert (rows.tolist(), new.tolist()) == model.find_or_insert(numbers)
        elif call == "erase":
            rows = index.erase(keys).tolist()
            assert rows == model.erase(numbers)
            retired += [row for row in rows if row >= 0]
        else:
            index.release([*retired, -1])
            model.release(retired)
            retired = []
        index.verify()
        assert len(index) == len(model.rows)
        assert (index.rows, index.free_rows) == (model.end, len(model.free))
        assert index.retired_rows == len(retired)
        assert index.find(keys).tolist() == [model.rows.get(key, -1) for key in numbers]
    keys, rows = index.items()
    assert dict(zip(keys.tolist(), rows.tolist(), strict=True)) == model.rows
    assert keys.tolist() == sorted(model.rows)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=50), max_size=6), st.sampled_from(LEAVES))
def test_an_index_finds_or_inserts_as_a_dict(batches: list[list[int]], leaf: str) -> None:
    for dtype in (np.uint64, np.int64, np.float64):
        index = Index(dtype=dtype, value_dtype=np.uint32, plan=Configuration(leaf=leaf))
        reference: dict[int, int] = {}
        for batch in batches:
            free = np.arange(len(reference), len(reference) + len(set(batch)), dtype=np.uint32)
            expected_new = []
            for key in batch:
                expected_new.append(key not in reference)
                reference.setdefault(key, len(reference))
            values, new = index.find_or_insert(np.array(batch, dtype), free)
            assert new.tolist() == expected_new
            assert values.tolist() == [reference[key] for key in batch]
        index.verify()
        assert dict(zip(index.keys().tolist(), index.range()[1].tolist(), strict=True)) == reference


def test_an_index_refuses_too_few_values_before_it_changes() -> None:
    """Blocks of keys are encoded one after another: 2,000 keys are more than one block."""
    for dtype in (np.uint64, np.int64):
        index = Index(np.array([7], dtype), np.array([70]))
        keys = np.repeat(np.arange(2000, dtype=dtype), 2)
        with pytest.raises(KeysError, match="values are 1998, needs at least 1999, one for each"):
            index.find_or_insert(keys, np.arange(1998))
        assert len(index) == 1
        values, new = index.find_or_insert(keys, np.arange(1999))
        assert new.sum() == 1999
        assert values[14] == 70
        assert not new[14]
        index.verify()
    with pytest.raises(KeysError, match="this index has keys alone"):
        Index([1]).find_or_insert([1], [2])


def test_threads_get_distinct_rows() -> None:
    """One thread alone is told that a key is new, and no row is given to two keys."""
    index = ShardedIndex(shards=8)
    batches = [np.random.default_rng(seed).integers(0, 20_000, (40, 500)) for seed in range(4)]

    def insert(batch: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return [(keys, *index.find_or_insert(keys)) for keys in batch.astype(np.uint64)]

    with ThreadPoolExecutor(4) as pool:
        answers = [answer for thread in pool.map(insert, batches) for answer in thread]
    keys = np.concatenate([answer[0] for answer in answers])
    rows = np.concatenate([answer[1] for answer in answers])
    new = np.concatenate([answer[2] for answer in answers])
    distinct = np.unique(keys)
    assert new.sum() == len(distinct) == len(index)
    assert len(np.unique(keys[new])) == len(distinct)
    assert (index.find(keys) == rows).all()
    assert len(np.unique(index.find(distinct))) == len(distinct)
    assert index.rows == len(distinct) + index.free_rows
    index.verify()


def test_threads_erase_and_insert_beside_each_other() -> None:
    index = ShardedIndex(dtype=np.int64, shards=4)

    def churn(thread: int) -> None:
        random = np.random.default_rng(thread)
        for _ in range(60):
            own = random.integers(0, 1000, 200) * 4 + thread
            rows, _ = index.find_or_insert(own)
            assert (index.find(own) == rows).all()
            freed = index.erase(np.unique(own)[::2])
            assert (freed >= 0).all()
            index.release(freed)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    index.verify()
    _, rows = index.items()
    assert len(np.unique(rows)) == len(rows)
    assert index.retired_rows == 0
    assert index.rows == len(index) + index.free_rows


def test_equal_keys_of_a_batch_use_one_row() -> None:
    """Rows are reserved before shards are locked: those of equal keys are free again."""
    index = ShardedIndex()
    rows, new = index.find_or_insert(np.full(100_000, 5, np.uint64))
    assert (rows == 0).all()
    assert new.tolist() == [True] + [False] * 99_999
    assert (index.rows, index.free_rows) == (1, 0)
    rows, _ = index.find_or_insert([6, 5, 6, 7])
    assert rows.tolist() == [1, 0, 1, 2]


def test_an_index_is_made_of_the_rows_of_a_checkpoint() -> None:
    index = ShardedIndex([1.5, -2.5, 8.0], [4, 0, 2], shards=3)
    assert (index.shards, index.rows, index.free_rows, index.dtype) == (4, 5, 2, np.float64)
    assert index.find_or_insert([9.0, 1.5, 10.0, 11.0])[0].tolist() == [1, 4, 3, 5]
    for copied in (copy.copy(index), pickle.loads(pickle.dumps(index))):
        assert repr(copied) == repr(index)
        assert [part.tolist() for part in copied.items()] == [
            part.tolist() for part in index.items()
        ]
        copied.verify()
    assert "6 keys, float64 to 6 rows, 4 shards" in repr(index)
    assert ShardedIndex([30, 10]).find([10, 20, 30]).tolist() == [1, -1, 0]
    assert ShardedIndex([]).rows == 0
    assert index.nbytes > 0


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ShardedIndex([1, 1]), "keys have equal ones, needs each once, with its row"),
    (lambda: ShardedIndex([1, 2], [3, 3]), "row 3 appears twice"),
    (lambda: ShardedIndex([1, 2], [3, -1]), "row -1 is out of range, needs 0 to"),
    (lambda: ShardedIndex([1, 2], [3]), "rows are 1, needs 2, one for each key"),
    (lambda: ShardedIndex([1], [2**62]), "row 4611686018427387904 is out of range, needs 0 to"),
    # was taken, and the number of rows negative
    (lambda: ShardedIndex([1], [2**63 - 1]), "row 9223372036854775807 is out of range, needs 0"),
    (lambda: ShardedIndex(rows=[3]), "rows are given without keys"),
    (lambda: ShardedIndex(shards=0), "shards is 0, needs 1 to 256"),
    (lambda: ShardedIndex(shards=257), "shards is 257, needs 1 to 256"),
    (lambda: ShardedIndex(dtype="f4"), "dtype is float32, needs one of uint64, int64, float64"),
    (lambda: ShardedIndex([float("nan")]), "key 0 is NaN"),
    (lambda: ShardedIndex([1], threads=0), "threads is 0, needs at least 1"),
    (lambda: ShardedIndex([1], threads=1.5), "threads is 1.5, needs an integer"),  # pyright: ignore
    (lambda: ShardedIndex(shards=1.5), "shards is 1.5, needs an integer of 1 to 256"),  # pyright: ignore
    (lambda: ShardedIndex([1]).find((1, 2)), "keys are the tuple (1, 2), needs a key, or a list"),
    (lambda: ShardedIndex(plan=3), "the structure is given by 3"),  # pyright: ignore
    (lambda: ShardedIndex(dtype="u8").find([-1]), "number 0 is -1, which uint64 does not hold"),
    (lambda: ShardedIndex([1]).find_or_insert([1.5]), "keys have type float64, needs int64"),
    (lambda: ShardedIndex([1]).release([0]), "row 0 is not retired: needs rows that `erase` has"),
    (lambda: ShardedIndex([1]).release([0.5]), "rows have type float64, needs int64"),
]


def test_what_is_refused() -> None:
    for call, message in REFUSED:
        with case(message), pytest.raises(KeysError) as raised:
            call()
        assert message in str(raised.value)
    with pytest.raises(ArtifactError):
        ShardedIndex(plan="/dev/null")


def test_rows_are_released_all_or_none() -> None:
    index = ShardedIndex([1, 2, 3])
    rows = index.erase([1, 3, 4, 1])
    assert rows.tolist() == [0, 2, -1, -1]
    for wrong in ([0, 1], [0, 0]):
        with pytest.raises(KeysError, match="is not retired"):
            index.release(wrong)
        assert (index.retired_rows, index.free_rows) == (2, 0)
    assert index.find_or_insert([5])[0].tolist() == [3]
    index.release(rows)
    assert index.find_or_insert([6, 7])[0].tolist() == [0, 2]
    index.verify()
