"""The Pareto front, and the traces of finds alone and of inserts alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.plan.frontier import inserts_of, pareto_front, reads_of
from headrace.index.trace import FIND, INSERT, Trace
from tests.index.plan.models import KEYS


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_no_point_betters_one_of_the_front(points: list[tuple[int, int]]) -> None:
    front = pareto_front([x for x, _ in points], [y for _, y in points])
    for x, y in points:
        assert any(points[each][0] <= x and points[each][1] <= y for each in front)
    for each in front:
        x, y = points[each]
        assert not any((a <= x and b <= y) and (a, b) != (x, y) for a, b in points)
    assert [points[each][0] for each in front] == sorted(points[each][0] for each in front)


@pytest.mark.parametrize("inserts", [0.0, 0.5, 1.0])
def test_parts_have_one_operation_each(inserts: float) -> None:
    trace = workload_trace(KEYS, Workload(inserts=inserts))
    reads, writes = reads_of(trace), inserts_of(trace)
    assert set(reads.operations.tolist()) == {FIND}
    assert np.isin(reads.keys, reads.loaded).all()
    assert set(writes.operations.tolist()) == {INSERT}
    assert not np.isin(writes.keys, writes.loaded).any()
    assert min(len(reads), len(writes)) >= 750


@pytest.mark.parametrize("operation", [FIND, INSERT])
def test_parts_of_few_operations(operation: int) -> None:
    """Of fewer than eight a part was empty: "the trace has no operations to be timed"."""
    trace = Trace.of(KEYS[:3], np.full(3, operation, dtype=np.uint8), KEYS[3:5])
    assert min(len(reads_of(trace)), len(inserts_of(trace))) > 0
