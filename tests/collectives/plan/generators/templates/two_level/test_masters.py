"""Every chunk has one global master and one local master a group, all in proportion."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.templates.two_level.balance import (
    balanced_masters,
    group_shares,
)
from headrace.collectives.plan.generators.templates.two_level.fit import (
    fitted_masters,
    topology_rates,
)
from headrace.collectives.plan.generators.templates.two_level.masters import (
    Masters,
    spread_masters,
    turns,
)
from headrace.collectives.plan.locality import RankGroups
from headrace.topology.presets import racks, torus
from tests.collectives.plan.load import load_bytes

UNEVEN: RankGroups = ((0, 1, 2, 3, 4), (5, 6), (7,))
QUICK = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@st.composite
def groupings(draw: st.DrawFn) -> RankGroups:
    """Up to four groups of up to five, the ranks in any order."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    ranks = draw(st.permutations(range(sum(sizes))))
    starts = np.cumsum([0, *sizes])
    return tuple(tuple(ranks[a:b]) for a, b in pairwise(starts))


capacity = st.floats(0.05, 20.0)


def check(masters: Masters) -> None:
    """Check the invariants of masters independently, chunk by chunk."""
    for chunk in range(masters.chunks):
        local = masters.local_master[chunk]
        for index, group in enumerate(masters.groups):
            assert local[index] in group
        assert masters.global_master[chunk] in local


@QUICK
@given(groupings(), st.integers(1, 70), st.data())
def test_shares_are_within_one_chunk_of_exact(
    groups: RankGroups, chunks: int, data: st.DataObject
) -> None:
    n = sum(map(len, groups))
    capacities = data.draw(st.lists(capacity, min_size=n, max_size=n))
    masters = spread_masters(groups, chunks, capacities=capacities)
    check(masters)
    total = sum(capacities)
    for group in groups:
        whole = sum(capacities[rank] for rank in group)
        tops = int(masters.global_counts[list(group)].sum())
        assert abs(tops - chunks * whole / total) < 1 + 1e-6
        for rank in group:
            share = capacities[rank] / whole
            assert abs(masters.local_counts[rank] - chunks * share) < 1 + 1e-6
            assert abs(masters.global_counts[rank] - tops * share) < 1 + 1e-6


@QUICK
@given(st.lists(capacity, min_size=1, max_size=7), st.integers(1, 80))
def test_after_every_turn_every_rank_is_within_one_of_the_exact_share(
    weights: list[float], count: int
) -> None:
    shares, taken = np.array(weights) / sum(weights), np.zeros(len(weights))
    for number, pick in zip(range(1, count + 1), turns(weights), strict=False):
        taken[pick] += 1
        assert (np.abs(taken - number * shares) < 1 + 1e-6).all()


def test_later_turns_go_on_where_earlier_ones_stop() -> None:
    for weights in ((1.0, 1.0, 1.0), (3.0, 1.0, 2.0)):
        everyone, late = turns(weights), turns(weights, start=5)
        picks = [next(everyone) for _ in range(20)]
        assert [next(late) for _ in range(15)] == picks[5:]


def test_groups_hold_global_masters_by_size_or_evenly() -> None:
    by_size = spread_masters(UNEVEN, 64)
    evenly = spread_masters(UNEVEN, 63, spread="even")
    count = [by_size.global_counts[list(group)].sum() for group in UNEVEN]
    assert count == [40, 16, 8]
    assert [evenly.global_counts[list(group)].sum() for group in UNEVEN] == [21, 21, 21]


@QUICK
@given(groupings(), st.integers(1, 30))
def test_load_is_what_the_four_stages_send(groups: RankGroups, chunks: int) -> None:
    masters = spread_masters(groups, chunks)
    n = masters.ranks
    sizes = np.arange(1.0, chunks + 1)
    wanted = np.zeros((n, n))
    for chunk, size in enumerate(sizes):
        top = masters.global_master[chunk]
        for group, local in zip(groups, masters.local_master[chunk], strict=True):
            for rank in group:
                if rank != local:
                    wanted[rank, local] += size
                    wanted[local, rank] += size
            if local != top:
                wanted[local, top] += size
                wanted[top, local] += size
    load = load_bytes(masters, sizes)
    assert np.array_equal(load, wanted)
    assert load.sum() == 2 * (n - 1) * sizes.sum()  # PLink, table 1
    assert np.array_equal(load_bytes(masters, 2.0), load_bytes(spread_masters(groups, chunks), 2.0))


def test_balanced_ranks_end_together() -> None:
    """Ranks with masters take as long as others of their group; ranks without take longer."""
    groups: RankGroups = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
    rates = np.array([0.4, 1, 1, 1, 1, 0.8, 1, 1, 1, 1.2])
    shares = group_shares(groups, np.array([1.0, 0.5, 1.0]), rates)
    assert shares.sum() == pytest.approx(1)
    assert shares[1] < 0.01  # half the uplink: its own partial sums are all that it can send
    masters = balanced_masters(groups, 2000, rank_rates=rates, group_shares=shares)
    time = load_bytes(masters, 1.0).sum(axis=1) / rates
    for group in groups:
        busy = [rank for rank in group if masters.local_counts[rank] > 0]
        assert max(time[busy]) <= 1.01 * min(time[busy])
        idle = [rank for rank in group if rank not in busy]
        assert all(time[rank] > max(time[busy]) for rank in idle)
    assert masters.local_counts[0] == 0


def test_rates_are_those_of_cards_and_uplinks() -> None:
    topology = racks((5, 2, 1), host_bytes_per_s=50e6, uplink_bytes_per_s=25e6)
    ranks, across = topology_rates(topology, UNEVEN)
    assert ranks == pytest.approx([50e6] * 7 + [25e6])
    assert across == pytest.approx([25e6] * 3)
    wide = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=500e6)
    assert topology_rates(wide, ((0, 1), (2, 3)))[1] == pytest.approx([100e6] * 2)
    with pytest.raises(ProgramError, match="does not link every rank"):
        topology_rates(torus((3, 3)), (tuple(range(9)),))


def test_noise_of_measurement_changes_no_masters() -> None:
    topology = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=25e6)
    ranks = [0, 1, 2, 3]
    plain = spread_masters(((0, 1), (2, 3)), 16)
    fitted = fitted_masters(topology, ((0, 1), (2, 3)), 16)
    assert [fitted.local_counts[r] for r in ranks] == [plain.local_counts[r] for r in ranks]


@pytest.mark.parametrize(
    ("local", "top", "says"),
    [
        ([[0, 1]], [0], "local master of chunk 0 is rank 1, needs a rank of"),
        ([[0, 2], [1, 3]], [0, 2], "global master of chunk 1 is rank 2, needs a local master"),
        ([[0, 2]], [0, 2], "needs"),
        ([[0]], [0], "needs"),
    ],
)
def test_masters_that_may_not_be(local: list[list[int]], top: list[int], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        Masters(
            groups=((0, 1), (2, 3)),
            local_master=np.array(local, dtype=np.int32),
            global_master=np.array(top, dtype=np.int32),
        )


def test_wrong_groups_and_types() -> None:
    with pytest.raises(ProgramError, match="groups"):
        spread_masters(((0, 1), (1, 2)), 4)
    with pytest.raises(ProgramError, match="int64, needs int32"):
        Masters(
            groups=((0,), (1,)),
            local_master=np.zeros((1, 2), dtype=np.int64),
            global_master=np.zeros(1, dtype=np.int32),
        )
