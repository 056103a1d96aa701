"""Partitions from noisy evidence about pairs."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.measure.racks.partition import Grouping, best_partition


def partitions(items: tuple[int, ...]) -> Iterator[Grouping]:
    """Every partition: the independent reference."""
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield ((first,), *smaller)
        for i, group in enumerate(smaller):
            yield (*smaller[:i], (first, *group), *smaller[i + 1 :])


def value(groups: Grouping, evidence: np.ndarray) -> float:
    return sum(evidence[a, b] for group in groups for a in group for b in group if a < b)


def symmetric(n: int, values: list[float]) -> np.ndarray:
    evidence = np.zeros((n, n))
    evidence[np.triu_indices(n, 1)] = values
    return evidence + evidence.T


@given(st.data(), st.integers(1, 6))
@settings(max_examples=80)
def test_no_partition_is_better(data: st.DataObject, n: int) -> None:
    pairs = n * (n - 1) // 2
    values = data.draw(st.lists(st.floats(-20, 20), min_size=pairs, max_size=pairs))
    evidence = symmetric(n, values)
    found = best_partition(evidence)
    assert sorted(m for group in found.groups for m in group) == list(range(n))
    everyone = [value(groups, evidence) for groups in partitions(tuple(range(n)))]
    assert value(found.groups, evidence) == pytest.approx(max(everyone), abs=1e-9)
    # neighbours are some of all rivals, so their confidence is never below the true posterior
    posterior = 1 / np.exp(np.array(everyone) - max(everyone)).sum()
    assert posterior - 1e-9 <= found.confidence <= 1


def test_two_pairs_of_evidence_outvote_a_contradiction() -> None:
    # 0+1, 1+2 say together, 0+2 weakly apart: it is together
    found = best_partition(symmetric(3, [9.0, -2.0, 9.0]))
    assert found.groups == ((0, 1, 2),)
    assert found.confidence > 0.99


def test_what_is_unknown_follows_from_the_rest_or_is_open() -> None:
    # pair 0+2 unknown, but both share with 1
    assert best_partition(symmetric(3, [9.0, 0.0, 9.0])).groups == ((0, 1, 2),)
    nothing = best_partition(np.zeros((2, 2)))
    assert nothing.confidence == pytest.approx(0.5)
    assert nothing.rival is not None


def test_one_member() -> None:
    found = best_partition(np.zeros((1, 1)))
    assert (found.groups, found.confidence, found.rival) == (((0,),), 1.0, None)
