"""Chunks and sends: the representation of search generators, and its lowering to a schedule.

A search generator solves a delivery problem: chunk c is at ``origin[c]`` at first and has to reach
every rank of ``targets[c]`` (`deliveries_of`). Its result is a list of sends in one order, grouped
into messages: TACCL's abstract algorithm. `realize` turns it into a `Schedule`, allocating a slot
for every chunk wherever it passes; sends that are reversed and combine (`Sends.reduce`)
make a reduction of a multicast. Chunks have the numbers of the demand's items.
"""

from dataclasses import replace

import numpy as np

from headrace.collectives.demand import REDUCING, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.ir.sends import (
    Deliveries,
    Sends,
    by_arrival,
    check_sends,
)
from headrace.collectives.plan.ir.slots import SlotAllocation
from headrace.collectives.plan.verify.conditions import Specification
from headrace.collectives.program import Schedule, Transfer


def deliveries_of(demand: Demand) -> Deliveries:
    """Return the delivery problem of `demand`; chunk numbers are its item numbers.

    For a combining collective it is that of its dual, whose sends are to be reversed:
    broadcast for reduce, allgather for reduce_scatter and for allreduce. In an allreduce rank
    ``c * ranks // chunks`` owns chunk c. An item that several ranks hold at first has the lowest
    of them for its origin, and the others are no targets. An item that no rank holds (of an uneven
    all-to-all's padding, say) is at rank 0 and has no targets.

    Raises
    ------
    ProgramError : if an allreduce's chunks do not divide evenly among the ranks, or a custom
        demand combines.
    """
    if demand.collective is Collective.ALLREDUCE:
        if demand.chunks % demand.ranks:
            raise ProgramError(
                f"chunks is {demand.chunks}, needs a multiple of {demand.ranks}, so that every "
                "rank owns as many: an allreduce is carried as an allgather"
            )
        chunks = demand.chunks // demand.ranks
        demand = Demand(collective=Collective.ALLGATHER, ranks=demand.ranks, chunks=chunks)
    elif demand.collective in REDUCING:
        dual = (
            Collective.BROADCAST if demand.collective is Collective.REDUCE else Collective.ALLGATHER
        )
        demand = replace(demand, collective=dual)
    if demand.collective in (Collective.ALLGATHER, Collective.BROADCAST):
        root = np.full(demand.slots, demand.root)
        owner = np.arange(demand.slots) // demand.chunks
        origin = (root if demand.collective is Collective.BROADCAST else owner).astype(np.int32)
        targets = np.arange(demand.ranks) != origin[:, None]
        return Deliveries(ranks=demand.ranks, origin=origin, targets=targets)
    return _listed(demand)


def _listed(demand: Demand) -> Deliveries:
    """The same from the values that the demand lists."""
    specification = Specification.of(demand)
    before, after = specification.before, specification.after
    chunks = 1 + int(max(before.item.max(initial=-1), after.item.max(initial=-1)))
    origin = np.zeros(chunks, dtype=np.int32)
    origin[before.item[::-1]] = before.rank[::-1]  # the lowest rank comes last, and stays
    contributors = np.full(chunks, -1)
    contributors[before.item] = before.by
    for values in (before, after):
        combined = np.flatnonzero(contributors[values.item] != values.by)
        if len(combined):
            _refuse_combining(int(values.item[combined[0]]))
    targets = np.zeros((chunks, demand.ranks), dtype=bool)
    targets[after.item, after.rank] = True
    targets[before.item, before.rank] = False
    return Deliveries(ranks=demand.ranks, origin=origin, targets=targets)


def _refuse_combining(item: int) -> None:
    raise ProgramError(
        f"item {item} is wanted with other contributors than it is held with; needs a demand that "
        "only moves: a custom demand that combines can be proven and run, but not be synthesized"
    )


def realize(demand: Demand, sends: Sends) -> Schedule:
    """Return the schedule of `sends`, message by message.

    A chunk lies at the slot where the demand has its item before or after the call; at relays, in a
    scratch slot of its own, for chunks of its position in a block. Local copies fill further
    slots of an item at a rank, and slots whose old item had to be sent before theirs could arrive.
    Within a message, chunks that are adjacent in a block at both ends become one transfer; the
    transfers of a message are joined. Messages begin in the order of `sends`; chunks are combined
    in one place in order of arrival, where `sends` has arrivals (`by_arrival`).

    Raises
    ------
    ProgramError : if columns are malformed, a chunk is no item of the demand, or a rank sends a
        chunk that it does not have.
    """
    check_sends(sends)
    order = by_arrival(sends)
    columns = (sends.chunk, sends.src, sends.dst, sends.reduce, sends.message)
    chunk, src, dst, reduce, message = (column[order].astype(np.int64) for column in columns)
    slots = SlotAllocation(demand, int(chunk.max(initial=-1)) + 1)
    from_slot, to_slot = slots.hops(order, chunk, src, dst)
    transfers = slots.copies_before
    copies = len(transfers)
    transfers += _merged(demand, message, (src, dst, from_slot, to_slot, reduce))
    after = slots.copies_after()
    return Schedule(
        demand=demand,
        transfers=(*transfers, *after),
        scratch_slots=slots.scratch_slots,
        begins=_begins(message, copies, len(after)),
    )


def _begins(message: np.ndarray, before: int, after: int) -> tuple[int, ...]:
    """Numbers for `Schedule.begins`: local copies, messages as in the rows, local copies."""
    step = np.diff(message, prepend=-1)
    if np.all(step >= 0):
        return ()
    numbers = message[step != 0] + before
    last = before + len(numbers)
    return (*range(before), *numbers.tolist(), *range(last, last + after))


def _merged(demand: Demand, message: np.ndarray, columns: tuple[np.ndarray, ...]) -> list[Transfer]:
    """Join the transfers of one chunk each of every message, and merge neighbours.

    Parameters
    ----------
    columns : src, dst, src_slot, dst_slot and reduce of every transfer.
    """
    edges = set(demand.buffers)
    if demand.blocks > 1:  # blocks can be buffers of their own
        edges.update(range(0, demand.slots + 1, demand.chunks))
    turn = np.cumsum(np.diff(message, prepend=-1) != 0)
    order = np.lexsort((columns[2], columns[4], turn))
    turn, columns = turn[order], tuple(column[order] for column in columns)
    _, _, src_slot, dst_slot, reduce = columns
    begins = np.append(True, np.diff(turn) != 0)[: len(turn)]
    follows = (np.diff(turn) == 0) & (np.diff(reduce) == 0)
    for slot in (src_slot, dst_slot):
        follows &= (np.diff(slot) == 1) & ~np.isin(slot[1:], sorted(edges))
        if demand.chunks > 1:
            # Scratch slots differ in size as chunks of a block do, with another period than data's.
            follows &= slot[1:] < demand.slots
    heads = np.flatnonzero(np.append(True, ~follows)[: len(turn)])
    count = np.diff(np.append(heads, len(turn)))
    rows = (column[heads].tolist() for column in columns[:4])
    return [
        Transfer(*ends, reduce=bool(combines), count=size, joined=joined)
        for *ends, combines, size, joined in zip(
            *rows, reduce[heads].tolist(), count.tolist(), (~begins[heads]).tolist(), strict=True
        )
    ]


def sends_of(schedule: Schedule) -> Sends:
    """Return the sends of `schedule`: the items that its transfers move; local ones have none.

    In the order in which messages begin; the order of combining is lost.

    Raises
    ------
    ProgramError : if an empty slot is sent.
    """
    demand = schedule.demand
    holds = [{slot: item for slot, item, _ in demand.initial(rank)} for rank in range(demand.ranks)]
    rows: list[tuple[int, int, int, bool, int]] = []
    message = -1
    for index, transfer in enumerate(schedule.transfers):
        src, dst = transfer.src, transfer.dst
        message += not transfer.joined
        for k in range(transfer.count):
            item = holds[src].get(transfer.src_slot + k)
            if item is None:
                raise ProgramError(
                    f"transfers[{index}] sends slot {transfer.src_slot + k} of rank {src}, which "
                    "holds nothing"
                )
            holds[dst][transfer.dst_slot + k] = item
            if src != dst:
                number = schedule.begins[message] if schedule.begins else message
                rows.append((item, src, dst, transfer.reduce, number))
    columns = np.array(rows, dtype=np.int32).reshape(-1, 5)
    columns = columns[np.argsort(columns[:, -1], kind="stable")]
    _, number = np.unique(columns[:, -1], return_inverse=True)
    return Sends.of(*columns[:, :3].T, reduce=columns[:, 3], message=number)
