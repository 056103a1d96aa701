"""The allreduce by given masters: proven, no false dependencies, chunks of 16 to 64 KB."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR, FULL
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.generators.templates.two_level.fit import (
    cheapest_groups,
    fitted_masters,
)
from headrace.collectives.plan.generators.templates.two_level.masters import Masters, spread_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import chunk_count, two_level
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Request
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Direction, Program
from headrace.topology import Topology
from headrace.topology.presets import racks, torus, uniform
from tests.collectives.adapt.networks import slow_host
from tests.collectives.plan.generators.templates.two_level.test_masters import groupings
from tests.collectives.plan.symbolic import check

KIB = 1 << 10


def allreduce(ranks: int, chunks: int) -> Demand:
    return Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks)


@st.composite
def any_masters(draw: st.DrawFn) -> Masters:
    """Masters as arbitrary as they may be."""
    groups = draw(groupings())
    chunks = draw(st.integers(1, 12))
    local = [[draw(st.sampled_from(group)) for group in groups] for _ in range(chunks)]
    top = [draw(st.sampled_from(row)) for row in local]
    return Masters(
        groups=groups,
        local_master=np.array(local, dtype=np.int32),
        global_master=np.array(top, dtype=np.int32),
    )


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(any_masters(), st.sampled_from((None, 0, 1, 5, 100)))
def test_any_masters_make_a_proven_program_without_false_dependencies(
    masters: Masters, lag: int | None
) -> None:
    program = lower(two_level(allreduce(masters.ranks, masters.chunks), masters, lag=lag))
    check(program, seeds=1)
    verify(program)
    nothing_waits_for_another_chunk(program)
    no_lane_is_local_and_global(program, masters.groups)


def nothing_waits_for_another_chunk(program: Program) -> None:
    """But for its turn in a lane, a step waits only for steps with the same chunk."""
    slot = program.steps["slot"]
    assert (program.steps["count"] == 1).all()
    waits, on = program.dependencies["step"], program.dependencies["on"]
    assert np.array_equal(slot[waits], slot[on])


def no_lane_is_local_and_global(program: Program, groups: RankGroups) -> None:
    """A lane's place tells its stage: up and down in a group, or across."""
    group_of = {rank: index for index, group in enumerate(groups) for rank in group}
    lanes = program.lanes
    crosses = [
        group_of[rank] != group_of[peer]
        for rank, peer in zip(lanes["rank"].tolist(), lanes["peer"].tolist(), strict=True)
    ]
    steps = program.steps
    stage_crosses = np.array(crosses)[steps["lane"]]
    sends = lanes["direction"][steps["lane"]] == Direction.SEND
    for chunk in set(steps["slot"].tolist()):
        mine = sends & (steps["slot"] == chunk)
        assert stage_crosses[mine].sum() == 2 * (len(groups) - 1)
    assert (lanes["channel"] == 0).all()


def test_a_slow_chunk_holds_up_no_other() -> None:
    """Chunk 0 crosses a link that is 1000 times slower; all others have other masters."""
    groups: RankGroups = ((0, 1), (2, 3))
    masters = Masters(
        groups=groups,
        local_master=np.array([[0, 2]] + [[1, 3]] * 7, dtype=np.int32),
        global_master=np.array([0] + [1] * 7, dtype=np.int32),
    )
    program = lower(two_level(allreduce(4, 8), masters, lag=100))
    topology = uniform(4, bytes_per_s=1e9, alpha_us=1.0)
    slow = slow_link(topology, 2, 0)
    found = simulate(program, slow, 8 << 20, model=EXECUTOR)
    others = program.steps["slot"] != 0
    assert found.finish_us[~others].max() > 1e6
    fast = simulate(program, topology, 8 << 20, model=EXECUTOR)
    assert found.finish_us[others].max() < 1.05 * fast.total_us


def slow_link(topology: Topology, src: int, dst: int) -> Topology:
    links = tuple(
        replace(link, beta_us_per_mb=1000 * link.beta_us_per_mb)
        if (link.src, link.dst) == (src, dst)
        else link
        for link in topology.links
    )
    return replace(topology, links=links)


@given(st.integers(0, 1 << 32), st.integers(1, 64))
def test_chunks_have_16_to_64_kb(total_bytes: int, ranks: int) -> None:
    chunks = chunk_count(total_bytes, ranks)
    most = max(1, 20_000 // (2 * max(1, ranks - 1) * ranks)) * ranks
    assert 1 <= chunks <= most
    if total_bytes >= 16 * KIB:
        assert total_bytes / chunks >= 16 * KIB
        assert total_bytes / chunks < 64 * KIB or chunks == most
    if total_bytes >= 16 * KIB * ranks:
        assert chunks % ranks == 0


def test_masters_of_other_chunks_or_ranks_are_refused() -> None:
    masters = spread_masters(((0, 1), (2, 3)), 4)
    for demand in (allreduce(4, 8), allreduce(5, 4)):
        with pytest.raises(ProgramError, match="masters are of 4 chunks at 4 ranks"):
            two_level(demand, masters)
    with pytest.raises(ProgramError, match="two_level does not support broadcast"):
        two_level(Demand(collective=Collective.BROADCAST, ranks=4, chunks=4), masters)


@pytest.mark.sampled(4, of="long plans")
def test_a_slow_host_gets_no_masters_and_the_portfolio_likes_that() -> None:
    topology = racks((4, 4), host_bytes_per_s=50e6, uplink_bytes_per_s=50e6)
    groups = ((0, 1, 2, 3), (4, 5, 6, 7))
    slow = slow_host(topology, 0, 0.4)
    rows = [each for each in TEMPLATES if each.name in ("hierarchical", "two_level")]
    plan = plan_collective(slow, Collective.ALLREDUCE, 4 << 20, groups=groups, generators=rows)
    assert plan.generator == "two_level"
    assert plan.gap < 0.05
    assert fitted_masters(slow, groups, 64).local_counts[0] == 0
    even = plan_collective(topology, Collective.ALLREDUCE, 4 << 20, groups=groups, generators=rows)
    notes = {c.generator: c.note for c in even.candidates}
    assert notes["two_level"] == "ranks and groups have equal rates: same as hierarchical"


def test_without_known_groups_they_are_found_by_cost() -> None:
    sizes = sorted(map(len, cheapest_groups(uniform(9), 1 << 20, FULL)))
    assert sum(sizes) == 9
    assert sizes[-1] - sizes[0] <= 1
    request = Request(uniform(8), Collective.ALLREDUCE, root=0, aims=(KIB, 1 << 20))
    row = next(each for each in TEMPLATES if each.name == "two_level")
    schedules = list(row.schedules(request))
    assert [schedule.demand.chunks for schedule in schedules] == [1, 32]
    for topology, why in ((uniform(3), "3 ranks"), (torus((3, 3)), "does not link every rank")):
        with pytest.raises(ProgramError, match=why):
            cheapest_groups(topology, 1 << 20, FULL)


def test_neighbours_are_found_whatever_their_numbers() -> None:
    """Latency alone tells, where beta is the same: the least cost is by racks of three."""
    rack = (0, 1, 2, 1, 2, 0, 2, 0, 1)
    near = uniform(9, bytes_per_s=1e9, alpha_us=2.0)
    links = tuple(
        replace(k, alpha_us=2.0 if rack[k.src] == rack[k.dst] else 200.0) for k in near.links
    )
    found = cheapest_groups(replace(near, links=links), 64 * KIB, EXECUTOR)
    assert found == ((0, 5, 7), (1, 3, 8), (2, 4, 6))
