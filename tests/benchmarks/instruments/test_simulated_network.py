"""Generated networks are what they say: trees, with the truth beneath and the noise on top."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruments.affinity import physical_affinity, shared_levels
from benchmarks.instruments.simulated_network import (
    NOISELESS,
    Disturbance,
    nested_positions,
    rack_positions,
    simulate_network,
)
from headrace.errors import InputError

PAPER = (1, 2, 7, 15, 61)


@given(st.lists(st.integers(1, 12), min_size=5, max_size=5), st.integers(12, 30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_units_are_nested_and_none_is_empty(units: list[int], hosts: int, even: bool) -> None:
    units = sorted(units)
    positions = nested_positions(hosts, units, seed=hosts, even=even)
    for level, count in enumerate((*units, hosts)):
        names = {position[level] for position in positions}
        assert len(names) == count
        # every unit has one place in the level above
        assert len({position[: level + 1] for position in positions}) == count


def test_even_units_are_of_one_size_where_numbers_allow() -> None:
    positions = nested_positions(48, (2, 4, 4, 8, 16), seed=1, even=True)
    for level in range(5):
        assert len(set(np.bincount([position[level] for position in positions]).tolist())) == 1
    uneven = nested_positions(48, (2, 4, 4, 8, 16), seed=1)
    assert len(set(np.bincount([position[4] for position in uneven]).tolist())) > 1


def test_racks_have_the_sizes_asked_for_and_hosts_are_shuffled() -> None:
    positions = rack_positions((5, 2, 1), seed=3)
    assert sorted(np.bincount([p[4] for p in positions]).tolist()) == [1, 2, 5]
    assert [p[5] for p in positions] != sorted(p[5] for p in positions)
    assert positions == rack_positions((5, 2, 1), seed=3)
    assert positions != rack_positions((5, 2, 1), seed=4)


def test_without_disturbance_latency_and_bandwidth_tell_every_place() -> None:
    positions = nested_positions(64, PAPER, seed=2)
    table = simulate_network(positions, seed=2, disturbance=NOISELESS)
    assert physical_affinity(table.latency_us, positions).accuracy == 1.0
    assert physical_affinity(1 / table.bandwidth, positions).accuracy == 1.0
    off = ~np.eye(64, dtype=bool)
    assert np.isnan(table.latency_us[~off]).all()
    assert np.array_equal(table.latency_us[off], table.latency_us.T[off])


def test_latency_is_in_the_range_of_where_ways_turn_and_bandwidth_as_oversubscribed() -> None:
    turn = ((60, 60), (50, 50), (40, 40), (30, 33), (20, 20), (10, 10))
    positions = nested_positions(24, (1, 1, 1, 3, 6), seed=1)
    table = simulate_network(
        positions,
        disturbance=NOISELESS,
        turn_us=turn,
        oversubscription=(1, 1, 1, 2, 4),
        host_bytes_per_s=800.0,
    )
    common = shared_levels(positions)
    assert set(table.latency_us[common == 5].tolist()) == {10.0}
    assert set(table.latency_us[common == 4].tolist()) == {20.0}
    assert 30 <= table.latency_us[common == 3].min() <= table.latency_us[common == 3].max() <= 33
    rates = [set(table.bandwidth[common == level].tolist()) for level in (5, 4, 3)]
    assert rates == [{800.0}, {200.0}, {100.0}]


def test_disturbance_is_of_the_size_asked_for_and_leaves_the_network_alone() -> None:
    positions = nested_positions(128, (1, 2, 4, 8, 32), seed=5)
    truth = simulate_network(positions, seed=6, disturbance=NOISELESS)
    off = ~np.eye(128, dtype=bool)

    def ratio(**change: float) -> np.ndarray:
        seen = simulate_network(positions, seed=6, disturbance=replace(NOISELESS, **change))
        return np.log(seen.latency_us / truth.latency_us)[off]

    assert ratio(noise=0.3).std() == pytest.approx(0.3, rel=0.05)
    assert ratio(noise=0.3).mean() == pytest.approx(0.0, abs=0.01)
    met = ratio(competing=0.05)
    assert (met > 0).mean() == pytest.approx(0.05, abs=0.01)
    assert met.max() <= np.log(5)
    assert (ratio(stack_us=5.0) > 0).all()
    other_way = simulate_network(positions, seed=6, disturbance=replace(NOISELESS, asymmetry=0.2))
    assert not np.allclose(other_way.latency_us[off], other_way.latency_us.T[off])


def test_the_seed_makes_it_the_same_again() -> None:
    positions = nested_positions(16, (1, 1, 1, 2, 4))
    one, again, other = (simulate_network(positions, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.bandwidth, again.bandwidth, equal_nan=True)
    assert not np.array_equal(one.bandwidth, other.bandwidth, equal_nan=True)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: nested_positions(8, (2, 1, 1, 1, 4)), "needs 5 numbers that do not fall"),
        (lambda: nested_positions(3, (1, 1, 1, 1, 4)), "needs 5 numbers that do not fall"),
        (lambda: nested_positions(8, (1, 2)), "needs 5 numbers"),
        (lambda: rack_positions((2, 0)), r"sizes is \(2, 0\)"),
        (lambda: simulate_network([(0, 1)]), "positions need 6 entries each"),
        (lambda: simulate_network(rack_positions((2,)), turn_us=((1, 2),)), "needs 6 pairs"),
        (
            lambda: simulate_network(rack_positions((2,)), oversubscription=(1, 1, 1, 1, 0.5)),
            "needs 5 numbers from 1",
        ),
        (lambda: Disturbance(noise=-1), "noise is -1, needs a finite number"),
        (lambda: Disturbance(competing=1.5), "competing is 1.5"),
    ],
)
def test_numbers_that_do_not_fit_are_named(made, message: str) -> None:
    with pytest.raises(InputError, match=message):
        made()
