"""Clusters and representatives, on planted heads and against exhaustive search."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.attention.plan import clusters
from headrace.attention.plan.clusters import (
    cluster_sizes,
    clustered_by_distance,
    clustering_errors,
    elbow,
    points_of,
    representatives_by_error,
)
from headrace.attention.plan.formats import LayerHeads


def planted(groups: int = 3, size: int = 4, noise: float = 0.01) -> np.ndarray:
    """Return squared distances of heads in groups that are far apart."""
    generator = np.random.default_rng(0)
    centres = 5 * generator.normal(size=(groups, 20)).repeat(size, axis=0)
    points = centres + noise * generator.normal(size=centres.shape)
    return ((points[:, None] - points[None]) ** 2).sum(-1)


def test_points_have_the_distances_that_they_are_made_from() -> None:
    distance = planted()
    points = points_of(distance)
    again = ((points[:, None] - points[None]) ** 2).sum(-1)
    np.testing.assert_allclose(again, distance, atol=1e-6)


def test_planted_clusters_are_at_the_elbow() -> None:
    distance = planted()
    errors = clustering_errors(distance)
    assert (np.diff(errors) <= 1e-9).all()
    assert errors[-1] == pytest.approx(0, abs=1e-9)
    assert elbow(errors) == 3
    representatives = clustered_by_distance(distance, 3)
    assert cluster_sizes(representatives) == [4, 4, 4]
    assert (representatives // 4 == np.arange(12) // 4).all()
    assert (representatives[representatives] == representatives).all()


def test_equal_heads_have_one_cluster_and_single_heads_one() -> None:
    assert elbow(np.zeros(8)) == 1
    assert elbow(np.array([3.0, 1.0])) == 2
    assert elbow(np.zeros(1)) == 1


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    keys=st.integers(2, 6),
    group=st.integers(1, 3),
    left=st.integers(1, 5),
)
def test_representatives_are_near_the_best_of_all(
    seed: int, keys: int, group: int, left: int
) -> None:
    left = min(left, keys)
    heads = LayerHeads(query_heads=keys * group, key_value_heads=keys, dim=32)
    error = np.random.default_rng(seed).random((keys * group, keys * group))
    np.fill_diagonal(error, 0)
    representatives, total = representatives_by_error(error, heads, left)
    kept = np.unique(representatives // group)
    assert len(kept) == left
    assert (representatives[representatives] == representatives).all()
    assert total == pytest.approx(error[representatives, np.arange(len(error))].sum())

    def error_of(chosen: tuple[int, ...]) -> float:
        members = [key * group + head for key in chosen for head in range(group)]
        others = np.setdiff1d(np.arange(len(error)), members)
        return error[np.ix_(members, others)].min(axis=0).sum() if len(others) else 0.0

    best = min(error_of(chosen) for chosen in itertools.combinations(range(keys), left))
    assert total == pytest.approx(best)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "_ALL_CHOICES", 0)
        representatives, exchanged = representatives_by_error(error, heads, left)
    assert exchanged >= best - 1e-9
    staying = set(np.unique(representatives // group).tolist())
    neighbours = [
        tuple(sorted((staying - {gone}) | {come}))
        for gone in staying
        for come in set(range(keys)) - staying
    ]
    assert all(error_of(neighbour) >= exchanged - 1e-9 for neighbour in neighbours)
