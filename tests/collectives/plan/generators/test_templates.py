"""Every template delivers its demand, for every rank count, root, chunk count and variant."""

import json
from collections.abc import Callable
from functools import partial

import pytest

from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.generators.templates.hierarchical import exchange, hierarchical
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Schedule
from tests.collectives.plan.symbolic import check
from tests.collectives.plan.template_cases import SERVES, serves, variants

TWO_RACKS = ((0, 2), (1, 3))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", SERVES)
def test_delivers(name: str, ranks: int) -> None:
    """By the verifier, and by an interpreter that shares nothing with it."""
    for collective in STANDARD:
        for root in {0, ranks - 1, ranks // 2} if collective in ROOTED else {0}:
            for chunks in (1, 3, 2 * ranks):
                demand = Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)
                for make in variants(name, ranks):
                    if not serves(name, demand):
                        with pytest.raises(ProgramError, match=name):
                            make(demand)
                        continue
                    program = lower(make(demand))
                    check(program, seeds=1)
                    verify(program)


@pytest.mark.parametrize("name", SERVES)
def test_a_transfer_stays_within_a_block_and_scratch_keeps_to_its_chunk(name: str) -> None:
    for collective in map(Collective, SERVES[name].split()):
        demand = Demand(collective=collective, ranks=4, chunks=6, root=1)
        for make in variants(name, 4):
            for t in make(demand).transfers:
                assert t.src_slot < demand.slots or t.src == t.dst
                for slot in (t.src_slot, t.dst_slot):
                    if slot < demand.slots:
                        assert slot // 6 == (slot + t.count - 1) // 6
                    else:
                        other = t.src_slot + t.dst_slot - slot
                        assert (t.count, slot - demand.slots) == (1, other)


def crossings(schedule: Schedule, groups: tuple[tuple[int, ...], ...]) -> list[tuple[float, float]]:
    """Blocks that leave and that enter each group."""
    of = {rank: index for index, group in enumerate(groups) for rank in group}
    out, into = [0.0] * len(groups), [0.0] * len(groups)
    for t in schedule.transfers:
        if of[t.src] != of[t.dst]:
            out[of[t.src]] += t.count / schedule.demand.chunks
            into[of[t.dst]] += t.count / schedule.demand.chunks
    return list(zip(out, into, strict=True))


def test_hierarchical_allreduce_moves_the_vector_once_across_each_way() -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=16)
    assert crossings(hierarchical(demand, TWO_RACKS), TWO_RACKS) == [(1, 1), (1, 1)]
    assert crossings(exchange(demand, TWO_RACKS), TWO_RACKS) == [(1, 1), (1, 1)]
    three = ((0, 1), (2, 3), (4, 5))
    demand = Demand(collective=Collective.ALLREDUCE, ranks=6, chunks=12)
    assert crossings(hierarchical(demand, three), three) == [pytest.approx((4 / 3, 4 / 3))] * 3


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "broadcast", "reduce"])
def test_hierarchical_crosses_no_more_than_it_must(collective: str) -> None:
    demand = Demand(collective=Collective(collective), ranks=4, chunks=4, root=2)
    (out, into), (out_1, into_1) = crossings(hierarchical(demand, TWO_RACKS), TWO_RACKS)
    wanted = {
        "allgather": (2, 2, 2, 2),
        "reduce_scatter": (2, 2, 2, 2),
        "broadcast": (1, 0, 0, 1),
        "reduce": (0, 1, 1, 0),
    }
    assert (out, into, out_1, into_1) == wanted[collective]


def test_masters_take_turns_by_capacity() -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=30)
    schedule = hierarchical(demand, ((0, 1), (2, 3)), capacities=(2, 1, 1, 1), lag=1000)
    arriving = [0, 0, 0, 0]
    for t in schedule.transfers[: 2 * 30]:  # the first stage: members to local masters
        arriving[t.dst] += 1
    assert arriving == [20, 10, 15, 15]


def test_ring_in_group_order_enters_each_group_once() -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=4)
    used = {(t.src, t.dst) for t in ring(demand, order=(0, 2, 1, 3)).transfers}
    assert used == {(0, 2), (2, 1), (1, 3), (3, 0)}


def test_direct_hits_no_rank_from_all_sides_at_once() -> None:
    demand = Demand(collective=Collective.ALL_TO_ALL, ranks=5)
    remote = [t for t in direct(demand).transfers if t.src != t.dst]
    for start in range(0, len(remote), 5):
        assert len({t.dst for t in remote[start : start + 5]}) == 5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (partial(ring, order=(0, 1, 1, 2)), "order"),
        (partial(hierarchical, groups=((0, 1), (2,))), "groups"),
        (partial(hierarchical, groups=((0, 1, 2, 3), ())), "empty"),
        (partial(exchange, groups=((0, 1), (1, 2, 3))), "groups"),
        (partial(hierarchical, groups=TWO_RACKS, capacities=(1, 1, 0, 1)), r"capacities\[2\]"),
        (partial(hierarchical, groups=TWO_RACKS, capacities=(1, 1)), "capacities has 2"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[Demand], Schedule], says: str) -> None:
    with pytest.raises(ProgramError, match=says):
        make(Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=4))


def test_golden(golden: Callable[[str, bytes], None]) -> None:
    """A refactor leaves every program as it was, step by step."""
    digests = {}
    for name, collectives in SERVES.items():
        for collective in map(Collective, collectives.split()):
            for ranks in (1, 4, 8):
                demand = Demand(collective=collective, ranks=ranks, chunks=ranks, root=ranks // 2)
                for index, make in enumerate(variants(name, ranks)):
                    key = f"{name} {collective} {ranks} variant {index}"
                    digests[key] = lower(make(demand)).digest
    golden("templates.json", (json.dumps(digests, indent=1) + "\n").encode())
