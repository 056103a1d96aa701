"""Ordering: every heuristic respects cause, effect and capacity, and the best is kept."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.taccl.order import HEURISTICS, order_messages
from headrace.collectives.plan.generators.taccl.router import priced_trees
from headrace.collectives.plan.generators.taccl.routing import ChunkCosts
from headrace.collectives.plan.generators.taccl.work import (
    Work,
    WorkTimeline,
    chained,
    combining,
    list_schedule,
    merged,
    spreading,
)
from headrace.collectives.plan.ir.chunks import realize
from headrace.collectives.plan.ir.lower import lower
from headrace.topology import transposed
from tests.collectives.plan.tiny import problem_on, random_topology


def check(timeline: WorkTimeline) -> None:
    """Nothing starts before what it waits for, and no resource serves two at once."""
    work = timeline.work
    ends = [start + lat for start, lat in zip(timeline.start_us, work.lats, strict=True)]
    busy: dict[int, list[tuple[float, float]]] = {}
    for at in range(work.size):
        for other in work.before[at]:
            assert timeline.start_us[at] >= ends[other] - 1e-6
        for resource, us in work.holds[at]:
            begin = timeline.start_us[at]
            busy.setdefault(resource, []).append((begin, begin + us))
    for rows in busy.values():
        for (_, end), (begin, _) in pairwise(sorted(rows)):
            assert begin >= end - 1e-6
    assert sorted(timeline.order) == list(range(work.size))
    assert timeline.total_us == pytest.approx(max(ends, default=0.0))
    nowhere = np.zeros(len(work.costs.src), bool)
    assert timeline.total_us >= work.unavoidable_us(nowhere) - 1e-6


def work_on(seed: int) -> Work:
    topology = random_topology(seed, ranks=3 + seed % 5, hosts=1 + seed % 2, density=0.4)
    collective = (Collective.ALLGATHER, Collective.ALL_TO_ALL)[seed % 2]
    if seed % 3:
        problem = problem_on(topology, collective, chunks=2)
        return spreading(problem.costs, priced_trees(problem)[0])
    problem = problem_on(transposed(topology), Collective.ALLGATHER, chunks=2)
    return combining(ChunkCosts.of(topology, 1.0), priced_trees(problem)[0])


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_every_heuristic_is_a_schedule(seed: int) -> None:
    work = work_on(seed)
    for name in HEURISTICS:
        made, found = order_messages(work, rules=[name])
        check(made)
        assert list(found) == [name]
        assert found[name] == made.total_us
    best, found = order_messages(work)
    assert set(found) == set(HEURISTICS)
    assert best.total_us == pytest.approx(min(found.values()))
    random = np.random.default_rng(seed)
    for by_time in (True, False):
        check(list_schedule(work, random.random(work.size).tolist(), by_time=by_time))


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_a_timeline_is_what_the_simulator_makes_of_its_sends(seed: int) -> None:
    topology = random_topology(seed, ranks=3 + seed % 4, hosts=1 + seed % 2, density=0.4)
    collective = (Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)[seed % 3]
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=2)
    costs = ChunkCosts.of(topology, 1.0)
    if collective is Collective.REDUCE_SCATTER:
        work = combining(costs, priced_trees(problem_on(transposed(topology), chunks=2))[0])
    else:
        work = spreading(costs, priced_trees(problem_on(topology, collective, chunks=2))[0])
    best, _ = order_messages(work)
    lanes: dict[int, list[int]] = {}
    for at in best.order:
        lanes.setdefault(work.link[at], []).append(at)
    runs = [
        lane[:2] for lane in lanes.values() if len(lane) > 1 and lane[1] not in work.after[lane[0]]
    ]
    joined = merged(work, runs[:1])
    for timeline in (best, order_messages(joined)[0]):
        program = lower(realize(demand, timeline.sends()))
        total = demand.slots // (2 if collective is Collective.ALL_TO_ALL else 1) * 1_000_000
        simulated = simulate(program, topology, total, model=FULL)
        assert simulated.total_us == pytest.approx(timeline.total_us)


def test_a_shared_prefix_is_scheduled_once_and_times_are_kept_by_rank() -> None:
    problem = problem_on(random_topology(3, ranks=5, density=0.0), Collective.BROADCAST)
    work = spreading(problem.costs, priced_trees(problem)[0])
    assert work.size == 4
    best, _ = order_messages(work)
    check(best)


def test_the_second_half_of_a_chain_waits_for_its_chunk_alone() -> None:
    topology = random_topology(1, ranks=4)
    there = priced_trees(problem_on(transposed(topology)))[0]
    first = combining(ChunkCosts.of(topology, 1.0), there)
    second = spreading(first.costs, priced_trees(problem_on(topology))[0])
    both = chained(first, second)
    best, _ = order_messages(both)
    check(best)
    alone = order_messages(first)[0].total_us + order_messages(second)[0].total_us
    start = [*order_messages(first)[0].start_us]
    shift = order_messages(first)[0].total_us
    start += [us + shift for us in order_messages(second)[0].start_us]
    assert order_messages(both, start=start)[0].total_us <= alone + 1e-6
    for at in range(first.size, both.size):
        for other in both.before[at]:
            if other < first.size:
                assert set(first.chunks[other]) <= set(both.chunks[at])


def test_an_interrupt_leaves_the_first_result() -> None:
    best, found = order_messages(work_on(4), interrupt=lambda: True)
    assert len(found) == 1
    check(best)
