"""Wrong keys and values: the error names them, and the index stays as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.errors import ArtifactError, InputError
from headrace.index.configuration import Configuration
from headrace.index.errors import ConfigurationError, KeysError
from headrace.index.run.index import Index
from tests.tiers import case

NAN = float("nan")


def unsigned() -> Index:
    return Index(np.array([10, 20, 30], np.uint64), np.array([1, 2, 3], np.uint32))


def floats() -> Index:
    return Index([1.5, 2.5], [1, 2])


def narrow() -> Index:
    return Index([1], np.array([1.5], np.float32))


WRONG: list[tuple[Callable[[], Index], Callable[[Any], Any], str]] = [
    (unsigned, lambda i: i.insert([1, -1], 5), "number 1 is -1, which uint64 does not hold"),
    (unsigned, lambda i: i.insert([1.5], 5), "keys have type float64, needs uint64"),
    (unsigned, lambda i: i.insert(1.5, 5), "key is 1.5, needs an integer of 0 to 2^64-1"),
    (unsigned, lambda i: i.insert(-1, 5), "key is -1, needs an integer of 0 to 2^64-1"),
    (unsigned, lambda i: i.insert(2**64, 5), "key is 18446744073709551616, needs"),
    (unsigned, lambda i: i.insert(["a"], 5), "keys have type <U1, needs uint64"),
    (unsigned, lambda i: i.insert([[1, 2]], 5), "keys have 2 dimensions, needs one"),
    (unsigned, lambda i: i.insert([[1], [2, 3]], 5), "keys: setting an array element"),
    (unsigned, lambda i: i.insert([1, 2, 3], [1, 2]), "values are 2, keys 3: needs one value for"),
    (unsigned, lambda i: i.insert([1], [2**32]), "number 0 is 4294967296, which uint32 does not"),
    (unsigned, lambda i: i.insert([1], [1.5]), "values have type float64, needs uint32"),
    (
        unsigned,
        lambda i: i.insert(1, 2**32),
        "value is 4294967296, needs an integer of 0 to 2^32-1",
    ),
    (unsigned, lambda i: i.insert(1), "values are missing: this index has values of type uint32"),
    (unsigned, lambda i: i.insert([1]), "values are missing: this index has values of type uint32"),
    (
        unsigned,
        lambda i: i.assign([10], [-1]),
        "number 0 is -1, which uint32 does not hold exactly",
    ),
    (unsigned, lambda i: i.erase([10.0]), "keys have type float64, needs uint64"),
    (unsigned, lambda i: i.erase("a"), "keys have type <U1, needs uint64"),
    (unsigned, lambda i: i.scan(0, -1), "count is -1, needs at least 0"),
    (unsigned, lambda i: i.range("a"), "key is 'a', needs an integer"),
    (unsigned, lambda i: i.find([1], out=np.empty(1, np.int32)), "values have type int32, needs"),
    (unsigned, lambda i: i.find([1], out=np.empty(2, np.uint32)), "values are 2, needs 1, one for"),
    (unsigned, lambda i: i.find([1], out=np.empty((1, 1), np.uint32)), "have 2 dimensions, needs"),
    (unsigned, lambda i: i.find([1, 2], out=np.empty(4, np.uint32)[::2]), "are not contiguous"),
    (unsigned, lambda i: i.find([1], out=[0]), "out is [0], needs an array that may be written"),
    (
        unsigned,
        lambda i: i.insert(np.ma.array([1, 2], mask=np.array([0, 1])), 1),
        "are masked, needs those",
    ),
    (unsigned, lambda i: list(i.blocks(size=0)), "size is 0, needs at least 1"),
    (unsigned, lambda i: i.convert(0, 0), "most_keys is 0, needs at least 1"),
    (unsigned, lambda i: i.convert(-1), "cursor is -1, needs at least 0"),
    (unsigned, lambda i: i.convert(0, 1.5), "most_keys is 1.5, needs an integer of at least 1"),
    (unsigned, lambda i: i.scan(0, 1.5), "count is 1.5, needs an integer of at least 0"),
    (unsigned, lambda i: i.blocks(size="a"), "size is 'a', needs an integer of at least 1"),
    (unsigned, lambda i: i.find((1, 2)), "keys are the tuple (1, 2), needs a key, or a list"),
    (unsigned, lambda i: i.configure(3), "the structure is given by 3, needs an index plan"),
    (unsigned, lambda i: i.insert([1, 2], [-1, 2**63 + 1]), "float64 does not hold exactly"),
    (unsigned, lambda i: i.contains([2**63 + 1, -1]), "number 0 is 9223372036854775809, which fl"),
    (floats, lambda i: i.insert([0.5, NAN, NAN], 1), "key 1 is NaN (2 of 3 are), needs numbers"),
    (floats, lambda i: i.insert(NAN, 1), "NaN"),
    (floats, lambda i: i.find([NAN]), "key 0 is NaN (1 of 1 are), needs numbers"),
    (floats, lambda i: i.erase([1.5, NAN]), "key 1 is NaN (1 of 2 are), needs numbers"),
    (floats, lambda i: i.insert([2**53 + 1], 1), "which float64 does not hold exactly"),
    (floats, lambda i: i.insert(2**53 + 1, 1), "key is 9007199254740993, needs"),
    (floats, lambda i: i.get(np.int64(2**53 + 1)), "key is np.int64(9007199254740993), needs"),
    (narrow, lambda i: i.insert(2, 2**24 + 1), "value is 16777217, needs an integer that a float3"),
    (narrow, lambda i: i.insert([2], [2**24 + 1]), "number 0 is 16777217, which float32 does not"),
    (narrow, lambda i: i.insert(2, 1e39), "value is 1e+39, needs a number that a float32 holds"),
    (narrow, lambda i: i.insert([2, 3], [1.0, -1e39]), "number 1 is -1e+39, which float32 does"),
    (
        unsigned,
        lambda i: i.find([1], out=np.empty(1, np.dtype(np.uint32).newbyteorder())),
        "out has type >u4, needs uint32",
    ),
]


def test_wrong_arguments_change_nothing() -> None:
    for make, call, message in WRONG:
        with case(message):
            index = make()
            before = [each.tolist() for each in index.range() if each is not None]
            with pytest.raises(KeysError) as raised:
                call(index)
            assert message in str(raised.value)
            assert isinstance(raised.value, InputError)
            index.verify()
            assert [each.tolist() for each in index.range() if each is not None] == before


MALFORMED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Index([1.0, NAN], [1, 2]), "key 1 is NaN (1 of 2 are)"),
    (lambda: Index(np.array([1], object)), "keys have type object, needs integers or floats"),
    (lambda: Index([1, None]), "objects of Python: make numbers of them"),
    (lambda: Index([(1, 2), (3,)]), "keys: setting an array element"),
    (lambda: Index([2**53 + 1, 2**63, -1]), "number 0 is 9007199254740993, which float64 does"),
    (lambda: Index([1], threads=0), "threads is 0, needs at least 1"),
    (lambda: Index([1], threads=1.5), "threads is 1.5, needs an integer of at least 1"),  # pyright: ignore
    (lambda: Index([1, 2], [1]), "values are 1, keys 2: needs one value for each key"),
    (lambda: Index([1, 2], [[1], [2, 3]]), "values: setting an array element"),
    (lambda: Index(values=[1]), "values are given without keys"),
    (lambda: Index(["a"]), "keys have type <U1, needs integers or floats of at most 64 bits"),
    (lambda: Index([1 + 2j]), "keys have type complex128, needs integers or floats"),
    (lambda: Index([1], [True]), "values have type bool, needs integers or floats"),
    (lambda: Index([1], dtype=np.float32), "dtype is float32, needs one of uint64, int64, float64"),
    (lambda: Index([1], value_dtype="x"), "value_dtype is x, needs one of uint32, int32, float32"),
    (lambda: Index([-1], dtype=np.uint64), "keys: number 0 is -1, which uint64 does not hold"),
    (
        lambda: Index(plan=Configuration(), configuration=Configuration()),
        "both a plan and a configuration are given, needs one of them",
    ),
]


def test_an_index_is_not_made_of_malformed_arrays() -> None:
    for make, message in MALFORMED:
        with case(message), pytest.raises(KeysError) as raised:
            make()
        assert message in str(raised.value)


def test_a_batch_with_a_missing_key_is_not_erased_in_part() -> None:
    """``del index[[10, 11]]`` erased 10, and then raised an error that did not name 11."""
    index = unsigned()
    with pytest.raises(KeyError, match=r"11 \(1 of 2 keys are not there\)"):
        del index[[10, 11]]
    assert list(index) == [10, 20, 30]
    del index[[10, 10, 30]]
    assert list(index) == [20]


def test_slices_with_steps_and_batches_by_slices_are_refused() -> None:
    index = unsigned()
    with pytest.raises(KeysError, match=r"slice with step 2, .*keys\(\)\[start:stop:step\]"):
        index[10:30:2]
    with pytest.raises(KeysError, match=r"keys are a slice, .* range\(low, high\) returns those"):
        index.find(slice(10, 30))
    with pytest.raises(KeysError, match="key is -1, needs an integer of 0"):
        index[-1:30]
    with pytest.raises(KeysError, match="None, needs"):
        index[None]
    assert list(index) == [10, 20, 30]


def test_missing_keys_are_key_errors() -> None:
    index = unsigned()
    with pytest.raises(KeyError, match="11"):
        index[11]
    with pytest.raises(KeyError, match=r"12 \(2 of 3 keys are not there\)"):
        index[[10, 12, 13]]
    with pytest.raises(KeyError):
        del index[11]
    for keys in (iter([10, 11]), (key for key in (10, 11))):  # erased, or no word on the key
        with pytest.raises(KeyError, match=r"11 \(1 of 2 keys are not there\)"):
            del index[keys]
    with pytest.raises(KeyError, match=r"11 \(1 of 2 keys are not there\)"):
        index[iter([10, 11])]
    assert list(index) == [10, 20, 30]
    with pytest.raises(KeysError, match="this index has keys alone"):
        Index([1])[1]


def test_a_set_takes_no_values() -> None:
    index = Index([1, 2])
    for call in (
        lambda: index.insert(3, 1),
        lambda: index.insert([3], [1]),
        lambda: index.__setitem__(3, 1),  # dropped the value
        lambda: index.__setitem__([3], [1]),
    ):
        with pytest.raises(KeysError, match="this index has keys alone: make it with values, or"):
            call()
    index[2] = None
    assert list(index) == [1, 2]


def test_a_file_that_is_no_plan_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ArtifactError, match="a.plan"):
        Index([1], plan=path)


def test_python_and_the_native_map_accept_the_same_configurations() -> None:
    from headrace import _native
    from headrace.index.run.index import native_configuration

    plain = Configuration()
    made = native_configuration(plain)
    for name, value in plain.to_head().items():
        with case(name):
            assert getattr(made, name) == value
    out_of_range: dict[str, tuple[Any, ...]] = {
        "fragment_keys": (7, 2**15 + 1),
        "fragments": (1, 2**20 + 1),
        "initial_fragments": (1, 2**20 + 1),
        "leaf_keys": (8, 1000, 2**17),
        "fill": (0.29, 0.99),
        "insert_fraction": (-0.1, 1.1),
    }
    for name, wrong in out_of_range.items():
        for value in wrong:
            with case(name, value):
                with pytest.raises(ConfigurationError, match=name):
                    Configuration(**{name: value})
                with pytest.raises(ValueError, match=name):
                    _native.IndexConfiguration(**{**plain.to_head(), name: value})
