"""Contributions in order of arrival: what is predicted is what the written-out program takes."""

import random
from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.engine import SearchProblem, SearchSettings
from headrace.collectives.plan.ir.chunks import Sends, deliveries_of, realize, sends_of
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.sends import (
    by_arrival,
    concatenated,
    with_arrivals,
)
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Op, Program, Schedule, Transfer
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.topology import Link, Topology, transposed
from tests.collectives.plan.overlapped import overlapped
from tests.collectives.plan.random_sends import random_sends, random_topology
from tests.collectives.plan.reversal import reversed_sends

ENGINE = NativeSearch()
MB = 0.25
COMBINING = (Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.ALLREDUCE)


def combining(
    rng: random.Random, collective: Collective, *, whole: bool
) -> tuple[Topology, Demand, Sends]:
    """A random way to combine, on a random topology whose links differ much."""
    ranks = rng.randrange(5, 10)
    topology = random_topology(rng, ranks, whole=whole)
    links = tuple(
        replace(link, beta_us_per_mb=link.beta_us_per_mb * rng.choice((0.1, 1.0)))
        for link in topology.links
    )
    topology = replace(topology, links=links)
    chunks = rng.choice((2, 6)) * (ranks if collective is Collective.ALLREDUCE else 1)
    demand = Demand(collective=collective, ranks=ranks, chunks=chunks)
    deliveries, dual = deliveries_of(demand), transposed(topology)
    how = SearchSettings(seed=rng.randrange(99), restarts=1, batch_share=rng.choice((0.0, 0.5)))
    problem = SearchProblem(topology=dual, deliveries=deliveries, chunk_mb=MB)
    up = reversed_sends(ENGINE.search(problem, how).sends)
    if collective is not Collective.ALLREDUCE:
        return topology, demand, up
    down = with_arrivals(topology, random_sends(rng, topology, deliveries), MB)
    return topology, demand, rng.choice((concatenated, overlapped))(up, down)


def started_us(program: Program, topology: Topology) -> tuple[float, np.ndarray]:
    """Return the whole time, and when every message starts."""
    total = round(MB * 1e6) * program.demand.slots
    found = simulate(program, topology, total, model=FULL)
    sent = program.steps["op"] == Op.SEND
    _, first = np.unique(program.steps["message"][sent], return_index=True)
    return found.total_us, found.start_us[sent][first]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("collective", COMBINING)
def test_the_prediction_is_that_of_the_program(collective: Collective, whole: bool) -> None:
    rng = random.Random(f"{collective} {whole}")
    held_up = 0
    for _ in range(40):
        topology, demand, sends = combining(rng, collective, whole=whole)
        found = ENGINE.retime(topology, sends, MB)
        program = lower(realize(demand, found.sends))
        verify(program)
        total_us, start_us = started_us(program, topology)
        assert total_us == pytest.approx(found.total_us, rel=1e-9)
        message = np.flatnonzero(np.diff(found.sends.message, prepend=-1))
        assert start_us == pytest.approx(found.sends.start_us[message], rel=1e-9)
        in_turn = lower(realize(demand, replace(found.sends, arrive_us=np.empty(0))))
        held_up += bool(np.any(started_us(in_turn, topology)[1] > start_us * (1 + 1e-9)))
    assert held_up or collective is Collective.REDUCE, (
        "the order of contributions never mattered: nothing was tested"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("collective", COMBINING)
def test_whatever_arrivals_are_claimed_the_program_is_proven(collective: Collective) -> None:
    """They order contributions only: cause and effect stay as they are."""
    rng = random.Random(collective)
    for _ in range(40):
        topology, demand, sends = combining(rng, collective, whole=False)
        claimed = np.array([rng.uniform(0, 9) for _ in range(int(sends.message[-1]) + 1)])
        sends = replace(sends, arrive_us=claimed[sends.message])
        assert sorted(by_arrival(sends)) == list(range(len(sends.chunk)))
        schedule = realize(demand, sends)
        program = lower(schedule)
        verify(program)
        again = sends_of(schedule)
        assert again.message.tolist() == sends.message.tolist()
        assert again.src.tolist() == sends.src.tolist()
        count = simulate(program, topology, 1 << 20, model=FULL).pieces
        assert count == sends.message[-1] + 1


def late_and_early() -> tuple[Topology, Demand, Sends]:
    """Rank 0's share of chunk 0 begins first and takes 100 us, rank 1's are at rank 2 in 1 and 2.

    Chunk 1, which rank 2 passes on to rank 3, comes in the lane of rank 1 after chunk 0.
    """
    links = tuple(
        Link(src=src, dst=dst, alpha_us=0.0, beta_us_per_mb=beta)
        for src, dst, beta in ((0, 2, 100.0), (1, 2, 1.0), (2, 3, 1.0), (0, 3, 200.0), (0, 1, 1.0))
    )
    topology = Topology(
        name="late", hosts=tuple("abcd"), rank_host=(0, 1, 2, 3), links=links, shared=()
    )
    rows = [(0, 0, 2), (1, 0, 1), (0, 1, 2), (1, 1, 2), (1, 2, 3), (0, 2, 3)]
    chunk, src, dst = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    sends = Sends(
        chunk=chunk,
        src=src,
        dst=dst,
        reduce=np.ones(len(rows), dtype=bool),
        message=np.arange(len(rows), dtype=np.int32),
        start_us=np.array([0.0, 0.0, 0.0, 1.0, 2.0, 100.0]),
    )
    demand = Demand(collective=Collective.REDUCE, ranks=4, chunks=2, root=3)
    return topology, demand, sends


def test_a_late_contribution_holds_up_no_message_behind_it() -> None:
    topology, demand, sends = late_and_early()
    timed = with_arrivals(topology, sends, 1.0)
    assert timed.arrive_us.tolist() == [100.0, 1.0, 1.0, 2.0, 3.0, 101.0]
    began: dict[str, dict[int, float]] = {}
    for name, some in (("in turn", sends), ("by arrival", timed)):
        program = lower(realize(demand, some))
        verify(program)
        found = simulate(program, topology, 2_000_000, model=FULL)
        sent = program.steps["op"] == Op.SEND
        messages = program.steps["message"][sent].tolist()
        began[name] = dict(zip(messages, found.start_us[sent].tolist(), strict=True))
    assert began["by arrival"] == dict(enumerate(sends.start_us.tolist()))
    assert began["in turn"][4] == 100.0


def test_messages_keep_their_numbers() -> None:
    topology, demand, sends = late_and_early()
    schedule = realize(demand, with_arrivals(topology, sends, 1.0))
    assert [t.src for t in schedule.transfers] == [0, 1, 1, 2, 0, 2]
    assert schedule.begins == (1, 2, 3, 4, 0, 5)
    assert realize(demand, sends).begins == ()


def test_what_only_moves_stays_in_order() -> None:
    line = Sends(
        chunk=np.zeros(2, dtype=np.int32),
        src=np.array([0, 1], dtype=np.int32),
        dst=np.array([1, 2], dtype=np.int32),
        reduce=np.zeros(2, dtype=bool),
        message=np.arange(2, dtype=np.int32),
        start_us=np.zeros(2),
        arrive_us=np.array([9.0, 1.0]),
    )
    assert by_arrival(line).tolist() == [0, 1]


def test_refusals() -> None:
    topology, demand, sends = late_and_early()
    with pytest.raises(TopologyError, match=r"'late' has no link \(2, 0\)"):
        with_arrivals(topology, replace(sends, src=sends.dst, dst=sends.src), 1.0)
    with pytest.raises(ProgramError, match="columns differ in length"):
        realize(demand, replace(sends, arrive_us=np.zeros(2)))
    one = Schedule(demand=demand, transfers=(Transfer(0, 2, 0, 0, reduce=True),), begins=(1,))
    with pytest.raises(ProgramError, match="begins has 1 entries from 1 to 1, needs each of 0 to"):
        lower(one)
