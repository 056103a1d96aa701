"""The simulator against closed forms, and against what any sane network does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import CostModel
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Op, Program, Schedule, Transfer
from headrace.errors import InputError, TopologyError, VerificationError
from headrace.topology import Link, SharedCapacity, Topology
from headrace.topology.presets import racks, uniform
from tests.waiting import no_hang

MB = 1_000_000


def ring(n: int, chunks_per_part: int = 1) -> Program:
    """The textbook ring allreduce: n parts, 2(n-1) rounds."""
    m = chunks_per_part
    transfers = [
        Transfer(
            i,
            (i + 1) % n,
            (i - step + phase) % n * m + k,
            (i - step + phase) % n * m + k,
            not phase,
        )
        for phase in (0, 1)
        for step in range(n - 1)
        for i in range(n)
        for k in range(m)
    ]
    demand = Demand(collective=Collective.ALLREDUCE, ranks=n, chunks=n * m)
    return lower(Schedule.of(demand, transfers))


def broadcast(n: int, pairs: list[tuple[int, int]], chunks: int = 1) -> Program:
    """Chunk by chunk along `pairs`, in order."""
    demand = Demand(collective=Collective.BROADCAST, ranks=n, chunks=chunks)
    return lower(
        Schedule.of(demand, [Transfer(s, d, k, k) for k in range(chunks) for s, d in pairs])
    )


def line(betas: list[float], alpha_us: float = 0.0, shared: tuple[SharedCapacity, ...] = ()):
    """Ranks 0, 1, ... with one link from each to the next."""
    n = len(betas) + 1
    return Topology(
        name="line",
        hosts=tuple(f"h{i}" for i in range(n)),
        rank_host=tuple(range(n)),
        links=tuple(
            Link(src=i, dst=i + 1, alpha_us=alpha_us, beta_us_per_mb=beta)
            for i, beta in enumerate(betas)
        ),
        shared=shared,
    )


@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("total_bytes", [1000, 65536, 8 * MB])
def test_ring_on_a_uniform_topology_is_the_closed_form(n: int, total_bytes: int) -> None:
    alpha, beta = 50.0, 1000.0
    topology = uniform(n, alpha_us=alpha, bytes_per_s=1e9)
    part = beta * total_bytes / n / MB
    found = simulate(ring(n), topology, total_bytes, max_pieces=1)
    assert found.total_us == pytest.approx(2 * (n - 1) * (alpha + part))
    # Streaming: the next round starts a piece and an alpha after this one, or when it is sent.
    found = simulate(ring(n), topology, total_bytes)
    pieces = found.pieces / (2 * (n - 1) * n)
    assert found.total_us == pytest.approx(
        (2 * n - 3) * max(part, alpha + part / pieces) + part + alpha
    )


def test_one_message_takes_alpha_plus_beta() -> None:
    found = simulate(broadcast(2, [(0, 1)]), line([800.0], alpha_us=30.0), MB)
    assert found.total_us == pytest.approx(830.0)
    send, receive = 0, 1
    assert found.start_us[send] == 0.0
    assert found.finish_us[send] == pytest.approx(800.0)
    assert found.start_us[receive] == pytest.approx(30.0)
    assert found.finish_us[receive] == pytest.approx(830.0)


def test_a_chunk_is_forwarded_while_it_arrives() -> None:
    program = broadcast(4, [(0, 1), (1, 2), (2, 3)])
    whole = simulate(program, line([1000.0] * 3), MB, max_pieces=1)
    assert whole.total_us == pytest.approx(3000.0)
    streamed = simulate(program, line([1000.0] * 3), MB)
    assert 1000.0 < streamed.total_us < 1100.0


def test_a_slow_link_in_the_middle_sets_the_pace() -> None:
    found = simulate(broadcast(4, [(0, 1), (1, 2), (2, 3)]), line([100.0, 1000.0, 100.0]), 8 * MB)
    assert found.total_us == pytest.approx(8000.0, rel=0.02)


def star(shared_beta: float) -> Topology:
    """Rank 0 with a link of beta 100 to each of three others, all behind one capacity."""
    return Topology(
        name="star",
        hosts=("a", "b", "c", "d"),
        rank_host=(0, 1, 2, 3),
        links=tuple(Link(src=0, dst=d, alpha_us=0.0, beta_us_per_mb=100.0) for d in (1, 2, 3)),
        shared=(SharedCapacity(name="nic", links=(0, 1, 2), beta_us_per_mb=shared_beta),),
    )


def test_a_shared_capacity_is_shared_evenly() -> None:
    program = broadcast(4, [(0, 1), (0, 2), (0, 3)])
    found = simulate(program, star(shared_beta=100.0), MB)
    assert found.total_us == pytest.approx(300.0)
    assert found.shared_busy.tolist() == pytest.approx([1.0])
    sends = found.finish_us[program.steps["op"] == Op.SEND]
    assert sends.min() > 280.0  # no link comes first


def test_a_shared_capacity_that_is_fast_enough_does_not_delay() -> None:
    found = simulate(broadcast(4, [(0, 1), (0, 2), (0, 3)]), star(shared_beta=30.0), MB)
    assert found.total_us == pytest.approx(100.0, rel=0.05)
    assert found.shared_busy.tolist() == pytest.approx([0.9], rel=0.05)


def test_shared_capacities_of_one_name_are_in_use_for_their_own_time() -> None:
    """A report showed the use of the last of them for all."""
    network = star(shared_beta=100.0)
    port = SharedCapacity(name="nic", links=(0,), beta_us_per_mb=150.0)
    network = replace(network, shared=(*network.shared, port))
    found = simulate(broadcast(4, [(0, 1), (0, 2), (0, 3)]), network, MB)
    assert found.shared_busy.tolist() == pytest.approx([1.0, 0.5], rel=0.05)


def test_a_slow_uplink_does_not_hold_a_fast_nic() -> None:
    # Rank 0 sends 1 MB over the uplink (1000 us) and 3 MB to its neighbour (750 us at NIC speed).
    topology = racks((2, 1), host_bytes_per_s=4e9, uplink_bytes_per_s=1e9, alpha_us=0.0)
    demand = Demand(collective=Collective.BROADCAST, ranks=3, chunks=4)
    schedule = Schedule.of(demand, [Transfer(0, 2, 0, 0), Transfer(0, 1, 1, 1, count=3)])
    found = simulate(lower(schedule), topology, 4 * MB)
    assert found.total_us == pytest.approx(1000.0, rel=0.05)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 2, 1)])
def test_a_ring_knows_where_it_crosses_uplinks(order: tuple[int, ...]) -> None:
    topology = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6, rank_order=order)
    crossings = sum(
        order[i] < 2 <= order[(i + 1) % 4] for i in range(4)
    )  # the same number each way
    total = 16 * MB
    expected = crossings * 1.5 * total / 12.5
    assert simulate(ring(4), topology, total).total_us == pytest.approx(expected, rel=0.02)


def two_level(chunks: int) -> Program:
    """Racks {0, 1} and {2, 3}: reduce to 0 and 2, exchange, broadcast; chunk by chunk.

    The exchange goes through a scratch slot, so that both directions are in use at once.
    """
    demand = Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=chunks)
    transfers: list[Transfer] = []
    for k in range(chunks):
        scratch = chunks + k
        transfers += [
            Transfer(1, 0, k, k, True),
            Transfer(3, 2, k, k, True),
            Transfer(0, 2, k, scratch),
            Transfer(2, 0, k, scratch),
            Transfer(0, 0, scratch, k, True),
            Transfer(2, 2, scratch, k, True),
            Transfer(0, 1, k, k),
            Transfer(2, 3, k, k),
        ]
    return lower(Schedule.of(demand, transfers, scratch_slots=chunks))


def test_two_levels_come_near_the_uplink() -> None:
    topology = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    total = 16 * MB
    found = simulate(two_level(64), topology, total)
    assert total / 12.5 < found.total_us < 1.05 * total / 12.5
    names = [shared.name for shared in topology.shared]
    assert found.shared_busy[names.index("uplink-out-0")] > 0.95


def test_local_steps_cost_what_they_are_told_to() -> None:
    demand = Demand(collective=Collective.BROADCAST, ranks=2)
    schedule = Schedule.of(demand, [Transfer(0, 1, 0, 1), Transfer(1, 1, 1, 0)], scratch_slots=1)
    topology = line([100.0])
    slow = CostModel(name="slow memory", streaming=True, local_us_per_mb=7.0)
    assert simulate(lower(schedule), topology, MB).total_us == pytest.approx(100.0)
    found = simulate(lower(schedule), topology, MB, model=slow)
    assert found.total_us == pytest.approx(107.0)


def test_nothing_to_move_takes_only_alpha() -> None:
    assert simulate(ring(3), uniform(3, alpha_us=50.0), 0).total_us == pytest.approx(200.0)
    one = lower(Schedule.of(Demand(collective=Collective.ALLREDUCE, ranks=1), []))
    assert simulate(one, uniform(1), 1000).total_us == 0.0


def test_steps_respect_their_lane_and_dependencies() -> None:
    program = two_level(8)
    topology = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    found = simulate(program, topology, MB)
    assert np.all(found.start_us <= found.finish_us)
    same_lane = np.flatnonzero(np.diff(program.steps["lane"]) == 0)
    assert np.all(found.finish_us[same_lane] <= found.finish_us[same_lane + 1] + 1e-6)
    step, on = program.dependencies["step"], program.dependencies["on"]
    assert np.all(found.finish_us[on] <= found.finish_us[step] + 1e-6)
    assert found.total_us == found.finish_us.max()


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 5),
    chunks=st.integers(1, 3),
    small=st.integers(0, 4 * MB),
    factor=st.floats(1.0, 3.0),
)
def test_more_bytes_take_no_less_time(n: int, chunks: int, small: int, factor: float) -> None:
    program = ring(n, chunks)
    topology = racks((n - n // 2, n // 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    less, more = (  # the same pieces for both
        simulate(program, topology, size, max_pieces=1).total_us
        for size in (small, int(small * factor))
    )
    assert more >= less - 1e-6


def test_large_programs_use_larger_pieces() -> None:
    topology = uniform(8)
    found = simulate(ring(8, 16), topology, 1 << 30)
    assert found.pieces <= 4000
    coarse = simulate(ring(8, 16), topology, 1 << 30, max_pieces=1)
    assert coarse.pieces == 14 * 8 * 16  # never less than one a send
    assert coarse.total_us == pytest.approx(found.total_us, rel=0.02)


@pytest.mark.sampled(4, of="long plans")
def test_half_a_million_pieces_are_no_hang() -> None:
    with no_hang():
        found = simulate(ring(8, 8), uniform(8), 1 << 30, max_pieces=1_000_000)
    assert found.pieces > 400_000


def test_a_deadlock_is_an_error_that_names_the_step() -> None:
    program = broadcast(3, [(0, 1), (1, 2)])
    columns = {
        name: np.concatenate([column, np.array([extra], dtype=column.dtype)])
        for (name, column), extra in zip(program.dependencies.items(), (0, 1), strict=True)
    }
    # Rank 0 only sends; let rank 1's receive wait for the send that forwards it.
    receive = int(np.flatnonzero(program.steps["op"] == Op.RECV)[0])
    rank = program.lanes["rank"][program.steps["lane"]]
    send = int(np.flatnonzero((program.steps["op"] == Op.SEND) & (rank == 1))[0])
    columns["step"][-1], columns["on"][-1] = receive, send
    stuck = Program(
        demand=program.demand,
        scratch_slots=0,
        lanes=program.lanes,
        steps=program.steps,
        dependencies=columns,
    )
    with pytest.raises(VerificationError, match=r"deadlocks: rank 1, .*step 0"):
        simulate(stuck, line([1.0, 1.0]), 1000)


def test_a_missing_link_is_named() -> None:
    with pytest.raises(TopologyError, match=r"no link 0 -> 2"):
        simulate(broadcast(3, [(0, 1), (0, 2)]), line([1.0, 1.0]), 1000)


def test_other_ranks_than_the_topology_s_are_an_error() -> None:
    with pytest.raises(TopologyError, match="has 3 ranks, the program 2"):
        simulate(broadcast(2, [(0, 1)]), line([1.0, 1.0]), 1000)


def test_a_negative_size_is_an_error() -> None:
    with pytest.raises(InputError, match="total_bytes is -1"):
        simulate(broadcast(2, [(0, 1)]), line([1.0]), -1)


def test_a_send_without_a_receive_is_an_error() -> None:
    program = broadcast(2, [(0, 1)])
    is_send = program.steps["op"] == Op.SEND
    alone = Program(
        demand=program.demand,
        scratch_slots=0,
        lanes=program.lanes,
        steps={name: column[is_send] for name, column in program.steps.items()},
        dependencies={name: column[:0] for name, column in program.dependencies.items()},
    )
    with pytest.raises(
        ProgramError, match=r"send lane 0 \(rank 0, peer 1, channel 0\) has 1 steps"
    ):
        simulate(alone, line([1.0]), 1000)
