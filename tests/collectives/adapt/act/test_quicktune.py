"""All masters at once, for bandwidths as they are now."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.adapt.act.quicktune import quicktune
from headrace.collectives.adapt.observe.port_changes import bandwidth
from headrace.collectives.plan.generators.templates.two_level.masters import Masters, spread_masters
from headrace.collectives.plan.locality import RankGroups
from headrace.errors import InputError
from headrace.topology.presets import racks
from tests.collectives.adapt.networks import slow_host
from tests.collectives.adapt.printed import printed
from tests.collectives.plan.generators.templates.two_level.test_masters import check, groupings
from tests.collectives.plan.load import load_bytes

FLAT: RankGroups = tuple((rank,) for rank in range(8))
TWO: RankGroups = ((0, 1, 2, 3), (4, 5, 6, 7))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(groupings(), st.integers(1, 40), st.integers(0, 10_000))
def test_whatever_the_bandwidths_masters_stay_masters(
    groups: RankGroups, chunks: int, seed: int
) -> None:
    masters = spread_masters(groups, chunks)
    n = masters.ranks
    rates = 10 ** np.random.default_rng(seed).uniform(5, 9, (n, n))
    tuned = quicktune(masters, rates)
    check(tuned)
    assert tuned.groups == groups
    assert tuned.chunks == chunks
    again = quicktune(tuned, rates)
    assert np.array_equal(again.local_master, tuned.local_master)


def test_as_printed_shares_are_in_proportion_to_summed_bandwidth() -> None:
    rates = np.ones((8, 8))
    rates[0], rates[:, 0] = 0.4, 0.4
    tuned = printed(spread_masters(TWO, 1000), rates)
    whole = 0.4 * 7 + 3 * 6.4
    assert tuned.local_counts[0] == pytest.approx(1000 * 2.8 / whole, abs=1)
    assert tuned.local_counts[1] == pytest.approx(1000 * 6.4 / whole, abs=1)
    sums = np.array([0.4 * 4 + 3 * 4, 4 * 3.4])  # what leaves a group
    tops = [tuned.global_counts[:4].sum(), tuned.global_counts[4:].sum()]
    assert tops == pytest.approx(1000 * sums / sums.sum(), abs=1)


@pytest.mark.parametrize("groups", [TWO, FLAT])
def test_the_slowest_rank_is_done_earlier_than_with_the_printed_shares(groups: RankGroups) -> None:
    sizes = tuple(map(len, groups))
    topology = slow_host(racks(sizes, host_bytes_per_s=50e6, uplink_bytes_per_s=50e6), 0, 0.4)
    masters, rates = spread_masters(groups, 256), bandwidth(topology)

    def slowest(tuned: Masters) -> float:
        return float((load_bytes(tuned, 1.0).sum(axis=1) / rates.max(axis=1)).max())

    ours = slowest(quicktune(masters, rates))
    assert ours <= 0.8 * slowest(printed(masters, rates))
    assert ours == 256 / 0.4 / 50e6  # its own vector: no masters make it less


def test_a_host_that_recovers_gets_its_masters_back() -> None:
    topology = racks((4, 4), host_bytes_per_s=50e6, uplink_bytes_per_s=50e6)
    before = spread_masters(TWO, 64)
    away = quicktune(before, bandwidth(slow_host(topology, 0, 0.4)))
    assert away.local_counts[0] == 0
    back = quicktune(away, bandwidth(topology))
    assert np.array_equal(back.local_counts, before.local_counts)
    assert np.array_equal(back.global_counts, before.global_counts)


@pytest.mark.parametrize("bad", [np.nan, 0.0, -1.0, np.inf])
def test_a_pair_without_a_rate_is_named(bad: float) -> None:
    rates = np.ones((4, 4))
    rates[2, 1] = bad
    with pytest.raises(InputError, match=r"bandwidth\[2, 1\]"):
        quicktune(spread_masters(((0, 1), (2, 3)), 4), rates)
    with pytest.raises(InputError, match=r"needs \(4, 4\)"):
        quicktune(spread_masters(((0, 1), (2, 3)), 4), np.ones((3, 3)))


def test_one_rank_alone_keeps_what_it_has() -> None:
    alone = spread_masters(((0,),), 3)
    assert quicktune(alone, np.zeros((1, 1))) is alone
