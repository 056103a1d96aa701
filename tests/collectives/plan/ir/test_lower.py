"""Lowering: which lanes, steps and dependencies a global order becomes."""

import random

import numpy as np
import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.ir import lower as lower_module
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Direction, Op, Program, Schedule, Transfer
from tests.collectives.plan.symbolic import run
from tests.waiting import no_hang

S, R, L = Direction.SEND, Direction.RECV, Direction.LOCAL


def program(*transfers: Transfer, ranks: int = 3, chunks: int = 4, scratch: int = 2) -> Program:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks)
    return lower(Schedule.of(demand, transfers, scratch))


def name(program: Program, step: int) -> tuple[int, ...]:
    """(rank, direction, peer, channel, position in the lane) of a step."""
    lane = int(program.steps["lane"][step])
    first = int(np.searchsorted(program.steps["lane"], lane))
    columns = ("rank", "direction", "peer", "channel")
    return (*(int(program.lanes[c][lane]) for c in columns), step - first)


def edges(program: Program) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    pairs = zip(program.dependencies["step"], program.dependencies["on"], strict=True)
    return {(name(program, step), name(program, on)) for step, on in pairs}


def test_one_transfer_is_a_send_and_a_receive() -> None:
    p = program(Transfer(0, 2, 1, 1), Transfer(0, 2, 2, 3, True, 1, 5))
    rows = list(zip(*(p.lanes[c] for c in ("rank", "direction", "peer", "channel")), strict=True))
    assert rows == [(0, S, 2, 0), (0, S, 2, 5), (2, R, 0, 0), (2, R, 0, 5)]
    assert p.steps["op"].tolist() == [Op.SEND, Op.SEND, Op.RECV, Op.RECV_REDUCE]
    assert p.steps["slot"].tolist() == [1, 2, 1, 3]
    assert p.steps["src_slot"].tolist() == [-1, -1, -1, -1]
    assert edges(p) == set()


def test_local_transfers_share_the_local_lane() -> None:
    p = program(Transfer(1, 1, 0, 4), Transfer(1, 1, 4, 0, True))
    assert p.lanes["direction"].tolist() == [L]
    assert p.lanes["peer"].tolist() == [-1]
    assert p.steps["op"].tolist() == [Op.COPY, Op.REDUCE]
    assert p.steps["slot"].tolist() == [4, 0]
    assert p.steps["src_slot"].tolist() == [0, 4]


def test_read_after_write() -> None:
    p = program(Transfer(0, 1, 0, 0), Transfer(1, 2, 0, 0))
    assert edges(p) == {((1, S, 2, 0, 0), (1, R, 0, 0, 0))}


def test_write_after_read() -> None:
    p = program(Transfer(1, 2, 0, 0), Transfer(0, 1, 0, 0))
    assert edges(p) == {((1, R, 0, 0, 0), (1, S, 2, 0, 0))}


def test_write_after_write() -> None:
    p = program(Transfer(0, 1, 0, 0, True), Transfer(2, 1, 0, 0, True))
    assert edges(p) == {((1, R, 2, 0, 0), (1, R, 0, 0, 0))}


def test_a_write_waits_for_the_readers_not_for_the_write_they_waited_for() -> None:
    p = program(
        Transfer(0, 1, 0, 0), Transfer(1, 0, 0, 1), Transfer(1, 2, 0, 1), Transfer(2, 1, 0, 0)
    )
    at_1 = {(a, b) for a, b in edges(p) if a[0] == 1}
    assert at_1 == {
        ((1, S, 0, 0, 0), (1, R, 0, 0, 0)),
        ((1, S, 2, 0, 0), (1, R, 0, 0, 0)),
        ((1, R, 2, 0, 0), (1, S, 0, 0, 0)),
        ((1, R, 2, 0, 0), (1, S, 2, 0, 0)),
    }


def test_no_edge_within_a_lane_nor_one_its_earlier_step_has() -> None:
    p = program(
        Transfer(0, 1, 0, 0, False, 2),  # both slots in one message
        Transfer(1, 2, 0, 0),  # waits for it
        Transfer(1, 2, 1, 1),  # so this one need not say so again
        Transfer(0, 1, 0, 3),  # same receive lane as the first: no edge for slot order either
    )
    assert edges(p) == {((1, S, 2, 0, 0), (1, R, 0, 0, 0))}


def test_of_several_steps_of_one_lane_only_the_last_is_awaited() -> None:
    p = program(Transfer(0, 1, 0, 0), Transfer(0, 1, 1, 1), Transfer(1, 2, 0, 0, False, 2))
    assert edges(p) == {((1, S, 2, 0, 0), (1, R, 0, 0, 1))}


def test_readers_of_one_slot_are_not_ordered() -> None:
    p = program(Transfer(0, 1, 0, 0), Transfer(0, 2, 0, 0))
    assert edges(p) == set()


def test_overlapping_ranges_conflict() -> None:
    p = program(Transfer(0, 1, 0, 0, False, 3), Transfer(1, 2, 2, 2, False, 2))
    assert edges(p) == {((1, S, 2, 0, 0), (1, R, 0, 0, 0))}


def test_local_steps_read_their_source_and_write_their_target() -> None:
    p = program(Transfer(0, 1, 0, 4), Transfer(1, 1, 4, 0, True), Transfer(1, 2, 0, 0))
    assert edges(p) == {
        ((1, L, -1, 0, 0), (1, R, 0, 0, 0)),
        ((1, S, 2, 0, 0), (1, L, -1, 0, 0)),
    }


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Transfer(0, 3, 0, 0), "ranks need 0 to 2"),
        (Transfer(-1, 1, 0, 0), "ranks need 0 to 2"),
        (Transfer(0, 1, 5, 0, False, 2), "slots from 5"),
        (Transfer(0, 1, 0, -1), "slots from 0 to -1"),
        (Transfer(0, 1, 0, 0, False, 0), "moves 0 slots"),
        (Transfer(1, 1, 0, 1, False, 2), "overlap"),
        (Transfer(1, 1, 2, 2), "overlap"),
    ],
)
def test_bad_transfers_are_named(bad: Transfer, says: str) -> None:
    with pytest.raises(ProgramError, match=r"transfers\[1\]") as error:
        program(Transfer(0, 1, 0, 0), bad)
    assert says in str(error.value)


def test_empty() -> None:
    p = program()
    assert [len(t["op" if "op" in t else "on"]) for t in (p.steps, p.dependencies)] == [0, 0]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_the_program_allows_gives_what_the_global_order_gives(seed: int) -> None:
    """Dropping one needed dependency makes some order differ; here none may."""
    draw = random.Random(seed)
    demand = Demand(collective=Collective.ALL_TO_ALL, ranks=3, chunks=1)
    slots = range(demand.slots + 2)
    transfers = []
    filled = {(r, slot) for r in range(3) for slot, _, _ in demand.initial(r)}
    while len(transfers) < 30:
        src, dst, channel = draw.randrange(3), draw.randrange(3), draw.randrange(2)
        a, b = draw.choice(slots), draw.choice(slots)
        count = draw.choice((1, 1, 2))
        fits = max(a, b) + count <= len(slots) and (src != dst or abs(a - b) >= count)
        if fits and all((src, a + k) in filled for k in range(count)):
            transfers.append(Transfer(src, dst, a, b, False, count, channel))
            filled |= {(dst, b + k) for k in range(count)}
    memory = [{s: (i, m, (r,)) for s, i, m in demand.initial(r)} for r in range(3)]
    for t in transfers:
        moved = [memory[t.src][t.src_slot + k] for k in range(t.count)]
        memory[t.dst].update({t.dst_slot + k: value for k, value in enumerate(moved)})
    lowered = lower(Schedule.of(demand, transfers, 2))
    for order in range(5):
        assert run(lowered, order) == memory


def test_twenty_thousand_transfers_are_no_hang() -> None:
    draw = random.Random(1)
    pairs = [(s, d) for s in range(4) for d in range(4) if s != d]
    transfers = [
        Transfer(*draw.choice(pairs), slot := draw.randrange(512), slot, True)
        for _ in range(20_000)
    ]
    with no_hang():
        program(*transfers, ranks=4, chunks=512)


def test_messages_are_numbered_in_the_order_of_the_schedule() -> None:
    demand = Demand(collective=Collective.BROADCAST, ranks=3, chunks=3)
    moves = [
        Transfer(0, 2, 0, 0),
        Transfer(0, 1, 0, 0),
        Transfer(0, 1, 2, 2, joined=True),
        Transfer(1, 1, 0, 3),
        Transfer(0, 1, 1, 1),
    ]
    program = lower(Schedule.of(demand, moves, scratch_slots=3))
    keys = list(
        zip(*(program.lanes[c].tolist() for c in ("rank", "direction", "peer")), strict=True)
    )
    found: dict[tuple[int, int, int], list[int]] = {key: [] for key in keys}
    rows = zip(program.steps["lane"].tolist(), program.steps["message"].tolist(), strict=True)
    for lane, message in rows:
        found[keys[lane]].append(message)
    assert found == {
        (0, Direction.SEND, 1): [1, 1, 3],
        (0, Direction.SEND, 2): [0],
        (1, Direction.RECV, 0): [1, 1, 3],
        (1, Direction.LOCAL, -1): [2],
        (2, Direction.RECV, 0): [0],
    }


@pytest.mark.parametrize(
    "before", [None, Transfer(0, 2, 0, 0), Transfer(0, 1, 0, 0, channel=1), Transfer(2, 1, 0, 0)]
)
def test_what_is_no_message_cannot_be_joined(before: Transfer | None) -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=3, chunks=2)
    moves = [*([before] if before else []), Transfer(0, 1, 1, 1, joined=True)]
    with pytest.raises(ProgramError, match=rf"transfers\[{len(moves) - 1}\] is joined to"):
        lower(Schedule.of(demand, moves))


def test_local_transfers_cannot_be_joined() -> None:
    demand = Demand(collective=Collective.ALLREDUCE, ranks=1, chunks=2)
    moves = [Transfer(0, 0, 0, 2), Transfer(0, 0, 1, 3, joined=True)]
    with pytest.raises(ProgramError, match="not local"):
        lower(Schedule.of(demand, moves, scratch_slots=2))


def _waits_one_by_one(schedule: Schedule) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Dependencies as `lower` defines them, access by access: pairs of `name`s."""
    steps: list[tuple[int, ...]] = []  # (rank, direction, peer, channel, position in the lane)
    waits: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    length: dict[tuple[int, ...], int] = {}
    waited: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    writer: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = {}

    def step(lane: tuple[int, ...], reads: range, writes: range) -> None:
        me, rank = len(steps), lane[0]
        steps.append((*lane, length.get(lane, 0)))
        length[lane] = length.get(lane, 0) + 1
        before: set[int] = set()
        for slot in reads:
            before.update({writer[rank, slot]} if (rank, slot) in writer else ())
            readers.setdefault((rank, slot), []).append(me)
        for slot in writes:
            since = readers.pop((rank, slot), [])
            before.update(since or ([writer[rank, slot]] if (rank, slot) in writer else []))
            writer[rank, slot] = me
        for on in sorted(before, reverse=True):
            other = steps[on][:4]
            if other != lane and waited.get((lane, other), -1) < on:
                waited[lane, other] = on
                waits.add((steps[me], steps[on]))

    for src, dst, src_slot, dst_slot, _, count, channel, _ in schedule.transfers:
        reads, writes = range(src_slot, src_slot + count), range(dst_slot, dst_slot + count)
        if src == dst:
            step((src, L, -1, channel), reads, writes)
        else:
            step((src, S, dst, channel), reads, range(0))
            step((dst, R, src, channel), range(0), writes)
    return waits


@pytest.mark.parametrize("few", [1 << 18, 3])
def test_columns_give_the_dependencies_that_one_by_one_gives(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_module, "_ACCESSES", few)  # few: rank by rank
    draw = random.Random(few)
    for _ in range(150):
        ranks, slots = draw.randrange(1, 5), draw.randrange(4, 9)
        transfers: list[Transfer] = []
        for _ in range(draw.randrange(40)):
            src, dst, count = draw.randrange(ranks), draw.randrange(ranks), draw.choice((1, 1, 2))
            a, b = (draw.randrange(slots - count + 1) for _ in range(2))
            if src == dst and abs(a - b) < count:
                continue
            reduce, channel = draw.random() < 0.3, draw.randrange(2)
            transfers.append(Transfer(src, dst, a, b, reduce, count, channel))
        demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=slots)
        schedule = Schedule.of(demand, transfers)
        assert edges(lower(schedule)) == _waits_one_by_one(schedule)
