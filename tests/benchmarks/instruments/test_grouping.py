"""Groupings that PLink compares, and their cost: the load of masters spread evenly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruments.grouping import (
    aggregation_load,
    aggregation_time,
    balanced_random,
)
from headrace.collectives.measure.embed.clusters import square_root
from headrace.collectives.plan.generators.templates.two_level.masters import spread_masters
from headrace.errors import InputError
from tests.collectives.plan.load import load_bytes


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_the_load_is_that_of_masters_spread_evenly(sizes: list[int], seed: int) -> None:
    """Against the plan's own count, at as many chunks as divide among all masters."""
    n = sum(sizes)
    order = np.random.default_rng(seed).permutation(n)
    cuts = np.cumsum(sizes)[:-1]
    groups = tuple(tuple(sorted(part.tolist())) for part in np.split(order, cuts))
    chunks = n * math.lcm(*sizes)
    planned = load_bytes(spread_masters(groups, chunks), 1 / chunks)
    foreseen = aggregation_load(groups)
    assert foreseen.sum() == pytest.approx(planned.sum())
    # which local master meets which global one is a matter of turns; how much each moves is not
    assert foreseen.sum(axis=1) == pytest.approx(planned.sum(axis=1))
    assert foreseen.sum(axis=1) == pytest.approx(foreseen.sum(axis=0))


def test_the_bytes_on_the_wire_are_those_of_table_1() -> None:
    groups = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    load = aggregation_load(groups)
    assert load.sum() == pytest.approx(2 * (12 - 1))  # 2S(NC - 1)
    across = sum(load[np.ix_(a, b)].sum() for a in groups for b in groups if a != b)
    assert across == pytest.approx(2 * (3 - 1))  # 2(C - 1)S


def test_time_is_that_of_the_slower_direction_of_the_busiest_host() -> None:
    bandwidth = np.full((2, 2), 1e6)
    bandwidth[0, 1] = 0.5e6
    # one group of two: each sends the other half of the vector up, and half down
    assert aggregation_time(((0, 1),), bandwidth) == pytest.approx(2e6)


@given(st.integers(1, 200), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_balanced_random_is_balanced_and_random(hosts: int, seed: int) -> None:
    groups = balanced_random(hosts, seed)
    assert sorted(host for group in groups for host in group) == list(range(hosts))
    assert len(groups) == square_root(hosts)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert groups == balanced_random(hosts, seed)


def test_balanced_random_looks_at_nothing() -> None:
    assert len({balanced_random(16, seed) for seed in range(5)}) == 5
    with pytest.raises(InputError, match="hosts is 0"):
        balanced_random(0)


def test_groups_of_other_hosts_are_named() -> None:
    with pytest.raises(InputError, match=r"bandwidth has shape \(3, 3\), needs \(4, 4\)"):
        aggregation_time(((0, 1), (2, 3)), np.ones((3, 3)))
