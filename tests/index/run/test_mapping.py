"""The protocol of dictionaries: calls on an index give what a dict and a SortedDict give."""

import json
import threading
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from headrace.index import Configuration, Index, KeysError
from headrace.index.tables import LEAVES

KEYS = st.integers(-40, 40)
VALUES = st.integers(-(2**31), 2**31 - 1)
SMALL = [
    Configuration(leaf=leaf, fragment_keys=16, leaf_keys=16, fragments=16, initial_fragments=2)
    for leaf in LEAVES
]
CALLS: dict[str, Callable[[Any, int, int, dict[int, int]], Any]] = {
    "set": lambda m, k, v, _: m.__setitem__(k, v),
    "get": lambda m, k, v, _: m.get(k, v),
    "get none": lambda m, k, v, _: m.get(k),
    "in": lambda m, k, v, _: (k in m, float(k) in m, k + 0.5 in m, "a" in m, (k, v) in m),
    "getitem": lambda m, k, v, _: m[k],
    "delete": lambda m, k, v, _: m.__delitem__(k),
    "pop": lambda m, k, v, _: m.pop(k),
    "pop default": lambda m, k, v, _: m.pop(k, v),
    "setdefault": lambda m, k, v, _: m.setdefault(k, v),
    "update": lambda m, k, v, others: m.update(others),
    "update pairs": lambda m, k, v, others: m.update(list(others.items())),
    "popitem": lambda m, k, v, _: m.popitem(),
    "popitem at": lambda m, k, v, _: m.popitem(k % 7),
    "peekitem": lambda m, k, v, _: m.peekitem(k % 9 - 4),
    "bisect": lambda m, k, v, _: (m.bisect_left(k), m.bisect_right(k), m.bisect(k)),
    "irange": lambda m, k, v, _: list(m.irange(k, k + 9)),
    "irange open": lambda m, k, v, _: list(m.irange(k, k + 9, (False, False), reverse=True)),
    "irange half": lambda m, k, v, _: list(m.irange(k, None, (False, True), reverse=v % 2 == 0)),
    "irange up to": lambda m, k, v, _: list(m.irange(None, k, (True, v % 2 == 0))),
    "islice": lambda m, k, v, _: list(m.islice(k % 9, v % 30 - 9, reverse=v % 2 == 0)),
    "reversed": lambda m, k, v, _: list(reversed(m)),
    "items": lambda m, k, v, _: (list(m.items()), (k, v) in m.items(), len(m.items())),
    "items reversed": lambda m, k, v, _: (list(reversed(m.items())), m.items()[k % 5 : 9]),
    "keys": lambda m, k, v, _: list(m.keys()),
    "or": lambda m, k, v, others: sorted((m | others).items()),
    "or the other way": lambda m, k, v, others: sorted((others | m).items()),
    "equal": lambda m, k, v, others: (m == others, m == dict(m.items()), m == [k], m != others),
}


def outcome(call: Callable[[Any, int, int, dict[int, int]], Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (KeyError, IndexError) as error:
        return type(error)


@settings(max_examples=80)
@given(data=st.data())
def test_an_index_is_a_sorted_dict(data: st.DataObject) -> None:
    index = Index(
        dtype="int64", value_dtype="int64", configuration=data.draw(st.sampled_from(SMALL))
    )
    expected: SortedDict = SortedDict()
    calls = st.tuples(
        st.sampled_from(sorted(CALLS)), KEYS, VALUES, st.dictionaries(KEYS, VALUES, max_size=30)
    )
    for name, key, value, others in data.draw(st.lists(calls, max_size=25)):
        results = [outcome(CALLS[name], m, key, value, others) for m in (index, expected)]
        assert results[0] == results[1], (name, key, value, others)
        assert list(index.items()) == list(expected.items())
    index.verify()


@pytest.mark.parametrize("leaf", LEAVES)
def test_large_ones_agree_in_order(leaf: str) -> None:
    random = np.random.default_rng(5)
    keys = np.unique((random.lognormal(0, 2, 30_000) * 1e15).astype(np.int64))
    index = Index(keys, np.arange(len(keys)), configuration=Configuration(leaf=leaf))
    for _ in range(2):
        expected: SortedDict = SortedDict(index.items())
        positions = random.integers(-len(keys) // 2, len(keys) // 2, 40)
        asked = [expected.keys()[position] + step for position in positions for step in (-1, 0, 1)]
        for key in asked:
            low = next(expected.irange(maximum=key, reverse=True), None)
            high = next(expected.irange(minimum=key), None)
            assert (index.floor(key), index.ceiling(key)) == (low, high)
            assert index.rank(key) == expected.bisect_left(key)
            above = next(expected.irange(minimum=key, inclusive=(False, True)), None)
            assert index.upper_bound(key) == (above, expected.get(above), above is not None)
            assert index.lower_bound(key) == (high, expected.get(high), high is not None)
        assert index.rank(asked).tolist() == [expected.bisect_left(key) for key in asked]
        bounds, values, present = index.floor(asked)
        assert bounds[present].tolist() == [k for k in map(index.floor, asked) if k is not None]
        assert values[present].tolist() == [expected[key] for key in bounds[present]]
        assert index.select(positions).tolist() == [index.select(place) for place in positions]
        assert [index.peekitem(p) for p in positions] == [expected.peekitem(p) for p in positions]
        assert list(reversed(index)) == list(reversed(expected))
        assert list(index) == list(expected)
        low, high = sorted(asked[:2])
        part = index[low:high]
        assert part == {k: expected[k] for k in expected.irange(low, high, (True, False))}
        part.verify()
        index.erase(keys[::3])  # again, with gaps


def test_what_cannot_be_a_key_is_not_in_an_index() -> None:
    unsigned, floats = Index([1, 2], [3, 4], dtype="uint64"), Index([1.5, 2.0**60])
    for key in (None, -1, 2**64, "1", b"1", 1.5, float("nan"), (1, 2), 1j, object(), np.float32(7)):
        assert key not in unsigned
    for key in (float("inf"), Decimal("NaN"), Decimal("1.5"), Fraction(1, 3), np.bool_(False)):
        assert key not in unsigned
    assert True in unsigned  # as in a dictionary
    for unit in ("s", "ns"):  # integers to NumPy: one was a TypeError, one in the index
        assert np.timedelta64(1, unit) not in unsigned
    for key in (2.0, np.float32(2), Decimal(2), Fraction(2), np.bool_(True)):
        assert key in unsigned
        assert (key, unsigned[int(key)]) in unsigned.items()
        assert (key, 5) not in unsigned.items()
    assert Fraction(3, 2) in floats
    assert np.float32(1.5) in floats
    assert 2**60 in floats
    for integer in (int, np.int64, np.uint64):  # those of NumPy were rounded
        assert integer(2**60 + 1) not in floats
    assert float("nan") not in floats
    with pytest.raises(KeysError, match="needs one key: `contains` takes arrays"):
        assert [1] in unsigned


def test_slices_read_assign_and_erase_by_keys() -> None:
    index = Index(np.arange(0, 100, 10), np.arange(10))
    part = index[20:50]
    assert part == {20: 2, 30: 3, 40: 4}
    assert (part.dtype, part.value_dtype) == (index.dtype, index.value_dtype)
    part[20] = 7
    assert index[20] == 2  # it is a copy
    assert index[:] == index
    assert len(index[95:]) == len(index[50:20]) == 0
    index[:30] = 9
    index[90:] = [5]
    assert [value for _, value in index.items()] == [9, 9, 9, 3, 4, 5, 6, 7, 8, 5]
    del index[10:80]
    assert index == {0: 9, 80: 8, 90: 5}
    with pytest.raises(KeysError, match="values are 2, keys 3"):
        index[:] = [1, 2]
    several = Index([1, 5, 9])
    assert several[2:] == {5, 9}
    del several[:]
    assert several == set()


def test_erasing_a_long_range_is_one_call() -> None:
    keys = np.arange(100_000)
    index = Index(keys, keys)
    del index[10:99_990]
    assert index.keys().tolist() == [*range(10), *range(99_990, 100_000)]
    assert index.native.activity()[0][2][0] == 99_980  # erased, as adaptation counts them
    index.verify()


def test_sets_of_keys_and_batches_combine() -> None:
    a, b = Index([1, 2, 3], [10, 20, 30]), Index([2, 3, 4], [5, 6, 7])
    assert a | b == a.union(b) == {1: 10, 2: 5, 3: 6, 4: 7}
    assert a & b == a.intersection(b) == {2: 20, 3: 30}
    assert a - b == a.difference([2, 3]) == {1: 10}
    assert a & {3: 0} == {3: 30}
    assert a.intersection(np.array([3, 9])) == {3: 30}
    assert {4: 1} | a == {1: 10, 2: 20, 3: 30, 4: 1}
    a |= b
    assert a == {1: 10, 2: 5, 3: 6, 4: 7}
    keys = Index([1, 2]) | {3}
    assert keys == {1, 2, 3}
    assert keys != {1, 2}
    assert keys & b == Index([2, 3])
    with pytest.raises(TypeError):
        a &= 3


def test_numbers_of_other_types_combine() -> None:
    """One that the index's type does not hold, as -1 of uint64, was an error."""
    unsigned, signed = Index([1, 2, 2**63 + 1], dtype="uint64"), Index([-1, 2])
    assert unsigned & signed == signed & unsigned == {2}
    assert unsigned - signed == {1, 2**63 + 1}
    assert signed - unsigned == {-1}
    assert unsigned & {-1: 0, 2: 0} == {2}
    assert unsigned.intersection([-1, 1.0, 2.5]) == {1}
    assert unsigned.difference((1, 2)) == {2**63 + 1}  # a tuple was refused
    assert Index([2**53 + 1]) & {2.0**53} == set()  # not rounded
    with pytest.raises(KeysError, match="strings: number them"):
        signed.intersection(["a"])


def test_arrays_leave_operators_to_an_index() -> None:
    """NumPy combined the bits of the keys, of each with one of the array."""
    index = Index([1, 2])
    assert np.array([4, 1]) | index == {1, 2, 4}
    assert np.array([4, 1]) & index == {4, 1} & index == {1}
    assert np.array([4, 1]) - index == {4, 1} - index == {4}
    with pytest.raises(TypeError):
        np.add(index, 1)


def test_equality_is_of_keys_and_values() -> None:
    index = Index([1, 2], [3.0, float("nan")])
    assert index == index.copy()
    assert index == Index([1.0, 2.0], [3.0, float("nan")])
    assert index != Index([1, 2])
    assert index != Index([1, 2], [3.0, 4.0])
    assert Index([2**53 + 1]) != Index([2.0**53])
    assert Index([1], dtype="uint64") == Index([1], dtype="int64")
    assert Index([], [], dtype="int64") == {}
    dates = Index([date(2024, 1, 1), date(2024, 1, 2)], [1, 2])
    assert dates == {date(2024, 1, 1): 1, np.datetime64("2024-01-02", "ns"): 2}
    assert dates != {date(2024, 1, 1): 1, date(2024, 1, 2): 3}
    assert dates != {date(2024, 1, 1): 1, 5: 2}
    days = Index(dates.keys())  # was no set of dates of Python
    assert days == {date(2024, 1, 1), np.datetime64("2024-01-02", "ns")}
    assert days not in ({date(2024, 1, 1), date(2024, 1, 3)}, {date(2024, 1, 1), 5}, {1, 2})
    assert index != 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(index)


def test_an_index_is_made_of_mappings_and_gives_numbers_of_python() -> None:
    index = Index({3: 0.5, 1: 0.25})
    assert list(index.items()) == [(1, 0.25), (3, 0.5)]
    assert json.dumps(dict(index.items())) == '{"1": 0.25, "3": 0.5}'
    assert Index(index) == Index(SortedDict(index)) == index
    assert Index.fromkeys([4, 5], 1) == {4: 1, 5: 1}
    assert Index.fromkeys({4: 9, 5: 8}) == {4, 5}  # had the values of the dictionary
    assert Index.fromkeys(index, 1) == Index({1: 9, 3: 9}, 1) == {1: 1, 3: 1}
    assert Index(index, [4, 5]) == {1: 4, 3: 5}
    assert Index({3: 0}.keys()) == {3}
    assert index.items()[-1] == (3, 0.5)
    assert index.items() & {(1, 0.25), (1, 2)} == {(1, 0.25)}


def test_cursors_go_both_ways_whatever_changes() -> None:
    index = Index(np.arange(0, 50_000, 5), np.arange(10_000))
    cursor = index.cursor(12)
    assert cursor.item == (15, 3)
    assert cursor.previous()
    assert cursor.key == 10
    index.erase([5, 10])
    index.insert(7, 1)
    assert cursor.key == 10  # as it was
    assert cursor.previous()
    assert cursor.item == (7, 1)
    index[0] = 99
    assert cursor.previous()
    assert cursor.item == (0, 99)
    assert not cursor.previous()
    assert (cursor.key, cursor.value, cursor.item) == (None, None, None)
    assert not cursor.next()
    assert cursor.last()
    assert cursor.key == 49_995
    assert cursor.first()
    keys = [cursor.key]
    while cursor.next():
        keys.append(cursor.key)
    assert keys == index.keys().tolist()
    assert not cursor.seek(10**6)
    backwards: list[int] = []
    while cursor.previous():
        backwards.append(cursor.key)
    assert backwards == keys[::-1]
    index.clear()
    assert not cursor.first()
    assert not cursor.last()
    with pytest.raises(KeysError, match="key is 'a', needs an integer"):
        cursor.seek("a")


WRONG: list[tuple[Callable[[Index], Any], str]] = [
    (lambda i: i.pop([1]), r"key is \[1\], needs one key"),
    (lambda i: i.setdefault([1], 1), "needs one key: `find_or_insert` takes arrays"),
    (lambda i: i.setdefault(1), "values are missing"),
    (lambda i: i.pop("a"), "key is 'a', needs one key"),
    (lambda i: i.update([1, 2]), "needs an index, a mapping, or pairs of a key and a value"),
    (lambda i: i.update({-1: 2}), "number 0 is -1, which uint64 does not hold"),
    (lambda i: i[(1, 2)], r"tuple \(1, 2\), .* pack them into one number"),
    (lambda i: i.insert((1, 2), 5), r"tuple \(1, 2\), .* pack them into one number"),
    (lambda i: i.insert([(1, 2)], 5), "2 dimensions, needs one; keys of several parts: pack"),
    (lambda i: i["a"], r"strings: number them by names, keys = np.unique"),
    (lambda i: Index(["b", "a"]), r"strings: number them by names, keys = np.unique"),
    (lambda i: Index(np.array(["b"], object)), r"strings: number them by names, keys = np.unique"),
    (lambda i: Index(np.zeros(2, "i4,i4")), "keys of several parts: pack them"),
    (lambda i: i.select(0.5), r"positions have type float64, needs integers"),
    (lambda i: i.peekitem("a"), "the position is 'a', needs an integer"),
    (lambda i: i.bisect_right([1]), "needs one key; `rank` takes arrays"),
    (lambda i: i.floor(float("nan")), "key is nan, needs an integer"),
    (lambda i: Index([1]).items(), "this index has keys alone: iterate over it"),
    (lambda i: Index([1]).pop(1), "this index has keys alone: use `erase`"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_be_done_is_refused(call: Callable[[Index], Any], message: str) -> None:
    index = Index([1, 2], [3, 4], dtype="uint64")
    with pytest.raises(KeysError, match=message):
        call(index)
    assert index == {1: 3, 2: 4}


def test_positions_beyond_the_end_are_index_errors() -> None:
    index = Index([1, 2], [3, 4])
    for call in (index.select, index.peekitem, index.popitem):
        for position in (2, -3):
            with pytest.raises(IndexError, match=f"{position} is beyond the 2 keys"):
                call(position)
    for position in (2, -3):
        with pytest.raises(IndexError, match=f"position {position} is beyond the 2 keys"):
            index.select([0, position])
    with pytest.raises(IndexError, match=f"position {2**64 - 1} is"):  # was the last key
        index.select(np.array([2**64 - 1], np.uint64))
    with pytest.raises(KeyError):
        Index(dtype=int, value_dtype=int).popitem()


def test_single_calls_wait_for_batches_of_other_threads() -> None:
    """Each holds the interpreter's lock, unless another thread is within a call: no deadlock."""
    keys = np.arange(200_000, dtype=np.uint64)
    index = Index(keys, keys)
    ended = threading.Event()

    def batches() -> None:
        while not ended.is_set():
            index.insert(keys, keys)

    thread = threading.Thread(target=batches)
    thread.start()
    try:
        for key in range(0, 20_000, 7):
            assert index[key] == key
            assert index.ceiling(key) == key
            index[key] = key
            assert index.pop(200_001 + key, None) is None
            assert index.setdefault(key, 1) == key
    finally:
        ended.set()
        thread.join()


def test_an_item_is_looked_up_once() -> None:
    """The value of the next key was compared if another thread had erased the key meanwhile."""

    class Shrinking(Index):
        __slots__ = ()

        def __contains__(self, key: Any) -> bool:
            return super().__contains__(key) and self.erase(key) > 0

    assert (1, 5) not in Shrinking({1: 5, 2: 5}).items()
