"""PAIA against its definition, triplet by triplet."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruments.affinity import physical_affinity, shared_levels
from headrace.errors import InputError


def by_definition(distances: np.ndarray, positions: list[tuple[int, ...]]) -> tuple[int, int]:
    """PLink 5.5, word for word."""

    def prefix(a: int, b: int) -> int:
        same = (x == y for x, y in zip(positions[a], positions[b], strict=True))
        return sum(1 for _ in itertools.takewhile(bool, same))

    right = comparable = 0
    for c in range(len(positions)):
        for a, b in itertools.combinations(
            [host for host in range(len(positions)) if host != c], 2
        ):
            near_a, near_b = prefix(a, c), prefix(b, c)
            if near_a == near_b:
                continue
            comparable += 1
            m_a, m_b = distances[a, c], distances[b, c]
            if (m_a < m_b and near_a > near_b) or (m_a > m_b and near_a < near_b):
                right += 1
    return right, comparable


@given(st.data(), st.integers(2, 9), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_the_definition(data: st.DataObject, n: int, levels: int) -> None:
    entry = st.integers(0, 2)
    positions = data.draw(st.lists(st.tuples(*[entry] * levels), min_size=n, max_size=n))
    # few values, so that ties are common; nan is not measured
    value = st.sampled_from([0.0, 1.0, 2.0, 3.5, float("nan")])
    distances = np.array(data.draw(st.lists(value, min_size=n * n, max_size=n * n))).reshape(n, n)
    found = physical_affinity(distances, positions)
    assert (found.right, found.comparable) == by_definition(distances, positions)


def test_the_paper_s_example_of_positions() -> None:
    # the observer 0, one in its rack, one in its row, one in another datacenter
    positions = [(0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1), (0, 0, 0, 0, 1, 2), (0, 1, 2, 3, 4, 5)]
    assert shared_levels(positions)[0].tolist() == [6, 5, 4, 1]
    distances = np.array([[0, 1, 2, 9], [1, 0, 2, 9], [2, 2, 0, 9], [9, 9, 9, 0]], dtype=float)
    found = physical_affinity(distances, positions)
    assert found.accuracy == 1.0
    assert found.comparable == 8  # observers 0 and 1: all three pairs; 2: two; 3: none


def test_names_do_as_well_as_numbers_and_order_does_not_matter() -> None:
    positions = [("eu", "a"), ("eu", "b"), ("us", "a"), ("us", "c")]
    distances = np.random.default_rng(0).random((4, 4))
    order = [2, 0, 3, 1]
    found = physical_affinity(distances, positions)
    turned = physical_affinity(distances[np.ix_(order, order)], [positions[k] for k in order])
    assert found == turned


def test_nothing_to_compare_has_no_accuracy() -> None:
    assert np.isnan(physical_affinity(np.zeros((2, 2)), [(0,), (1,)]).accuracy)


@pytest.mark.parametrize(
    ("distances", "positions", "message"),
    [
        (np.zeros((2, 3)), [(0,), (1,)], r"distances has shape \(2, 3\), needs \(2, 2\)"),
        (np.zeros((2, 2)), [(0,), (1, 2)], r"\[1, 2\] entries, needs the same number each"),
        (np.zeros((0, 0)), [], "needs the same number each"),
    ],
)
def test_what_does_not_fit_is_said(distances, positions, message: str) -> None:
    with pytest.raises(InputError, match=message):
        physical_affinity(distances, positions)


def test_hundreds_of_hosts_take_no_time() -> None:
    random = np.random.default_rng(1)
    positions = [tuple(row) for row in random.integers(0, 4, (512, 6)).tolist()]
    found = physical_affinity(random.random((512, 512)), positions)
    assert found.accuracy == pytest.approx(0.5, abs=0.01)
    assert found.comparable > 10_000_000
