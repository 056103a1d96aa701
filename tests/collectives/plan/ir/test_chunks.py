import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import REDUCING, ROOTED, STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.ir.chunks import Sends, deliveries_of, realize, sends_of
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.sends import concatenated
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Schedule, Transfer
from headrace.topology import Topology
from tests.collectives.plan.chaos import misbehaves
from tests.collectives.plan.overlapped import overlapped
from tests.collectives.plan.random_sends import random_sends, random_topology
from tests.collectives.plan.reversal import reversed_sends


def _transposed(topology: Topology) -> Topology:
    links = tuple(replace(link, src=link.dst, dst=link.src) for link in topology.links)
    return replace(topology, links=links)


def _demand(collective: Collective, rng: random.Random, ranks: int) -> Demand:
    chunks = rng.choice((1, 2, 3))
    if collective is Collective.ALLREDUCE:
        chunks *= ranks
    root = rng.randrange(ranks) if collective in ROOTED else 0
    return Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)


def _sends(demand: Demand, topology: Topology, rng: random.Random) -> Sends:
    deliveries = deliveries_of(demand)
    sends = random_sends(rng, topology, deliveries)
    if demand.collective not in REDUCING:
        return sends
    # The dual is planned on the transposed topology, then turned round. A relay would combine
    # what it did not contribute, so a combining collective's deliveries go to every rank.
    backwards = reversed_sends(random_sends(rng, _transposed(topology), deliveries))
    if demand.collective is not Collective.ALLREDUCE:
        return backwards
    merge = rng.choice((concatenated, overlapped))
    return merge(backwards, sends)


def _rows(sends: Sends) -> set[tuple[int, ...]]:
    columns = (sends.message, sends.chunk, sends.src, sends.dst, sends.reduce)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def _made(*rows: tuple[int, int, int, int], start_us: list[float] | None = None) -> Sends:
    """Sends from rows (chunk, src, dst, message)."""
    chunk, src, dst, message = (
        np.array(column, dtype=np.int32) for column in zip(*rows, strict=True)
    )
    return Sends(
        chunk=chunk,
        src=src,
        dst=dst,
        reduce=np.zeros(len(rows), dtype=bool),
        message=message,
        start_us=np.array(start_us or [], dtype=np.float64),
    )


@pytest.mark.parametrize("collective", STANDARD)
def test_whatever_carries_the_chunks_is_proven(collective: Collective) -> None:
    rng = random.Random(collective)
    for _ in range(12):
        ranks = rng.randrange(2, 6)
        topology = random_topology(rng, ranks)
        demand = _demand(collective, rng, ranks)
        sends = _sends(demand, topology, rng)
        schedule = realize(demand, sends)
        program = lower(schedule)
        verify(program)
        assert _rows(sends_of(schedule)) == _rows(sends)
        assert simulate(program, topology, 1 << 20, model=FULL).pieces == sends.message[-1] + 1


def test_uneven_exchanges_with_relays_are_proven() -> None:
    rng = random.Random(3)
    for _ in range(20):
        ranks = rng.randrange(1, 6)
        counts = [[rng.choice((0, 0, 1, 2, 5)) for _ in range(ranks)] for _ in range(ranks)]
        demand = Demand.all_to_all_v(counts, chunks=rng.choice((1, 2)))
        deliveries = deliveries_of(demand)
        own = sum(counts[r][r] for r in range(ranks))
        assert deliveries.targets.sum() == (sum(map(sum, counts)) - own) * demand.chunks
        sends = random_sends(rng, random_topology(rng, ranks), deliveries)
        verify(lower(realize(demand, sends)))


@st.composite
def _custom(draw: st.DrawFn) -> Demand:
    """Items anywhere at first, some twice; wanted anywhere, also where another one is now."""
    ranks, slots = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    cells = [(r, s) for r in range(ranks) for s in range(slots)]
    items = draw(st.integers(1, min(6, len(cells))))
    order = draw(st.permutations(cells))
    homes = [(*cell, item) for item, cell in enumerate(order[:items])]
    again = [(*cell, draw(st.integers(0, items - 1))) for cell in order[items:][:2]]
    wanted = draw(st.lists(st.sampled_from(cells), unique=True))
    first = {item: rank for rank, _, item in homes}
    return Demand.custom(
        ranks=ranks,
        slots=slots,
        before=[(r, s, item, (first[item],)) for r, s, item in (*homes, *again)],
        after=[
            (r, s, item, (first[item],))
            for r, s in wanted
            for item in (draw(st.integers(0, items - 1)),)
        ],
        chunks=draw(st.integers(1, 2)),
    )


@settings(max_examples=150, deadline=None)
@given(_custom(), st.integers(0, 1000))
def test_custom_demands_are_proven(demand: Demand, seed: int) -> None:
    """Permutations in place among them: what a slot holds has to leave before it is overwritten."""
    rng = random.Random(seed)
    sends = random_sends(rng, random_topology(rng, demand.ranks), deliveries_of(demand))
    program = lower(realize(demand, sends))
    verify(program)
    assert misbehaves(program, seed, runs=4) == ""


def test_a_ring_shift_in_place_goes_by_scratch() -> None:
    rows = [(rank, 0, rank, (rank,)) for rank in range(3)]
    demand = Demand.custom(
        ranks=3, slots=1, before=rows, after=[((r + 1) % 3, 0, r, (r,)) for r in range(3)]
    )
    schedule = realize(demand, _made((0, 0, 1, 0), (1, 1, 2, 1), (2, 2, 0, 2)))
    assert schedule.scratch_slots == 1
    assert [t.src == t.dst for t in schedule.transfers] == [False] * 3 + [True] * 3
    verify(lower(schedule))


def test_neighbours_in_a_block_become_one_transfer() -> None:
    demand = Demand(collective=Collective.ALLGATHER, ranks=3, chunks=3)
    sends = _made(*((chunk, 0, 1, 0) for chunk in (2, 0, 1)), (3, 1, 2, 1), (5, 1, 2, 1))
    found = realize(demand, sends).transfers
    assert found == (
        Transfer(0, 1, 0, 0, count=3),
        Transfer(1, 2, 3, 3),
        Transfer(1, 2, 5, 5, joined=True),
    )


def test_blocks_are_not_merged_as_they_can_be_buffers_of_their_own() -> None:
    demand = Demand(collective=Collective.GATHER, ranks=3, root=2)
    found = realize(demand, _made((0, 0, 1, 0), (0, 1, 2, 1), (1, 1, 2, 1))).transfers
    assert found[1:] == (Transfer(1, 2, 0, 0), Transfer(1, 2, 1, 1, joined=True))


def test_what_is_not_there_cannot_be_sent() -> None:
    demand = Demand(collective=Collective.ALLGATHER, ranks=3)
    with pytest.raises(ProgramError, match="row 0 sends chunk 0 from rank 1 to rank 2"):
        realize(demand, _made((0, 1, 2, 0), (0, 0, 1, 1)))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([(0, 0, 1, 1)], "row 0 .*message 1.*needs 0 at first"),
        ([(0, 0, 1, 0), (1, 1, 2, 2)], "row 1 .*or 1 more"),
        ([(0, 0, 1, 0), (1, 1, 2, 0)], "row 1 .*one sender and one receiver"),
        ([(0, 1, 1, 0)], "from a rank to itself"),
    ],
)
def test_malformed_sends_are_named(rows: list[tuple[int, int, int, int]], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        realize(Demand(collective=Collective.ALLGATHER, ranks=3), _made(*rows))


def test_an_allreduce_needs_chunks_for_all() -> None:
    with pytest.raises(ProgramError, match="chunks is 5, needs a multiple of 3"):
        deliveries_of(Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=5))
    owner = deliveries_of(Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=6)).origin
    assert owner.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_custom_demand_that_combines_is_not_carried() -> None:
    demand = Demand.custom(
        ranks=2, slots=1, before=[(0, 0, 0, (0,)), (1, 0, 0, (1,))], after=[(1, 0, 0, (0, 1))]
    )
    with pytest.raises(ProgramError, match="item 0 is wanted with other contributors"):
        deliveries_of(demand)
    verify(lower(Schedule.of(demand, [Transfer(0, 1, 0, 0, reduce=True)])))


def test_reversal_mirrors_time() -> None:
    sends = _made((0, 0, 1, 0), (0, 1, 2, 1), start_us=[0.0, 5.0])
    assert reversed_sends(sends).start_us.tolist() == [0.0, 5.0]
    back = reversed_sends(replace(sends, arrive_us=np.array([5.0, 8.0])))
    assert back.src.tolist() == [2, 1]
    assert back.dst.tolist() == [1, 0]
    assert back.start_us.tolist() == [0.0, 3.0]
    assert back.arrive_us.tolist() == [3.0, 8.0]
    assert back.message.tolist() == [0, 1]
    assert back.reduce.all()


def test_overlapping_starts_a_chunk_when_it_is_done() -> None:
    """Chunk 1 is done at 5, so it may go back while chunk 0 still comes in."""
    back = _made((0, 0, 1, 0), (1, 1, 0, 1), start_us=[0.0, 15.0])
    first = reversed_sends(replace(back, arrive_us=np.array([20.0, 20.0])))
    second = _made((0, 0, 1, 0), (1, 1, 0, 1), start_us=[0.0, 0.0])
    second = replace(second, arrive_us=np.array([20.0, 5.0]))
    both = overlapped(first, second)
    assert both.chunk.tolist() == [1, 0, 1, 0]
    assert both.start_us.tolist() == [0.0, 0.0, 5.0, 20.0]
    assert both.arrive_us.tolist() == [5.0, 20.0, 10.0, 40.0]
    whole = concatenated(first, second)
    assert whole.start_us.tolist() == [0.0, 0.0, 20.0, 20.0]
    assert whole.arrive_us.tolist() == [5.0, 20.0, 40.0, 25.0]
    with pytest.raises(ProgramError, match="start_us is empty"):
        overlapped(first, replace(second, start_us=np.empty(0)))
