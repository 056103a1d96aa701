"""Number of groups: sqrt(n) as in the paper, or that of least predicted time."""

from typing import Any

import numpy as np
import pytest

from benchmarks.instruments.grouping import aggregation_time, square_root_groups
from headrace.collectives.measure.embed.clusters import RankedGrouping, candidate_groups
from headrace.collectives.measure.embed.embedding import embed
from headrace.collectives.measure.racks.partition import Grouping
from headrace.errors import InputError
from tests.collectives.measure.racks.test_linkage import alone


def by_time(matrix: np.ndarray, **options: Any) -> tuple[RankedGrouping, ...]:
    return candidate_groups(matrix, lambda groups: aggregation_time(groups, matrix), **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2, 2), (3, 3, 3), (5, 2, 1)])
def test_by_cost_the_racks_are_chosen_where_the_square_root_misses_them(sizes, seed: int) -> None:
    matrix, truth = alone(sizes, seed, noise=0.3, uplink=100)
    best, *rest = by_time(matrix)
    assert set(map(frozenset, best.groups)) == truth
    assert all(best.cost <= 1.02 * other.cost for other in rest)
    points = embed(1e6 / (matrix + matrix.T)).coordinates
    assert len(square_root_groups(points)) == 3


def test_a_cost_function_decides() -> None:
    matrix, _ = alone((4, 4), 1, noise=0.1, uplink=100)
    seen: list[Grouping] = []

    def cost(groups: Grouping) -> float:
        seen.append(groups)
        return abs(len(groups) - 5)

    candidates = candidate_groups(matrix, cost)
    assert len(candidates[0].groups) == 5
    assert {one.groups for one in candidates} == set(seen)
    assert (tuple(range(8)),) in seen


def test_where_all_cost_the_same_even_groups_nearest_to_the_square_root_win() -> None:
    candidates = by_time(np.full((16, 16), 1e9))
    assert sorted(map(len, candidates[0].groups)) == [4, 4, 4, 4]


def test_the_same_again_and_another_seed_another_tie() -> None:
    matrix, _ = alone((3, 3), 2, noise=0.3, uplink=200)
    assert by_time(matrix, seed=5) == by_time(matrix, seed=5)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(InputError, match="points has 3 rows, needs 4"):
        by_time(np.ones((4, 4)), points=np.ones((3, 2)))
    with pytest.raises(InputError, match=r"bandwidth\[0, 1\] is 0.0"):
        by_time(np.zeros((4, 4)))
