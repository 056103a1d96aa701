"""The full cost model, held against its definition done the slow way."""

import dataclasses
import random

import numpy as np
import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR, FULL
from headrace.collectives.plan.ir.chunks import Sends, deliveries_of, realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Direction, Op, Program, Schedule, Transfer
from headrace.errors import VerificationError
from headrace.topology import Link, SharedCapacity, Topology
from tests.collectives.plan.random_sends import random_sends, random_topology
from tests.waiting import no_hang

_SAME = 1e-9


def _slowly(sends: Sends, topology: Topology, chunk_mb: float) -> list[float]:
    """Return when every message begins: at every moment all messages are looked at in order."""
    count = int(sends.message.max()) + 1
    chunks = [sends.chunk[sends.message == m].tolist() for m in range(count)]
    ends = [
        (int(sends.src[k]), int(sends.dst[k])) for k in np.searchsorted(sends.message, range(count))
    ]
    deliveries: dict[tuple[int, int], float] = {}
    sent = {(int(c), int(d)) for c, d in zip(sends.chunk, sends.dst, strict=True)}
    for chunk, src in zip(sends.chunk.tolist(), sends.src.tolist(), strict=True):
        if (chunk, src) not in sent:
            deliveries[chunk, src] = 0.0
    link = [topology.link_index[pair] for pair in ends]
    free: dict[tuple[str, int], float] = {}
    begin = [-1.0] * count
    now = 0.0
    while True:
        for m in range(count):
            soon = now * (1 + _SAME)
            waits_in_lane = any(ends[k] == ends[m] and begin[k] < 0 for k in range(m))
            if begin[m] >= 0 or waits_in_lane:
                continue
            there = [deliveries.get((chunk, ends[m][0]), np.inf) for chunk in chunks[m]]
            cost, mb = topology.links[link[m]], chunk_mb * len(chunks[m])
            holds = {("link", link[m]): cost.alpha_us + cost.beta_us_per_mb * mb}
            for k, shared in enumerate(topology.shared):
                if link[m] in shared.links:
                    holds["shared", k] = cost.alpha_us + shared.beta_us_per_mb * mb
            if max(there) > soon or any(free.get(r, 0.0) > soon for r in holds):
                continue
            begin[m] = now
            for resource, us in holds.items():
                free[resource] = now + us
            for chunk in chunks[m]:
                deliveries.setdefault((chunk, ends[m][1]), now + max(holds.values()))
        later = [t for t in (*deliveries.values(), *free.values()) if t > now * (1 + _SAME)]
        if not later:
            return begin
        now = min(later)
        now = max(t for t in later if t <= now * (1 + _SAME))


@pytest.mark.parametrize("whole", [False, True])
def test_it_is_the_full_model(whole: bool) -> None:
    rng = random.Random(f"full {whole}")
    for _ in range(60):
        ranks = rng.randrange(2, 6)
        topology = random_topology(rng, ranks, whole=whole)
        collective = rng.choice((Collective.ALLGATHER, Collective.BROADCAST, Collective.SCATTER))
        demand = Demand(collective=collective, ranks=ranks, chunks=rng.choice((1, 4)))
        sends = random_sends(rng, topology, deliveries_of(demand))
        program = lower(realize(demand, sends))
        chunk_bytes = 250_000
        found = simulate(program, topology, chunk_bytes * demand.slots, model=FULL)
        wanted = _slowly(sends, topology, chunk_bytes / 1e6)
        step = program.steps["op"] == Op.SEND
        got = dict(zip(program.steps["message"][step], found.start_us[step], strict=True))
        assert [got[m] for m in sorted(got)] == pytest.approx(wanted, rel=1e-8)


def _line(*betas: float, alpha_us: float = 1.0, shared: bool = False) -> Topology:
    """Ranks in a line; all links also share one capacity of beta 7 if `shared`."""
    links = tuple(
        Link(src=k, dst=k + 1, alpha_us=alpha_us, beta_us_per_mb=b) for k, b in enumerate(betas)
    )
    every = SharedCapacity(name="all", links=tuple(range(len(links))), beta_us_per_mb=7.0)
    return Topology(
        name="line",
        hosts=tuple(f"h{k}" for k in range(len(betas) + 1)),
        rank_host=tuple(range(len(betas) + 1)),
        links=links,
        shared=(every,) if shared else (),
    )


def _broadcast(ranks: int, transfers: list[Transfer], chunks: int) -> Program:
    demand = Demand(collective=Collective.BROADCAST, ranks=ranks, chunks=chunks)
    return lower(Schedule.of(demand, transfers))


def test_a_message_pays_alpha_once_and_is_forwarded_as_a_whole() -> None:
    apart = [Transfer(src, src + 1, slot, slot) for slot in (0, 2) for src in (0, 1)]
    joined = [
        Transfer(src, src + 1, slot, slot, joined=slot == 2) for src in (0, 1) for slot in (0, 2)
    ]
    topology = _line(10.0, 20.0)
    one = simulate(_broadcast(3, joined, 3), topology, 3_000_000, model=FULL)
    assert one.total_us == 1 + 20 + 1 + 40
    assert one.pieces == 2
    assert one.link_busy.tolist() == [21 / 62, 41 / 62]
    two = simulate(_broadcast(3, apart, 3), topology, 3_000_000, model=FULL)
    assert two.total_us == 11 + 21 + 21
    assert two.pieces == 4
    send, receive = two.start_us[:2].tolist(), two.finish_us[:2].tolist()
    assert send == [0.0, 11.0]
    assert receive == [11.0, 22.0]


def test_alpha_holds_what_is_shared() -> None:
    """Rank 0 sends to 1 while 1 sends to 2: one after the other, the lower number first."""
    demand = Demand(collective=Collective.ALLGATHER, ranks=3)
    program = lower(Schedule.of(demand, [Transfer(1, 2, 1, 1), Transfer(0, 1, 0, 0)]))
    found = simulate(program, _line(2.0, 3.0, shared=True), 3_000_000, model=FULL)
    sends = found.start_us[program.steps["op"] == Op.SEND].tolist()
    assert sends == [8.0, 0.0]
    assert found.total_us == 16.0
    assert found.shared_busy.tolist() == [1.0]


def test_local_steps_are_free_unless_charged() -> None:
    demand = Demand(collective=Collective.BROADCAST, ranks=2)
    moves = [Transfer(0, 1, 0, 1), Transfer(1, 1, 1, 0)]
    program = lower(Schedule.of(demand, moves, scratch_slots=1))
    topology = _line(10.0)
    assert simulate(program, topology, 1_000_000, model=FULL).total_us == 11.0
    charged = dataclasses.replace(FULL, local_us_per_mb=3.0)
    assert simulate(program, topology, 1_000_000, model=charged).total_us == 14.0


def test_sums_in_another_order_are_the_same_moment() -> None:
    """0.1 + 0.2 + 0.3 differs by order; message 2 still goes before message 3."""
    rows = [
        (0, 1, 0.1),
        (1, 2, 0.2),
        (2, 5, 0.3),
        (0, 3, 0.3),
        (3, 4, 0.2),
        (4, 5, 0.1),
        (5, 6, 1.0),
    ]
    topology = Topology(
        name="two ways",
        hosts=tuple("abcdefg"),
        rank_host=tuple(range(7)),
        links=tuple(Link(src=a, dst=b, alpha_us=us, beta_us_per_mb=1e-9) for a, b, us in rows),
    )
    ways = [[(0, 1), (1, 2), (2, 5)], [(0, 3), (3, 4), (4, 5)]]
    for first in (0, 1):
        moves = [Transfer(*pair, slot, slot) for slot in (first, 1 - first) for pair in ways[slot]]
        moves += [Transfer(5, 6, slot, slot, channel=slot) for slot in (first, 1 - first)]
        program = _broadcast(7, moves, 2)
        found = simulate(program, topology, 0, model=FULL)
        last = np.flatnonzero((program.steps["op"] == Op.SEND) & (found.start_us > 0.55))
        begins = {int(program.steps["slot"][k]): found.start_us[k] for k in last}
        assert begins[first] < begins[1 - first]


def test_a_deadlock_is_named() -> None:
    """Each message has a part that waits for a part of the other: fine apart, stuck as wholes."""
    demand = Demand(collective=Collective.ALLGATHER, ranks=2, chunks=2)
    moves = [Transfer(0, 1, 0, 0), Transfer(1, 0, 2, 2), Transfer(0, 1, 2, 2), Transfer(1, 0, 0, 0)]
    program = lower(Schedule.of(demand, moves))
    one_each = np.where(program.lanes["rank"] == 0, 0, 1)
    lanes = program.lanes
    owner = np.where(lanes["direction"] == Direction.SEND, one_each, 1 - one_each)
    steps = {**program.steps, "message": owner[program.steps["lane"]].astype(np.int32)}
    stuck = dataclasses.replace(program, steps=steps)
    topology = _both_ways()
    simulate(program, topology, 100, model=FULL)
    with pytest.raises(VerificationError, match="deadlocks: rank 0, send lane"):
        simulate(stuck, topology, 100, model=FULL)
    with pytest.raises(VerificationError, match="is part of one message with"):
        verify(stuck)


def _both_ways() -> Topology:
    return dataclasses.replace(
        _line(1.0),
        links=tuple(Link(src=a, dst=1 - a, alpha_us=1.0, beta_us_per_mb=1.0) for a in (0, 1)),
    )


def test_streams_are_faster_than_whole_messages() -> None:
    program = _broadcast(3, [Transfer(k, k + 1, 0, 0) for k in (0, 1)], 1)
    streamed, whole = (
        simulate(program, _line(10.0, 20.0), 1 << 20, model=model) for model in (EXECUTOR, FULL)
    )
    assert streamed.total_us < whole.total_us


def test_many_messages_take_little_time() -> None:
    """Every rank of 48 sends 24 chunks directly: 54,000 messages on ports that all want."""
    ranks, chunks = 48, 24
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    links = tuple(Link(src=a, dst=b, alpha_us=1.0, beta_us_per_mb=5.0) for a, b in pairs)
    ports = tuple(
        SharedCapacity(
            name=f"{way} {rank}",
            links=tuple(k for k, pair in enumerate(pairs) if pair[way == "in"] == rank),
            beta_us_per_mb=10.0,
        )
        for way in ("out", "in")
        for rank in range(ranks)
    )
    topology = Topology(
        name="ports",
        hosts=tuple(f"h{k}" for k in range(ranks)),
        rank_host=tuple(range(ranks)),
        links=links,
        shared=ports,
    )
    demand = Demand(collective=Collective.ALLGATHER, ranks=ranks, chunks=chunks)
    moves = [
        Transfer(src, (src + k) % ranks, src * chunks + c, src * chunks + c)
        for k in range(1, ranks)
        for c in range(chunks)
        for src in range(ranks)
    ]
    program = lower(Schedule.of(demand, moves))
    with no_hang():
        found = simulate(program, topology, 1 << 24, model=FULL)
    assert found.pieces == len(moves)
    chunk_mb = (1 << 24) / ranks / chunks / 1e6
    assert found.total_us == pytest.approx((ranks - 1) * chunks * (1 + 10 * chunk_mb))


def test_what_is_combined_into_one_slot_arrives_at_once_and_is_taken_in_turn() -> None:
    """Sums keep their order without keeping links idle."""
    links = tuple(Link(src=s, dst=0, alpha_us=1.0, beta_us_per_mb=4.0) for s in (1, 2, 3))
    topology = Topology(name="star", hosts=("h",), rank_host=(0,) * 4, links=links)
    size = 1_000_000
    demand = Demand(collective=Collective.REDUCE, ranks=4, chunks=1)
    transfers = [Transfer(rank, 0, 0, 0, reduce=True) for rank in (1, 2, 3)]
    program = lower(Schedule.of(demand, transfers, 0))
    assert len(program.dependencies["step"])
    assert simulate(program, topology, size, model=FULL).total_us == 5.0


def test_a_wait_that_only_a_combining_implies_is_kept() -> None:
    """The wait of a step can be left out because an earlier step of its lane waits for more.

    Where that earlier step combines, and its transfer does not wait, the later one still must not
    be taken before what it is combined with has arrived: a reader began too early.
    """
    size = 1_000_000
    links = tuple(
        Link(src=s, dst=d, alpha_us=0.0, beta_us_per_mb=beta)
        for s, d, beta in ((1, 0, 50.0), (2, 0, 1.0), (0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0))
    )
    topology = Topology(name="x", hosts=("h",), rank_host=(0,) * 4, links=links)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=1)
    scratch = demand.slots
    transfers = [
        Transfer(1, 0, 0, scratch),  # slow
        Transfer(1, 0, 0, 0, reduce=True),  # slower still: behind it in the lane
        Transfer(2, 0, 0, 0, reduce=True),  # waits for that one, so need not wait for the first
        Transfer(2, 0, 0, scratch, reduce=True),
        Transfer(0, 3, scratch, 0),
    ]
    program = lower(Schedule.of(demand, transfers, 1))
    result = simulate(program, topology, size, model=FULL)
    assert result.total_us == pytest.approx(2 * 50 + 1)
