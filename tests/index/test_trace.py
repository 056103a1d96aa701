"""Traces: codes in the order of the keys, and inputs that are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.index.errors import TraceError
from headrace.index.measure.mix import rank_operations
from headrace.index.trace import ERASE, FIND, INSERT, SCAN, Trace, decode, encode

NUMBERS = st.sampled_from([np.uint64, np.int64, np.float64, np.uint8, np.int32, np.float32])


@given(
    NUMBERS.flatmap(
        lambda kind: arrays.arrays(
            kind,
            st.integers(0, 20),
            elements={"allow_nan": False} if np.dtype(kind).kind == "f" else None,
        )
    )
)
def test_codes_are_in_the_order_of_the_keys(keys: np.ndarray) -> None:
    codes, kind = encode(keys)
    assert codes.dtype == np.uint64
    back = decode(codes, kind)
    assert np.array_equal(back, keys)
    assert np.array_equal(np.argsort(codes, kind="stable"), np.argsort(keys, kind="stable"))


def test_extremes() -> None:
    assert encode(np.array([0, 2**64 - 1], dtype=np.uint64))[0].tolist() == [0, 2**64 - 1]
    assert encode(np.array([-(2**63), 2**63 - 1]))[0].tolist() == [0, 2**64 - 1]
    zeros, _ = encode(np.array([-0.0, 0.0]))
    assert zeros[0] == zeros[1]
    codes, _ = encode(np.array([-np.inf, -1e300, 0.0, 5e-324, np.inf]))
    assert (np.diff(codes.astype(object)) > 0).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.array([1.0, np.nan, np.nan]), r"keys: key 1 is NaN \(2 are\), needs numbers"),
        (np.array(["a"]), "keys: have type <U1, needs unsigned or signed integers, or floats"),
        (np.array([True]), "keys: have type bool"),
        (np.zeros((2, 2)), "keys: have 2 dimensions, needs one"),
        (np.zeros(2, dtype=np.complex128), "keys: have type complex128"),
    ],
)
def test_wrong_keys_are_refused(keys: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        encode(keys)


@pytest.mark.parametrize(
    ("keys", "operations", "loaded", "message"),
    [
        ([1, 2], [0], None, "operations are 1, keys 2: needs one key for each operation"),
        ([1, 2], [0, 4], None, "operations: go from 0 to 4, needs 0 to 3"),
        ([1, 2], [0, -1], None, "operations: go from -1 to 0"),
        ([1, 2], [0.0, 1.0], None, "operations: have type float64, needs integers"),
        ([1, 2], [0, 1], [1.5], "loaded: have type float64, but keys int64: needs one type"),
    ],
)
def test_wrong_traces_are_refused(
    keys: list[int], operations: list[int], loaded: list[Any] | None, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        Trace.of(np.array(keys), np.array(operations), loaded and np.array(loaded))


def test_arrays_of_other_types_are_refused() -> None:
    codes, numbers = np.zeros(2, dtype=np.uint64), np.zeros(2, dtype=np.uint8)
    with pytest.raises(TraceError, match="loaded: have type int64, needs one row of uint64"):
        Trace(loaded=np.zeros(2, dtype=np.int64), operations=numbers, keys=codes)
    with pytest.raises(TraceError, match="keys: have type list"):
        Trace(loaded=codes, operations=numbers, keys=[0, 1])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TraceError, match="kind is 'text', needs one of uint64, int64, float64"):
        Trace(loaded=codes, operations=numbers, keys=codes, kind="text")
    with pytest.raises(TraceError, match="operations: number 1 is 9"):
        Trace(loaded=codes, operations=np.array([0, 9], dtype=np.uint8), keys=codes)


@given(
    st.lists(st.integers(0, 20)),
    st.lists(st.tuples(st.sampled_from([FIND, INSERT, ERASE, SCAN]), st.integers(0, 20))),
)
def test_the_final_size_is_that_of_a_set(
    loaded: list[int], operations: list[tuple[int, int]]
) -> None:
    keys = set(loaded)
    for operation, key in operations:
        if operation == INSERT:
            keys.add(key)
        elif operation == ERASE:
            keys.discard(key)
    trace = Trace.of(
        np.array([key for _, key in operations], dtype=np.uint64),
        np.array([operation for operation, _ in operations], dtype=np.uint8),
        np.array(loaded, dtype=np.uint64),
    )
    assert trace.final_size() == rank_operations(trace).final_size == len(keys)
    assert sum(trace.shares.values()) == pytest.approx(1 if operations else 0)
