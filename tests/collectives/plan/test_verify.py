"""The verifier on hand-made programs: each kind of fault, and what its message must name."""

import dataclasses
import re

import numpy as np
import pytest

from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.verify import VERIFIER_VERSION, Proof, verify
from headrace.collectives.plan.verify.clocks import Clocks
from headrace.collectives.plan.verify.order import running_order
from headrace.collectives.plan.verify.structure import Structure
from headrace.collectives.program import Direction, Op, Program, Transfer
from headrace.errors import VerificationError
from tests.collectives.plan.handmade import (
    Draft,
    Step,
    all_drafts,
    direct_all_to_all,
    draft,
    halving_doubling,
    ring_allgather,
    ring_allreduce,
)
from tests.waiting import no_hang


def rejects(draft_or_program: Draft | Program, *pieces: str) -> None:
    """Assert that the program is rejected, with every piece in the message, in this order."""
    made = draft_or_program
    program = made.build() if isinstance(made, Draft) else made
    with pytest.raises(VerificationError, match="(?s)" + ".*".join(map(re.escape, pieces))):
        verify(program)


def accepts(made: Draft) -> None:
    verify(made.build())


def empty(collective: Collective, ranks: int, *, chunks: int = 1, scratch: int = 0) -> Draft:
    return Draft(Demand(collective=collective, ranks=ranks, chunks=chunks), scratch)


def broadcast(ranks: int = 2, chunks: int = 1, scratch: int = 0) -> Draft:
    return empty(Collective.BROADCAST, ranks, chunks=chunks, scratch=scratch)


# ---- what is right --------------------------------------------------------------------------


@pytest.mark.parametrize("name", all_drafts())
def test_known_algorithms_are_proven(name: str) -> None:
    program = all_drafts()[name].build()
    assert verify(program) == Proof(
        program_digest=program.digest, verifier_version=VERIFIER_VERSION
    )


@pytest.mark.parametrize("collective", [c for c in STANDARD if c is not Collective.ALL_TO_ALL])
def test_one_rank_needs_no_steps(collective: Collective) -> None:
    accepts(empty(collective, 1, chunks=3))


def test_one_rank_all_to_all_needs_its_copy() -> None:
    rejects(empty(Collective.ALL_TO_ALL, 1), "rank 0, slot 1", "undefined", "needs item 0")
    accepts(direct_all_to_all(1, 2))


def test_lanes_without_steps_are_fine_in_pairs() -> None:
    made = ring_allreduce(3)
    made.lane(0, Direction.SEND, 2)
    made.lane(2, Direction.RECV, 0)
    made.lane(1, Direction.LOCAL, -1)
    accepts(made)


def test_slots_without_postcondition_may_be_overwritten() -> None:
    demand = Demand(collective=Collective.GATHER, ranks=3)
    moves = [Transfer(2, 1, 2, 2), Transfer(1, 0, 2, 2), Transfer(1, 0, 1, 1), Transfer(2, 1, 2, 1)]
    accepts(draft(demand, moves))


def test_scratch_can_be_used_twice_if_ordered() -> None:
    demand = Demand(collective=Collective.BROADCAST, ranks=2)
    moves = [Transfer(0, 0, 0, 1), Transfer(0, 1, 1, 1), Transfer(1, 1, 1, 0)]
    moves += [Transfer(0, 0, 0, 1), Transfer(0, 1, 1, 1)]
    accepts(draft(demand, moves, scratch_slots=1))


def test_commuted_sums_agree() -> None:
    """Two ranks swap and each adds the other's vector: a + b at one, b + a at the other."""
    demand = Demand(collective=Collective.ALLREDUCE, ranks=2)
    moves = [Transfer(0, 1, 0, 1), Transfer(1, 0, 0, 0, True), Transfer(1, 1, 1, 0, True)]
    accepts(draft(demand, moves, scratch_slots=1))


def test_more_than_64_ranks() -> None:
    accepts(ring_allreduce(70, 1))


# ---- lanes ----------------------------------------------------------------------------------


def test_send_lane_without_receive_lane() -> None:
    made = broadcast()
    made.lane(0, Direction.SEND, 1, 4).append(Step(Op.SEND, 0))
    rejects(made, "rank 0, send lane to rank 1, channel 4", "needs rank 1, receive lane", "rank 0")


def test_receive_lane_without_send_lane() -> None:
    made = broadcast()
    made.lane(1, Direction.RECV, 0).append(Step(Op.RECV, 0))
    rejects(made, "rank 1, receive lane from rank 0", "no partner", "needs rank 0, send lane to")


def test_lanes_of_different_channels_do_not_pair() -> None:
    made = broadcast()
    made.lane(0, Direction.SEND, 1, 0).append(Step(Op.SEND, 0))
    made.lane(1, Direction.RECV, 0, 1).append(Step(Op.RECV, 0))
    rejects(made, "rank 0, send lane to rank 1, channel 0", "no partner")


def test_lanes_of_different_length() -> None:
    made = broadcast()
    made.transfer(Transfer(0, 1, 0, 0))
    made.lane(0, Direction.SEND, 1).append(Step(Op.SEND, 0))
    rejects(made, "rank 0, send lane to rank 1", "found 2 steps, but 1", "rank 1, receive lane")


def test_paired_steps_of_different_count() -> None:
    made = broadcast(chunks=2)
    made.lane(0, Direction.SEND, 1).append(Step(Op.SEND, 0, count=2))
    made.lane(1, Direction.RECV, 0).append(Step(Op.RECV, 0, count=1))
    rejects(made, "rank 0", "step 0 (SEND slots 0..1)", "sends 2 chunks", "rank 1", "takes 1")


@pytest.mark.parametrize(
    ("direction", "op"),
    [(Direction.SEND, Op.RECV), (Direction.RECV, Op.SEND), (Direction.RECV, Op.COPY)],
)
def test_op_on_a_lane_of_another_kind(direction: Direction, op: Op) -> None:
    made = broadcast()
    made.lane(0, direction, 1).append(Step(op, 0))
    rejects(made, "rank 0", "step 0", f"op is {op.name}, a {direction.name} lane needs")


def test_send_on_a_local_lane() -> None:
    made = broadcast()
    made.lane(1, Direction.LOCAL, -1).append(Step(Op.SEND, 0))
    rejects(made, "rank 1, local lane", "op is SEND", "needs COPY or REDUCE")


def test_lane_to_oneself() -> None:
    made = broadcast()
    made.lane(1, Direction.SEND, 1).append(Step(Op.SEND, 0))
    rejects(made, "rank 1, send lane to rank 1", "cannot send to itself")


def test_local_lane_with_a_peer() -> None:
    made = broadcast()
    made.lane(1, Direction.LOCAL, 0)
    rejects(made, "rank 1, local lane", "peer is 0, needs -1")


def test_send_lane_without_a_peer() -> None:
    made = broadcast()
    made.lane(1, Direction.SEND, -1)
    rejects(made, "rank 1, send lane", "peer is -1, needs another rank")


def test_the_same_lane_twice() -> None:
    program = ring_allreduce(2).build()
    lanes = {name: np.insert(column, 0, column[0]) for name, column in program.lanes.items()}
    steps = dict(program.steps, lane=program.steps["lane"] + np.int32(1))
    twice = dataclasses.replace(program, lanes=lanes, steps=steps)
    rejects(twice, "rank 0, send lane to rank 1, channel 0: found twice (lanes 0 and 1)")


# ---- steps ----------------------------------------------------------------------------------


def test_copy_without_source() -> None:
    made = broadcast(scratch=1)
    made.lane(0, Direction.LOCAL, -1).append(Step(Op.COPY, 1, -1))
    rejects(made, "rank 0, local lane, channel 0, step 0", "src_slot is -1")


def test_send_with_source() -> None:
    made = broadcast()
    made.lane(0, Direction.SEND, 1).append(Step(Op.SEND, 0, 0))
    made.lane(1, Direction.RECV, 0).append(Step(Op.RECV, 0))
    rejects(made, "rank 0, send lane", "src_slot is 0, needs -1")


def test_copy_onto_itself() -> None:
    made = broadcast(chunks=3)
    made.lane(0, Direction.LOCAL, -1).append(Step(Op.COPY, 1, 0, 2))
    rejects(made, "rank 0", "COPY slots 1..2 from slots 0..1", "reads slots 0..1 while it writes")


def test_range_across_the_halves_of_an_all_to_all() -> None:
    made = direct_all_to_all(2)
    made.transfer(Transfer(0, 1, 1, 1, False, 2))
    rejects(made, "rank 0", "(SEND slots 1..2)", "reach across buffers at slot 2")


def test_range_across_data_and_scratch() -> None:
    made = broadcast(scratch=1)
    made.transfer(Transfer(0, 1, 0, 0, False, 2))
    rejects(made, "(SEND slots 0..1)", "reach across buffers at slot 1")


def test_range_of_scratch_slots() -> None:
    made = broadcast(chunks=2, scratch=2)
    made.transfer(Transfer(0, 1, 0, 2, False, 2))
    rejects(made, "rank 1", "(RECV slots 2..3)", "covers 2 scratch slots", "one step for each")


def test_negative_scratch() -> None:
    with pytest.raises(ProgramError, match="scratch_slots is -1"):
        dataclasses.replace(broadcast(chunks=2).build(), scratch_slots=-1)


# ---- dependencies ---------------------------------------------------------------------------


def test_dependency_on_another_rank() -> None:
    made = broadcast(3)
    first, _ = made.transfer(Transfer(0, 1, 0, 0))
    made.transfer(Transfer(1, 2, 0, 0), [first])
    rejects(made, "rank 1, send lane to rank 2", "depends on rank 0, send lane to rank 1", "same")


def test_unsorted_dependencies() -> None:
    program = ring_allreduce(3).build()
    backwards = {name: column[::-1].copy() for name, column in program.dependencies.items()}
    rejects(dataclasses.replace(program, dependencies=backwards), "dependencies row 1", "sorted")


# ---- deadlock -------------------------------------------------------------------------------


def test_two_ranks_that_wait_for_each_other() -> None:
    """Each sends only after it has received; the message shows the whole cycle."""
    made = empty(Collective.ALLGATHER, 2)
    _, at_1 = made.transfer(Transfer(0, 1, 0, 0))
    _, at_0 = made.transfer(Transfer(1, 0, 1, 1), [at_1])
    made.lanes[0, 0, 1, 0][0].on.append(at_0)
    rejects(
        made,
        "deadlock: the wait-for graph has a cycle",
        "rank 0, send lane to rank 1, channel 0, step 0 (SEND slot 0) depends on",
        "rank 0, receive lane from rank 1, channel 0, step 0 (RECV slot 1) is matched with",
        "rank 1, send lane to rank 0, channel 0, step 0 (SEND slot 1) depends on",
        "rank 1, receive lane from rank 0, channel 0, step 0 (RECV slot 0) is matched with",
        "rank 0, send lane to rank 1",
    )


def test_lane_order_against_a_dependency() -> None:
    made = broadcast(chunks=2)
    first, _ = made.transfer(Transfer(0, 1, 0, 0))
    second, _ = made.transfer(Transfer(0, 1, 1, 1))
    first.on.append(second)
    rejects(made, "deadlock", "step 0 (SEND slot 0) depends on", "step 1 (SEND slot 1) comes in")


def test_step_that_waits_for_itself() -> None:
    made = broadcast()
    send, _ = made.transfer(Transfer(0, 1, 0, 0))
    send.on.append(send)
    rejects(made, "deadlock", "step 0 (SEND slot 0) depends on rank 0")


def test_long_cycles_are_cut_short() -> None:
    """All ranks of a ring send only what they have received before."""
    made = ring_allgather(20)
    for rank in range(20):
        first = made.lanes[rank, 0, (rank + 1) % 20, 0][0]
        first.on.append(made.lanes[rank, 1, (rank - 1) % 20, 0][0])
    rejects(made, "deadlock: the wait-for graph has a cycle", "... (28 more) ...")


# ---- races ----------------------------------------------------------------------------------


def test_forwarding_before_it_arrived() -> None:
    made = broadcast(3)
    made.transfer(Transfer(0, 1, 0, 0))
    made.transfer(Transfer(1, 2, 0, 0))
    rejects(made, "data race on slot 0", "rank 1", "no lane or dependency orders them")


def test_overwriting_what_is_still_being_sent() -> None:
    made = ring_allreduce(2)
    for lane in made.lanes.values():
        for step in lane:
            if step.op == Op.RECV:
                step.on.clear()
    rejects(made, "data race on slot", "(SEND slot", "reads it and", "(RECV slot", "writes it")


def test_two_receives_into_one_slot() -> None:
    made = empty(Collective.REDUCE, 3)
    made.transfer(Transfer(1, 0, 0, 0, True))
    made.transfer(Transfer(2, 0, 0, 0, True))
    rejects(made, "data race on slot 0", "writes it and rank 0, receive lane from rank", "writes")


def test_an_order_through_another_rank_is_not_enough() -> None:
    """The round trip orders them in practice, but not by the rank's own lanes."""
    demand = Demand(collective=Collective.ALLREDUCE, ranks=2)
    made = draft(demand, [Transfer(0, 1, 0, 0, True), Transfer(1, 0, 0, 0)])
    accepts(made)
    made.lanes[0, 1, 1, 0][0].on.clear()
    rejects(made, "data race on slot 0: rank 0, send lane", "rank 0, receive lane")


def _shifted(middle: Step) -> Draft:
    """Copy 0..1 to 2..3; then `middle`; after that, 4..5 to 1..2, of which 1 was read last."""
    made = empty(Collective.SCATTER, 6)
    first = Step(Op.COPY, 2, 0, 2)
    middle.on = [first]
    last = Step(Op.COPY, 1, 4, 2, [middle])
    for channel, step in enumerate((first, middle, last)):
        made.lane(0, Direction.LOCAL, -1, channel).append(step)
    return made


def test_streaming_orders_only_the_same_bytes() -> None:
    """A chain of streaming steps over shifted ranges: byte k follows byte k of another slot."""
    rejects(
        _shifted(Step(Op.COPY, 4, 2, 2)),
        "data race on slot",
        "COPY slots 2..3 from slots 0..1",
        "COPY slots 1..2 from slots 4..5",
        "ordered only byte by byte, and not at the same bytes",
    )


def test_one_whole_wait_in_the_chain_orders_all_bytes() -> None:
    """The step in the middle covers another range, so it waits for all of the first."""
    rejects(
        _shifted(Step(Op.COPY, 4, 2, 1)), "rank 1, slot 1: holds nothing (undefined) in the end"
    )


def test_readers_of_one_lane_are_covered_by_its_last() -> None:
    """A write after two sends of one lane needs to wait for the second only."""
    demand = Demand(collective=Collective.ALLREDUCE, ranks=2)
    made = draft(
        demand, [Transfer(0, 1, 0, 1), Transfer(0, 1, 0, 0, True), Transfer(1, 0, 0, 0)], 1
    )
    receive = made.lanes[0, 1, 1, 0][0]
    assert len(receive.on) == 2
    receive.on = receive.on[1:]
    accepts(made)
    receive.on = made.lanes[0, 0, 1, 0][:1]
    rejects(made, "data race on slot 0", "step 1 (SEND slot 0) reads it")


# ---- values ---------------------------------------------------------------------------------


def test_undefined_send() -> None:
    made = broadcast(3)
    made.transfer(Transfer(2, 1, 0, 0))
    rejects(made, "rank 2, send lane to rank 1, channel 0, step 0 (SEND slot 0)", "undefined")


def test_undefined_scratch() -> None:
    made = broadcast(scratch=2)
    made.lane(0, Direction.LOCAL, -1).append(Step(Op.COPY, 1, 2))
    rejects(made, "rank 0, local lane", "reads slot 2, which is undefined")


def test_reducing_into_nothing() -> None:
    made = broadcast()
    made.transfer(Transfer(0, 1, 0, 0, True))
    rejects(made, "rank 1", "RECV_REDUCE slot 0", "holds nothing (undefined)", "defined value")


def test_contribution_added_twice() -> None:
    demand = Demand(collective=Collective.REDUCE, ranks=2)
    made = draft(demand, [Transfer(1, 0, 0, 0, True)] * 2)
    rejects(
        made,
        "rank 0, receive lane from rank 1, channel 0, step 1 (RECV_REDUCE slot 0)",
        "item 0 of ranks {1}",
        "holds item 0 of ranks {0, 1}",
        "each contribution only once",
    )


def test_different_items_added() -> None:
    demand = Demand(collective=Collective.REDUCE_SCATTER, ranks=2)
    made = draft(demand, [Transfer(1, 0, 1, 0, True)])
    rejects(made, "rank 0", "combines item 1 of ranks {1} into slot 0", "item 0", "same item")


def test_chunk_in_a_slot_of_another_size() -> None:
    demand = Demand(collective=Collective.ALLGATHER, ranks=2, chunks=2)
    made = draft(demand, [Transfer(0, 1, 0, 1)])
    rejects(made, "rank 1", "RECV slot 1", "chunk 0 of its block", "made for chunk 1", "sizes")


def test_missing_result() -> None:
    made = broadcast(3)
    made.transfer(Transfer(0, 1, 0, 0))
    rejects(made, "rank 2, slot 0: holds nothing (undefined)", "needs item 0 of ranks {0}")


def test_incomplete_sum() -> None:
    demand = Demand(collective=Collective.REDUCE, ranks=3)
    made = draft(demand, [Transfer(1, 0, 0, 0, True)])
    rejects(
        made,
        "rank 0, slot 0: holds item 0 of ranks {0, 1} in the end",
        "(written by rank 0,",
        "needs item 0 of ranks {0, 1, 2}",
    )


def test_stale_value() -> None:
    """The sum goes out before the last contribution came in."""
    demand = Demand(collective=Collective.ALLREDUCE, ranks=3)
    moves = [Transfer(1, 0, 0, 0, True), Transfer(0, 1, 0, 0), Transfer(2, 0, 0, 0, True)]
    rejects(draft(demand, [*moves, Transfer(0, 2, 0, 0)]), "rank 1, slot 0: holds", "{0, 1} in")


def test_result_overwritten_in_the_end() -> None:
    made = ring_allgather(2)
    made.transfer(Transfer(0, 1, 0, 1), [], [made.lanes[1, 0, 0, 0][0]])
    rejects(made, "rank 1, slot 1: holds item 0", "needs item 1 of ranks {1}")


def test_sums_in_different_order_at_different_ranks() -> None:
    """All three ranks sum all three vectors, each beginning with its own: floats would differ."""
    demand = Demand(collective=Collective.ALLREDUCE, ranks=3)
    moves = [Transfer(src, (src + k) % 3, 0, k) for k in (1, 2) for src in range(3)]
    moves += [Transfer(rank, rank, k, 0, True) for rank in range(3) for k in (1, 2)]
    rejects(
        draft(demand, moves, 2),
        "rank 1, slot 0: combines",
        "another order than rank 0",
        "written by rank 1, local lane",
        "floats",
    )


# ---- size -----------------------------------------------------------------------------------


def test_fifty_thousand_steps_are_no_hang() -> None:
    program = ring_allreduce(16, 800).build()
    wide = direct_all_to_all(96).build()
    assert len(program.steps["op"]) > 45_000
    with no_hang():
        verify(program)
        verify(wide)


def test_every_rank_may_cover_ranges() -> None:
    accepts(halving_doubling(16))


# ---- messages -------------------------------------------------------------------------------


def renumbered(program: Program, message: list[int]) -> Program:
    steps = {**program.steps, "message": np.array(message, dtype=np.int32)}
    return dataclasses.replace(program, steps=steps)


def pair(joined: bool = True) -> Draft:
    """Rank 0 sends two chunks to rank 1."""
    made = broadcast(2, 3)
    for slot in (0, 2, 1):
        made.transfer(Transfer(0, 1, slot, slot, joined=joined and slot == 2))
    return made


def test_messages_of_several_steps_are_proven() -> None:
    program = pair().build()
    assert program.steps["message"].tolist() == [0, 0, 1, 0, 0, 1]
    verify(program)
    verify(renumbered(program, [5, 5, 9, 5, 5, 9]))


def test_the_two_ends_of_a_message() -> None:
    rejects(
        renumbered(pair().build(), [0, 0, 1, 0, 1, 1]),
        "rank 1, receive lane from rank 0, channel 0, step 1 (RECV slot 2): is of message 1, but",
        "rank 0, send lane to rank 1, channel 0, step 1 (SEND slot 2), which feeds it, of message",
        "0; needs the same at both ends",
    )


def test_a_message_that_is_not_consecutive() -> None:
    rejects(
        renumbered(pair().build(), [0, 1, 0, 0, 1, 0]),
        "rank 0, send lane to rank 1, channel 0, step 2 (SEND slot 1): is of message 0, after one "
        "of message 1; needs numbers that do not fall within a lane",
    )


def test_a_message_in_two_lanes() -> None:
    made = broadcast(3)
    made.transfer(Transfer(0, 1, 0, 0))
    made.transfer(Transfer(0, 2, 0, 0))
    rejects(
        renumbered(made.build(), [0, 0, 0, 0]),
        "rank 0, send lane to rank 2, channel 0, step 0 (SEND slot 0): is of message 0, as is",
        "rank 0, send lane to rank 1, channel 0, step 0 (SEND slot 0)",
        "one after another in one lane",
    )


def test_local_steps_are_no_message() -> None:
    made = empty(Collective.ALLREDUCE, 1, chunks=2, scratch=2)
    for slot in (0, 1):
        made.transfer(Transfer(0, 0, slot, 2 + slot))
    accepts(made)
    made.lanes[0, Direction.LOCAL, -1, 0][1].joined = True
    rejects(made, "local lane", "step 1", "is of the message before it; needs one of its own")


def test_two_messages_that_wait_for_parts_of_each_other() -> None:
    """Fine step by step: a part of each answers the other. As wholes neither can begin."""
    made = empty(Collective.ALLGATHER, 2, chunks=2)
    _, there = made.transfer(Transfer(0, 1, 0, 0))
    _, here = made.transfer(Transfer(1, 0, 2, 2))
    made.transfer(Transfer(0, 1, 1, 1), [here])
    made.transfer(Transfer(1, 0, 3, 3), [there])
    accepts(made)
    for lane in made.lanes.values():
        lane[1].joined = True
    rejects(
        made,
        "deadlock: the wait-for graph has a cycle",
        "is part of one message with",
        "depends on",
    )


def test_a_part_that_waits_for_a_later_part() -> None:
    made = pair()
    first, second = made.lanes[0, 0, 1, 0][:2]
    first.on.append(second)
    rejects(made, "deadlock", "step 0 (SEND slot 0) depends on", "step 1 (SEND slot 2) comes in")
    first.on.clear()
    second.on.append(first)
    accepts(made)


def go_through(made: Draft) -> None:
    """Check every rank with vector clocks, where they are needed or not."""
    structure = Structure.of(made.build())
    order = running_order(structure)
    for rank in range(made.demand.ranks):
        Clocks(structure, order[structure.rank[order] == rank]).check()


def test_clocks_are_dropped_when_no_step_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory must not grow with steps times lanes."""
    most = 0
    advance = Clocks._advance

    def counting(clocks: Clocks, step: int) -> None:
        nonlocal most
        advance(clocks, step)
        most = max(most, len(clocks.reached))

    monkeypatch.setattr(Clocks, "_advance", counting)
    go_through(ring_allgather(12, 40))
    assert 0 < most <= 4
    go_through(direct_all_to_all(12, 4))
    assert most <= 2 * 12
