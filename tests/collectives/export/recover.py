"""An algorithm as a program again: the same messages between the same slots.

The order of threadblocks and copies from input to output are not kept: the messages are put in an
order in which they can run, and `lower` finds the dependencies from it. A program that was exported
is recovered with the same lanes, steps and slots, step by step of one chunk (`same_plan` compares
that); instances are recovered as chunks and channels.
"""

from collections.abc import Iterator
from dataclasses import replace

from headrace.collectives.demand import Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.export.algorithm import (
    Algorithm,
    BlockStep,
    Kind,
    Location,
)
from headrace.collectives.export.assembly import Assembly
from headrace.collectives.export.buffers import Layout
from headrace.collectives.export.connections import Connections
from headrace.collectives.export.prove import demand_of
from headrace.collectives.export.units import Units
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.plan.verify.order import running_order
from headrace.collectives.plan.verify.structure import Structure
from headrace.collectives.program import Direction, Op, Program, Schedule, Transfer


def recovered(algorithm: Algorithm) -> Program:
    """Return `algorithm`, which `examine` has proven, as a program with headrace's own buffers.

    Raises
    ------
    ProgramError, VerificationError : if it has no such form: it relies on buffering connections,
        or keeps chunks where headrace, whose chunks may differ by an element, would not.
    """
    demand = demand_of(algorithm)
    layout = Layout(demand=demand, in_place=algorithm.in_place and not algorithm.out_of_place)
    connections, found = Connections.of(algorithm)
    if found or connections.cycle():
        raise ProgramError("only an algorithm that runs with nothing buffered has a program")
    assembly = Assembly(connections, layout, held=0)
    program = assembly.program(demand.collective)
    structure = Structure.of(program)
    transfers: list[Transfer] = []
    origin = _origins(assembly)
    receiver = dict(connections.rendezvous)
    seen: set[tuple[int, int, int]] = set()
    for number in running_order(structure).tolist():
        at = origin[number]
        rank, tb, k = at
        threadblock = connections.threadblocks[rank, tb]
        step, op = threadblock.steps[k], structure.op[number]
        if op == Op.SEND:
            to = receiver[at]
            receive = connections.threadblocks[to[:2]].steps[to[2]]
            transfers += _before_reduction(layout, to[0], receive)
            transfers.append(
                Transfer(
                    src=rank,
                    dst=to[0],
                    src_slot=layout.slot(rank, _sent_from(step)),
                    dst_slot=layout.slot(to[0], _received_at(receive)),
                    reduce=receive.kind.reduces,
                    count=step.count,
                    channel=threadblock.channel,
                )
            )
        elif step.kind in (Kind.COPY, Kind.REDUCE) and at not in seen:
            seen.add(at)
            transfers += _inside_rank(layout, rank, step, threadblock.channel)
    scratch = max(
        (max(t.src_slot, t.dst_slot) + t.count - demand.slots for t in transfers), default=0
    )
    parts = [part for transfer in transfers for part in _parts(demand, transfer)]
    result = lower(Schedule.of(demand, parts, max(0, scratch)))
    verify(result)
    return result


def same_plan(first: Program, second: Program) -> str:
    """Return the difference of two programs, or "" if they move the same in the same order.

    They are the same plan if their demands are equal and each lane does the same to the same
    slots, one chunk after another. How many chunks a step covers, and which dependencies are
    written down (each program is proven by itself), are no part of a plan.
    """
    if first.demand != second.demand:
        return f"demands differ: {first.demand} and {second.demand}"
    a, b = _streams(first), _streams(second)
    for key in sorted({*a, *b}):
        if a.get(key) != b.get(key):
            return f"lane {key} differs: {a.get(key)} and {b.get(key)}"
    return ""


def _streams(program: Program) -> dict[tuple[int, int, int, int], list[tuple[int, int, int]]]:
    u = Units.of(program)
    return {
        key: [(u.op[unit], u.slot[unit], u.src_slot[unit]) for unit in u.of_lane[lane]]
        for lane, key in enumerate(u.lanes)
        if u.of_lane[lane]
    }


def divided(program: Program, instances: int) -> Program:
    """Return `program` with every chunk divided, each part on its own channel.

    It does to programs what `threadblocks.instanced` does to an algorithm: part j of
    chunk k of a block of c chunks is chunk ``j*c + k``, on channel ``h*instances + j``.
    """
    u, chunks = Units.of(program), program.demand.chunks

    def slot(old: int, j: int) -> int:
        block, k = divmod(old, chunks)
        return block * chunks * instances + j * chunks + k

    transfers: list[Transfer] = []
    structure = Structure.of(program)
    step_units: dict[int, list[int]] = {}
    for unit, step in enumerate(u.step):
        step_units.setdefault(step, []).append(unit)
    for step in running_order(structure):
        if structure.direction[structure.lane[step]] == Direction.RECV:
            continue
        for unit in step_units[step]:
            rank, _, peer, channel = u.lanes[u.lane[unit]]
            other = u.partner[unit]
            for j in range(instances):
                if other < 0:
                    ends = rank, rank, u.src_slot[unit], u.slot[unit], u.op[unit] == Op.REDUCE
                else:
                    reduce = u.op[other] == Op.RECV_REDUCE
                    ends = rank, peer, u.slot[unit], u.slot[other], reduce
                src, dst, src_slot, dst_slot, reduce = ends
                transfers.append(
                    Transfer(
                        src=src,
                        dst=dst,
                        src_slot=slot(src_slot, j),
                        dst_slot=slot(dst_slot, j),
                        reduce=reduce,
                        channel=channel * instances + j,
                    )
                )
    scratch = -(-program.scratch_slots // chunks) * chunks * instances
    demand = replace(program.demand, chunks=chunks * instances)
    return lower(Schedule.of(demand, transfers, scratch))


def _parts(demand: Demand, transfer: Transfer) -> Iterator[Transfer]:
    """Split what touches scratch: there, sizes may differ, and steps cover one chunk each."""
    end = max(transfer.src_slot, transfer.dst_slot) + transfer.count
    if transfer.count == 1 or demand.chunks == 1 or end <= demand.slots:
        yield transfer
        return
    for k in range(transfer.count):
        yield transfer._replace(
            src_slot=transfer.src_slot + k,
            dst_slot=transfer.dst_slot + k,
            count=1,
            joined=k > 0 and transfer.src != transfer.dst,
        )


def _origins(assembly: Assembly) -> list[tuple[int, int, int]]:
    """Return by step of the program the step of a threadblock that it is part of."""
    return [assembly.origin[sub] for key in sorted(assembly.lanes) for sub in assembly.lanes[key]]


def _inside_rank(layout: Layout, rank: int, step: BlockStep, channel: int) -> list[Transfer]:
    """Return the transfer of a copy or reduction; none for a copy of a slot to itself."""
    src, dst = layout.slot(rank, step.src), layout.slot(rank, step.dst)
    reduce = step.kind is Kind.REDUCE
    if src == dst and not reduce:
        return []
    return [
        Transfer(
            src=rank,
            dst=rank,
            src_slot=src,
            dst_slot=dst,
            reduce=reduce,
            count=step.count,
            channel=channel,
        )
    ]


def _before_reduction(layout: Layout, rank: int, step: BlockStep) -> list[Transfer]:
    """Return the copy before an ``rrc`` that reads another location than it writes."""
    if not step.kind.reduces or step.kind is Kind.RECV_REDUCE_SEND:
        return []
    src, dst = layout.slot(rank, step.src), layout.slot(rank, step.dst)
    if src == dst:
        return []
    return [Transfer(src=rank, dst=rank, src_slot=src, dst_slot=dst, count=step.count)]


def _sent_from(step: BlockStep) -> Location:
    return step.dst if step.kind in (Kind.RECV_COPY_SEND, Kind.RECV_REDUCE_COPY_SEND) else step.src


def _received_at(step: BlockStep) -> Location:
    return step.src if step.kind is Kind.RECV_REDUCE_SEND else step.dst
