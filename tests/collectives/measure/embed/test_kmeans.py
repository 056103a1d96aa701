"""Constrained k-means: limits hold, the assignment is the best there is, starts are repeatable."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.measure.embed.kmeans import (
    Clustering,
    _assign,
    constrained_kmeans,
    pick,
    size_limits,
)
from headrace.collectives.measure.racks.partition import diversity
from headrace.errors import InputError


@given(st.data(), st.integers(1, 20), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_sizes_are_within_the_limits_and_every_host_is_in_one_group(
    data: st.DataObject, n: int, seed: int
) -> None:
    count = data.draw(st.integers(1, n))
    elasticity = data.draw(st.sampled_from([1.0, 1.3, 2.0]))
    least, most = size_limits(n, count, elasticity)
    points = np.random.default_rng(seed).standard_normal((n, 2))
    found = constrained_kmeans(points, count, least=least, most=most, starts=2, seed=seed)
    for clustering in found:
        assert sorted(itertools.chain(*clustering.groups)) == list(range(n))
        assert len(clustering.groups) == count
        assert all(least <= len(group) <= most for group in clustering.groups)
        means = [points[list(group)].mean(axis=0) for group in clustering.groups]
        inertia = sum(
            ((points[list(group)] - mean) ** 2).sum()
            for group, mean in zip(clustering.groups, means, strict=True)
        )
        assert clustering.inertia == pytest.approx(inertia, abs=1e-9)
    assert [one.inertia for one in found] == sorted(one.inertia for one in found)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_no_assignment_within_the_limits_is_shorter(seed: int, groups: int, slack: int) -> None:
    hosts = 5
    least, most = hosts // groups - (slack > 1), -(-hosts // groups) + slack
    square = np.random.default_rng(seed).random((hosts, groups))
    found = _assign(square, max(least, 0), most)
    every = [
        sum(square[host, group] for host, group in enumerate(labels))
        for labels in itertools.product(range(groups), repeat=hosts)
        if all(max(least, 0) <= labels.count(group) <= most for group in range(groups))
    ]
    # the flow's costs are integers: a millionth of the largest
    assert square[np.arange(hosts), found].sum() == pytest.approx(min(every), abs=1e-5)


def test_an_elasticity_of_one_is_perfect_balance_and_two_lets_racks_be_racks() -> None:
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(at, 0.1, (size, 2)) for at, size in ((0, 5), (9, 3))])
    for elasticity, sizes in ((1.0, [4, 4]), (2.0, [3, 5])):
        least, most = size_limits(8, 2, elasticity)
        found = constrained_kmeans(points, 2, least=least, most=most)[0]
        assert sorted(map(len, found.groups)) == sizes


@pytest.mark.parametrize(
    ("hosts", "count", "elasticity", "limits"),
    [(16, 4, 1.0, (4, 4)), (16, 4, 2.0, (2, 8)), (8, 3, 1.0, (2, 3)), (8, 3, 2.0, (1, 6))],
)
def test_limits_of_the_paper(hosts: int, count: int, elasticity: float, limits) -> None:
    assert size_limits(hosts, count, elasticity) == limits


def test_the_seed_makes_it_the_same_again() -> None:
    points = np.random.default_rng(3).standard_normal((30, 3))
    assert constrained_kmeans(points, 5, seed=4) == constrained_kmeans(points, 5, seed=4)


def test_the_order_of_hosts_plays_no_part_where_there_is_structure() -> None:
    random = np.random.default_rng(5)
    points = np.repeat(10 * np.eye(4), 3, axis=0) + random.normal(0, 0.1, (12, 4))
    order = random.permutation(12)
    straight = pick(constrained_kmeans(points, 4, least=2, most=4)).groups
    turned = pick(constrained_kmeans(points[order], 4, least=2, most=4)).groups
    assert {frozenset(order[list(group)].tolist()) for group in turned} == set(
        map(frozenset, straight)
    )


def test_even_sizes_win_among_equals_and_only_ties_are_left_to_chance() -> None:
    even = Clustering(groups=((0, 1), (2, 3)), inertia=1.04)
    cohesive = Clustering(groups=((0,), (1, 2, 3)), inertia=1.0)
    loose = Clustering(groups=((0, 2), (1, 3)), inertia=1.2)
    assert pick([cohesive, even, loose]) is even
    assert pick([cohesive, loose]) is cohesive
    twin = Clustering(groups=((0, 3), (1, 2)), inertia=1.04)
    assert {pick([even, twin], seed).groups for seed in range(20)} == {even.groups, twin.groups}
    assert pick([even, twin], 3) is pick([even, twin], 3)
    assert diversity(cohesive.groups) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "0 groups of 1 to 4 hosts do not make 4"),
        ({"count": 3, "least": 2}, "3 groups of 2 to 4 hosts do not make 4"),
        ({"count": 2, "most": 1}, "2 groups of 1 to 1 hosts do not make 4"),
        ({"count": 2, "starts": 0}, "starts is 0"),
    ],
)
def test_limits_that_leave_no_way_are_said(arguments, message: str) -> None:
    with pytest.raises(InputError, match=message):
        constrained_kmeans(np.zeros((4, 2)), **arguments)


def test_points_that_are_none_are_named() -> None:
    points = np.zeros((3, 2))
    points[1, 0] = np.nan
    with pytest.raises(InputError, match=r"points\[1, 0\] is nan"):
        constrained_kmeans(points, 2)
    with pytest.raises(InputError, match=r"points has shape \(3,\)"):
        constrained_kmeans(np.zeros(3), 2)
    with pytest.raises(InputError, match="elasticity is 3"):
        size_limits(8, 2, 3.0)
    with pytest.raises(InputError, match="count is 9"):
        size_limits(8, 9, 1.0)
