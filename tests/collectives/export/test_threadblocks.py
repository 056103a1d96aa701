"""Instructions, dependencies, instances and limits of what is lowered."""

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.export import limits
from headrace.collectives.export.algorithm import Algorithm, BlockStep, Kind, Wait
from headrace.collectives.export.buffers import NAMES, Layout, chunks_of, chunks_per_loop
from headrace.collectives.export.msccl_xml import export
from headrace.collectives.export.threadblocks import Target, suggested_instances
from headrace.collectives.plan.generators.templates.direct import direct
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Schedule, Transfer
from headrace.errors import VerificationError
from tests.collectives.export.programs import lowered, template_programs


def steps(algorithm: Algorithm) -> list[BlockStep]:
    return [s for gpu in algorithm.gpus for tb in gpu.threadblocks for s in tb.steps]


def test_each_threadblock_has_one_peer_either_way_and_few_connections_share_it() -> None:
    for _, program in template_programs(4):
        for gpu in lowered(program, Target()).gpus:
            assert [tb.id for tb in gpu.threadblocks] == list(range(len(gpu.threadblocks)))
            sends = [(tb.send, tb.channel) for tb in gpu.threadblocks if tb.send >= 0]
            receives = [(tb.recv, tb.channel) for tb in gpu.threadblocks if tb.recv >= 0]
            assert len(set(sends)) == len(sends)
            assert len(set(receives)) == len(receives)


def test_one_dependency_a_step_and_a_flag_on_what_is_waited_for() -> None:
    several = 0
    for _, program in template_programs(4):
        for gpu in lowered(program, Target(in_place=True) if _in_place(program) else Target()).gpus:
            blocks = {tb.id: tb for tb in gpu.threadblocks}
            for tb in gpu.threadblocks:
                for k, step in enumerate(tb.steps):
                    if step.depends is not None:
                        on = blocks[step.depends.threadblock].steps[step.depends.step]
                        assert on.flagged
                        assert step.depends.threadblock != tb.id
                    if step.kind is Kind.NOP:
                        several += 1
                        assert step.depends is not None
                        assert tb.steps[k + 1].depends is not None
    assert several


def _in_place(program) -> bool:
    return program.demand.collective is not Collective.ALL_TO_ALL


def test_neighbouring_slots_of_a_message_are_one_step_of_fewer_than_72() -> None:
    demand = Demand(collective=Collective.BROADCAST, ranks=2, chunks=100)
    moves = [Transfer(0, 1, 0, 0, count=100)]
    algorithm = lowered(lower(Schedule.of(demand, moves)), Target(in_place=True))
    assert [s.count for s in steps(algorithm)] == [71, 29, 71, 29]
    joined = [Transfer(0, 1, k, k, joined=k > 0) for k in range(100)]
    algorithm = lowered(lower(Schedule.of(demand, joined)), Target(in_place=True))
    assert [s.count for s in steps(algorithm)] == [71, 29, 71, 29]
    apart = [Transfer(0, 1, k, k) for k in range(100)]
    algorithm = lowered(lower(Schedule.of(demand, apart)), Target(in_place=True))
    assert {s.count for s in steps(algorithm)} == {1}


def test_instances_keep_neighbours_together_within_blocks() -> None:
    demand = Demand(collective=Collective.ALLGATHER, ranks=2, chunks=3)
    moves = [Transfer(0, 1, 0, 0, count=3), Transfer(1, 0, 3, 3, count=3)]
    algorithm = lowered(lower(Schedule.of(demand, moves)), Target(instances=4, in_place=True))
    assert algorithm.channels == 4
    assert algorithm.chunks_per_loop == 2 * 3 * 4
    sends = [s for s in steps(algorithm) if s.kind is Kind.SEND]
    assert [(s.src.offset, s.count) for s in sends[:4]] == [(0, 3), (3, 3), (6, 3), (9, 3)]


def test_out_of_place_reduction_reads_the_input_and_stores_once() -> None:
    demand = Demand(collective=Collective.REDUCE_SCATTER, ranks=4)
    algorithm = lowered(lower(ring(demand)), Target())
    assert {s.src.buffer for s in steps(algorithm) if s.kind is Kind.SEND} == {"i", "s"}
    stored = [s for s in steps(algorithm) if s.kind is Kind.RECV_REDUCE_COPY]
    assert all(s.src.buffer == "i" for s in stored)
    assert not [s for s in steps(algorithm) if s.dst.buffer == "i" and s.dst.offset >= 0]


def test_out_of_place_allgather_copies_its_own_block() -> None:
    algorithm = lowered(lower(ring(Demand(collective=Collective.ALLGATHER, ranks=3))), Target())
    copies = [s for s in steps(algorithm) if s.kind is Kind.COPY]
    assert [(s.src, s.dst) for s in copies] == [(("i", 0), ("o", r)) for r in range(3)]
    in_place = lowered(
        lower(ring(Demand(collective=Collective.ALLGATHER, ranks=3))), Target(in_place=True)
    )
    assert not [s for s in steps(in_place) if s.kind is Kind.COPY]


def test_limits_are_enforced_on_export() -> None:
    many = lower(direct(Demand(collective=Collective.ALL_TO_ALL, ranks=34)))
    with pytest.raises(VerificationError, match="33 threadblocks send on channel 0"):
        export(many)
    with pytest.raises(VerificationError, match="300 characters, needs at most 255"):
        export(
            lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=2))), Target(name="n" * 300)
        )


def test_threadblocks_are_shared_where_there_would_be_too_many() -> None:
    """16 GPUs, 8 instances: 30 threadblocks an instance are more than 216; 15 are not."""
    program = lower(direct(Demand(collective=Collective.ALL_TO_ALL, ranks=16)))
    algorithm = lowered(program, Target(instances=8))
    assert max(len(gpu.threadblocks) for gpu in algorithm.gpus) <= limits.THREADBLOCKS
    assert not [f for f in limits.check_limits(algorithm) if f.fatal]


def test_wrong_targets_are_refused() -> None:
    for wrong in (
        {"instances": 3},
        {"protocol": "Fast"},
        {"min_bytes": -1},
        {"min_bytes": 5, "max_bytes": 4},
    ):
        with pytest.raises(ProgramError, match="need"):
            Target(**wrong)
    demand = Demand.all_to_all_v([[1, 2], [0, 1]])
    with pytest.raises(ProgramError, match="no counterpart"):
        Layout(demand=demand, in_place=False)


def test_a_wrong_program_is_not_lowered() -> None:
    demand = Demand(collective=Collective.BROADCAST, ranks=3)
    with pytest.raises(VerificationError):
        lowered(lower(Schedule.of(demand, [Transfer(0, 1, 0, 0)])), Target())


def test_layouts_map_back() -> None:
    for collective in NAMES:
        demand = Demand(
            collective=collective,
            ranks=3,
            chunks=2,
            root=1
            if collective
            in (Collective.REDUCE, Collective.BROADCAST, Collective.GATHER, Collective.SCATTER)
            else 0,
        )
        assert chunks_of(collective, 3, chunks_per_loop(demand)) == 2
        for in_place in (False, True):
            if in_place and collective is Collective.ALL_TO_ALL:
                continue
            layout = Layout(demand=demand, in_place=in_place)
            for rank in range(3):
                homes = [layout.home(rank, slot) for slot in range(demand.slots + 4)]
                names = [layout.same_memory(rank, place) for place in homes]
                assert len(set(names)) == len(names)
                assert [layout.slot(rank, place) for place in homes] == list(range(len(homes)))
    with pytest.raises(ProgramError, match="positive multiple of 3"):
        chunks_of(Collective.ALLGATHER, 3, 4)


def test_suggested_instances() -> None:
    assert [suggested_instances(n) for n in (1, 10**6, 10**6 + 1, 1 << 30)] == [1, 1, 8, 8]


def test_waits_are_values() -> None:
    assert Wait(1, 2) == (1, 2)
