"""`Index` against a sorted dict: the same operations give the same results."""

import copy
import pickle
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from headrace.index.configuration import Configuration
from headrace.index.run.index import Index
from headrace.index.tables import LEAVES
from headrace.index.trace import encode
from tests.tiers import case

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "uint64": st.integers(0, 300) | st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**64 - 1]),
    "int64": st.integers(-150, 150)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([-(2**63), 2**63 - 1]),
    "float64": st.integers(-150, 150).map(float)
    | st.floats(allow_nan=False)
    | st.sampled_from([0.0, -0.0, float("inf"), float("-inf")]),
}
VALUES = {
    "uint32": st.integers(0, 2**32 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "float32": st.floats(allow_nan=False, width=32),
    "uint64": st.integers(0, 2**64 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
}
ACTIONS = [
    "insert",
    "insert one",
    "erase",
    "erase one",
    "update",
    "find",
    "bounds",
    "range",
    "scan",
]


class Pair:
    """An index and a sorted dict that hold the same."""

    def __init__(self, key_type: str, value_type: str, configuration: Configuration) -> None:
        self.types = np.dtype(key_type), np.dtype(value_type)
        self.index = Index(dtype=key_type, value_dtype=value_type, configuration=configuration)
        self.known: SortedDict = SortedDict()

    def run(self, action: str, keys: list[Any], values: list[Any]) -> None:
        column, data = np.array(keys, self.types[0]), np.array(values, self.types[1])
        pairs = list(zip(keys, data.tolist(), strict=True))
        match action:
            case "insert":
                assert self.index.insert(column, data) == len(set(keys) - set(self.known))
                self.known.update(pairs)
            case "insert one":
                for key, value in pairs[:3]:
                    assert self.index.insert(key, value) == (key not in self.known)
                    self.known[key] = value
            case "erase":
                assert self.index.erase(column) == len(set(keys) & set(self.known))
                for key in keys:
                    self.known.pop(key, None)
            case "erase one":
                for key in keys[:3]:
                    assert self.index.erase(key) == (self.known.pop(key, None) is not None)
            case "update":
                there = [(key, value) for key, value in pairs if key in self.known]
                assert self.index.assign(column, data) == len(there)
                self.known.update(there)
            case _:
                self.read(action, keys)

    def read(self, action: str, keys: list[Any]) -> None:
        column = np.array(keys, self.types[0])
        match action:
            case "find":
                values, found = self.index.find(column, default=7)
                assert values is not None
                assert values.tolist() == [self.known.get(key, 7) for key in keys]
                assert found.tolist() == [key in self.known for key in keys]
                assert self.index.contains(column).tolist() == found.tolist()
                assert [self.index.get(key) for key in keys] == [self.known.get(k) for k in keys]
                assert [key in self.index for key in keys] == found.tolist()
            case "bounds":
                bounds, _, found = self.index.lower_bound(column)
                for key, bound, there in zip(keys, bounds, found, strict=True):
                    wanted = next(self.known.irange(minimum=key), None)
                    assert there == (wanted is not None)
                    assert wanted is None or bound == wanted
            case "range":
                for low, high in pairwise(keys):
                    found, values = self.index.range(low, high)
                    wanted = list(self.known.irange(low, high, inclusive=(True, False)))
                    assert found.tolist() == wanted
                    assert values is not None
                    assert values.tolist() == [self.known[key] for key in wanted]
            case "scan":
                for first in keys:
                    found, _ = self.index.scan(first, 5)
                    assert found.tolist() == list(self.known.irange(minimum=first))[:5]

    def check(self) -> None:
        self.index.verify()
        assert len(self.index) == len(self.known) == self.index.statistics()["size"]
        assert list(self.index) == list(self.known)
        assert self.index.min() == (self.known.keys()[0] if self.known else None)
        assert self.index.max() == (self.known.keys()[-1] if self.known else None)


@settings(max_examples=60)
@given(data=st.data())
def test_an_index_does_what_a_sorted_dict_does(data: st.DataObject) -> None:
    key_type = data.draw(st.sampled_from(sorted(KEYS)))
    value_type = data.draw(st.sampled_from(sorted(VALUES)))
    leaf = data.draw(st.sampled_from(LEAVES))
    small = Configuration(
        leaf=leaf, fragment_keys=16, leaf_keys=16, fragments=16, initial_fragments=2
    )
    pair = Pair(key_type, value_type, small)
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(ACTIONS))
        count = data.draw(st.integers(0, 60))
        keys = data.draw(st.lists(KEYS[key_type], min_size=count, max_size=count))
        values = data.draw(st.lists(VALUES[value_type], min_size=count, max_size=count))
        pair.run(action, keys, values)
    pair.check()


def test_long_streams_of_every_leaf_type_match() -> None:
    """Enough keys for splits and rebuilds, which short examples do not reach."""
    for number, leaf in enumerate(LEAVES):
        with case(leaf):
            random = np.random.default_rng(number)
            pair = Pair("uint64", "uint32", Configuration(leaf=leaf))
            pool = (random.lognormal(0, 2, 30_000) * 1e15).astype(np.uint64)
            for step in range(12):
                keys = random.choice(pool, 4000)
                action = ["insert", "insert", "erase", "find", "update"][step % 5]
                pair.run(action, keys.tolist(), random.integers(0, 2**32, 4000).tolist())
            pair.check()


def test_all_key_types_sort_as_their_numbers_do() -> None:
    extremes = {
        "uint64": [0, 1, 2**63 - 1, 2**63, 2**64 - 1],
        "int64": [-(2**63), -1, 0, 1, 2**63 - 1],
        "float64": [float("-inf"), -1e300, -5e-324, 0.0, 5e-324, 1e300, float("inf")],
    }
    for key_type, keys in extremes.items():
        with case(key_type):
            index = Index(np.array(keys[::-1], key_type), np.arange(len(keys)))
            assert index.dtype == key_type
            assert list(index) == keys
            assert (index.min(), index.max()) == (keys[0], keys[-1])
            found, values = index.range(keys[1], keys[-1])
            assert found.tolist() == keys[1:-1]
            assert values is not None
            assert values.tolist() == list(range(len(keys)))[::-1][1:-1]
            assert index.scan(keys[-1], 3)[0].tolist() == [keys[-1]]
    assert -0.0 in Index([0.0, 1.0])


def test_a_set_has_keys_alone() -> None:
    index = Index(np.array([5, 3, 3, 9], np.uint64))
    assert len(index) == 3
    assert index.value_dtype is None
    assert index.values() is None
    assert index.contains([3, 4]).tolist() == [True, False]
    assert index.get(3) is True
    assert index.insert([4, 5]) == 1
    assert index.insert(6) == 1
    assert index.erase(3) == 1
    assert list(index) == [4, 5, 6, 9]
    assert index.find([4])[0] is None
    assert list(pickle.loads(pickle.dumps(index))) == [4, 5, 6, 9]


def test_blocks_end_at_their_bound() -> None:
    index = Index(np.arange(0, 5000, 2), np.arange(2500))
    sizes = [len(keys) for keys, _ in index.blocks(10, 4010, size=750)]
    assert sizes == [750, 750, 500]
    assert len(list(index.blocks(size=2500))) == 1
    assert np.array_equal(index.range()[0], np.arange(0, 5000, 2))
    assert list(index.blocks(7, 8)) == []
    last = Index(np.array([2**64 - 2, 2**64 - 1], np.uint64))
    assert [keys.tolist() for keys, _ in last.blocks(size=1)] == [[2**64 - 2], [2**64 - 1]]


def test_values_of_one_number_and_of_other_types_are_brought_to_the_indexs() -> None:
    index = Index([1, 2, 3], 7, value_dtype=np.uint32)
    assert index[np.array([1, 3], np.int16)].tolist() == [7, 7]
    index[[1, 2]] = np.array([8, 9], np.int64)
    assert index[[1, 2, 3]].tolist() == [8, 9, 7]
    assert index[2] == 9
    out = np.empty(2, np.uint32)
    values, _ = index.find([1, 5], default=4, out=out)
    assert values is out
    assert out.tolist() == [8, 4]
    assert dict(index) == {1: 8, 2: 9, 3: 7}
    narrow = Index([1], np.array([0.5], np.float32))
    narrow[2], narrow[[3, 4]] = 2**24, [float("inf"), 3.4028235e38]
    assert narrow.values().tolist() == [0.5, 2.0**24, np.inf, float(np.finfo(np.float32).max)]


def test_views_of_a_dictionary_are_rows() -> None:
    """Values of a view were repeated for each key, and so too many."""
    rows = {3: 1.5, 1: 2.5}
    assert Index(rows.keys(), rows.values()) == rows
    assert Index(iter(rows), iter(rows.values())) == rows
    index = Index(rows)
    assert index[rows.keys()].tolist() == [1.5, 2.5]
    values, new = index.find_or_insert([7, 3], iter([4.5]))
    assert (values.tolist(), new.tolist()) == ([4.5, 1.5], [True, False])


def test_an_index_of_nothing_has_the_type_of_no_keys() -> None:
    for nothing in (None, [], (), {}, set[int]()):
        assert Index(nothing).dtype == np.uint64
    assert Index(np.empty(0)).dtype == np.float64
    assert Index([], dtype="int64").dtype == np.int64


def test_copies_and_pickles_hold_the_same_and_live_apart() -> None:
    configuration = Configuration(leaf="gapped", leaf_keys=256)
    keys = np.random.default_rng(0).normal(size=3000)
    index = Index(keys, np.arange(3000, dtype=np.float32), configuration=configuration)
    for copied in (copy.copy(index), copy.deepcopy(index), pickle.loads(pickle.dumps(index))):
        assert copied.configuration == configuration
        assert copied.dtype == index.dtype
        assert copied.value_dtype == index.value_dtype
        for mine, other in zip(copied.range(), index.range(), strict=True):
            assert mine is not None
            assert other is not None
            assert np.array_equal(mine, other)
        copied.clear()
        assert len(index) == 3000


class Named(Index):
    """A user's own."""


def test_copies_of_a_subclass_are_of_it() -> None:
    index = Named([1, 2], [3, 4])
    for copied in (copy.copy(index), pickle.loads(pickle.dumps(index))):
        assert type(copied) is Named
        assert dict(copied) == {1: 3, 2: 4}


def test_a_range_is_of_one_moment() -> None:
    """Keys that stay are in every range, though others come and go, in short and long ones."""
    stay = np.arange(100_000, 300_000)
    index = Index(stay, stay)
    ended = threading.Event()

    def change() -> None:
        keys = np.arange(50_000)
        while not ended.is_set():
            index.insert(keys, 1)
            index.erase(keys)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for turn in range(60):
            low = 299_900 if turn % 2 else None
            keys, values = index.range(low)
            assert values is not None
            expected = stay[stay >= (low or 0)]
            assert np.array_equal(keys[len(keys) - len(expected) :], expected)
            assert len(keys) - len(expected) in (0, 50_000)
            assert len(values) == len(keys)
            assert len(index.scan(0, 10**6)[0]) in (200_000, 250_000)
    finally:
        ended.set()
        thread.join()


def test_leaves_are_converted_to_another_configuration() -> None:
    keys = np.arange(0, 200_000, 3)
    index = Index(keys, keys, configuration=Configuration(leaf="gapped"))
    assert index.statistics()["leaves"]["hashed"] == 0
    index.configure(Configuration(leaf="hashed"))
    cursor: int | None = 0
    calls = 0
    while cursor is not None:
        cursor = index.convert(cursor, 5000)
        calls += 1
    assert calls > 3
    assert index.statistics()["leaves"]["gapped"] == 0
    assert np.array_equal(index[keys], keys)
    index.verify()


def test_threads_share_an_index() -> None:
    """Each thread's own keys are as it left them, whatever the others and a conversion do."""
    index = Index(dtype=np.uint64, value_dtype=np.uint64)
    wrong: list[str] = []

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(15):
            keys = random.integers(0, 2**50, 2000, np.uint64) * np.uint64(4) + np.uint64(number)
            index.insert(keys, keys)
            values, found = index.find(keys)
            if not found.all() or not np.array_equal(values, keys):
                wrong.append(f"thread {number} does not find its keys")
            if index.erase(keys[:500]) != len(np.unique(keys[:500])):
                wrong.append(f"thread {number} erased others")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for configuration in (Configuration(leaf="gapped"), Configuration(leaf="log")):
        index.configure(configuration)
        cursor: int | None = 0
        while cursor is not None:
            cursor = index.convert(cursor, 1000)
    for thread in threads:
        thread.join()
    assert wrong == []
    index.verify()
    assert len(index) == len(index.keys())


@pytest.mark.parametrize("scattered", [False, True])
def test_erased_keys_give_their_memory_back(scattered: bool) -> None:
    keys = np.arange(200_000, dtype=np.uint64)
    index = Index(keys, keys)
    gone = keys % 100 != 0 if scattered else keys >= 2_000
    index.erase(keys[gone])
    assert index.nbytes <= 3 * index.copy().nbytes + (1 << 19)
    index.shrink_to_fit()
    assert index.nbytes <= index.copy().nbytes + 4096
    np.testing.assert_array_equal(index[keys[~gone]], keys[~gone])
    index.clear()
    assert index.nbytes == 0
    index.insert(keys, keys)
    assert len(index) == len(keys)


def test_subnormal_keys_stay_apart_where_they_are_flushed() -> None:
    """All of them were the key 0.0: of four keys one was left."""
    torch = pytest.importorskip("torch")
    keys = np.array([1e-310, 0.0, -5e-324, 5e-324])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor flushes none")
    try:
        index = Index(keys, [1, 2, 3, 4])
        values = [index[key] for key in keys]
        codes = encode(keys)[0]
    finally:
        torch.set_flush_denormal(False)
    assert values == index[keys].tolist() == [1, 2, 3, 4]
    assert index.keys().tolist() == [-5e-324, 0.0, 5e-324, 1e-310]
    assert np.argsort(codes).tolist() == [2, 1, 3, 0]
