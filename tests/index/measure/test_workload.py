"""Workloads: shares of operations, keys that are there, equal seeds."""

import numpy as np
import pytest

from headrace.index.errors import TraceError
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.trace import FIND, INSERT

KEYS = np.random.default_rng(3).permutation(20_000).astype(np.uint64) * np.uint64(3)


def test_shares_and_presence() -> None:
    made = workload_trace(KEYS, Workload(inserts=0.4, erases=0.1, scans=0.05))
    assert made.shares["insert"] == pytest.approx(0.4, abs=0.02)
    assert made.shares["erase"] == pytest.approx(0.1, abs=0.02)
    assert made.shares["scan"] == pytest.approx(0.05, abs=0.02)
    there = set(made.loaded.tolist())
    for operation, key in zip(made.operations.tolist(), made.keys.tolist(), strict=True):
        if operation == INSERT:
            assert key not in there
            there.add(key)
        else:
            assert key in there  # or was, before an erase


def test_finds_may_miss_and_be_skewed() -> None:
    made = workload_trace(KEYS, Workload(inserts=0.0, missing=0.5, skew=1.0))
    hits = np.isin(made.keys, made.loaded)
    assert hits.mean() == pytest.approx(0.5, abs=0.03)
    counts = np.sort(np.unique(made.keys[hits], return_counts=True)[1])[::-1]
    assert counts[:100].sum() > 0.3 * hits.sum()
    even = workload_trace(KEYS, Workload(inserts=0.0))
    assert (even.operations == FIND).all()
    assert len(np.unique(even.keys)) > 0.6 * len(even.loaded)


def test_the_order_of_arrival_is_kept_on_request() -> None:
    made = workload_trace(KEYS, Workload(inserts=1.0, shuffled=False, loaded=0.25))
    assert np.array_equal(np.concatenate([made.loaded, made.keys]), KEYS)
    first, second = (workload_trace(KEYS, Workload(seed=5)) for _ in range(2))
    assert np.array_equal(first.keys, second.keys)
    assert not np.array_equal(first.keys, workload_trace(KEYS, Workload(seed=6)).keys)
    assert len(workload_trace(KEYS, Workload(operations=500))) == 500


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inserts": 1.5}, "inserts is 1.5, needs 0 to 1"),
        ({"inserts": 0.6, "erases": 0.6}, "are 1.2 together, needs at most 1"),
        ({"skew": -1.0}, "zipf is -1, needs 0 to less than 4"),
    ],
)
def test_wrong_shares_are_named(given: dict[str, float], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Workload(**given)  # pyright: ignore[reportArgumentType]
