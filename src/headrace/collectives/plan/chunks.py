"""Chunks and sends: the form in which synthesizers think, and the way from there to a schedule.

A synthesizer is asked to carry chunks: chunk c is at ``origin[c]`` at first and has to reach every
rank of ``targets[c]`` (`carriage_of`). Its answer is a list of sends in one order, grouped into
messages: TACCL's abstract algorithm. `realize` turns it into a `Schedule`, giving every chunk a
slot wherever it passes; `reversed_sends` turns a way to carry chunks into a way to combine them.
Chunks have the numbers of the demand's items.
"""

from dataclasses import replace

import numpy as np

from headrace.collectives.demand import REDUCING, Collective, Demand
from headrace.collectives.plan.sends import (
    Carriage,
    Sends,
    check_sends,
    concatenated,
    overlapped,
    reversed_sends,
)
from headrace.collectives.program import Schedule, Transfer
from headrace.errors import ProgramError

__all__ = [
    "Carriage",
    "Sends",
    "carriage_of",
    "check_sends",
    "concatenated",
    "overlapped",
    "realize",
    "reversed_sends",
    "sends_of",
]


def carriage_of(demand: Demand) -> Carriage:
    """Return what has to be carried for `demand`; chunk numbers are its item numbers.

    Of a combining collective it is the carriage of its dual, whose sends `reversed_sends` turns
    round: broadcast for reduce, allgather for reduce_scatter and for allreduce. In an allreduce
    rank ``c * ranks // chunks`` owns chunk c. An item that several ranks hold at first has the
    lowest of them for its origin, and the others are no targets. An item of which nobody holds
    anything (of an uneven all-to-all's padding, say) is at rank 0 and has no targets.

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
    held = [demand.initial(rank) for rank in range(demand.ranks)]
    wanted = [demand.final(rank) for rank in range(demand.ranks)]
    chunks = 1 + max((item for values in (*held, *wanted) for _, item, _ in values), default=-1)
    origin = np.zeros(chunks, dtype=np.int32)
    held_by = np.zeros((chunks, demand.ranks), dtype=bool)
    targets = np.zeros((chunks, demand.ranks), dtype=bool)
    mask = np.zeros(chunks, dtype=object)
    for rank in reversed(range(demand.ranks)):
        for _, item, contributors in held[rank]:
            if mask[item] not in (0, contributors):
                _refuse_combining(item)
            origin[item], held_by[item, rank], mask[item] = rank, True, contributors
    for rank, values in enumerate(wanted):
        for _, item, contributors in values:
            if mask[item] != contributors:
                _refuse_combining(item)
            targets[item, rank] = True
    return Carriage(ranks=demand.ranks, origin=origin, targets=targets & ~held_by)


def _refuse_combining(item: int) -> None:
    raise ProgramError(
        f"item {item} is wanted with other contributors than it is held with; needs a demand that "
        "only moves: what combines can be proven and run, but not be synthesized as a custom one"
    )


def realize(demand: Demand, sends: Sends) -> Schedule:
    """Return the schedule that does `sends`, message by message.

    A chunk lies at the slot where the demand has its item before or after the call; where it only
    passes, in a scratch slot of its own, made for chunks of its place in a block. What a rank
    wants of what it has already is copied there, and so is what arrived elsewhere because another
    item had to be sent from that slot first. Within a message, chunks that lie side by side in a
    block at both ends become one transfer; the transfers of a message are joined.

    Raises
    ------
    ProgramError : if columns are malformed, a chunk is no item of the demand, or is sent by a rank
        that does not have it.
    """
    check_sends(sends)
    places = _Places(demand)
    edges, scratch = _merging(demand)
    columns = (sends.chunk, sends.src, sends.dst, sends.reduce, sends.message)
    transfers = places.copies_before
    parts: list[Transfer] = []
    last = -1
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for index, (chunk, src, dst, reduce, message) in enumerate(rows):
        if message != last:
            transfers += _one_message(parts, edges, scratch)
            parts, last = [], message
        from_slot, to_slot = places.hop(index, chunk, src, dst)
        parts.append(Transfer(src, dst, from_slot, to_slot, reduce))
    transfers += _one_message(parts, edges, scratch)
    return Schedule.of(demand, transfers + places.copies_after(), places.scratch_slots)


def _one_message(parts: list[Transfer], edges: frozenset[int], scratch: int) -> list[Transfer]:
    """Join transfers of one chunk each, and merge neighbours."""
    if len(parts) == 1:
        return parts
    made: list[Transfer] = []
    for part in sorted(parts, key=lambda part: (part.reduce, part.src_slot)):
        if not made:
            made.append(part)
            continue
        before = made[-1]
        follow = (before.src_slot + before.count, before.dst_slot + before.count)
        if (
            (part.src_slot, part.dst_slot) == follow
            and part.reduce == before.reduce
            and edges.isdisjoint(follow)
            and max(follow) < scratch
        ):
            made[-1] = before._replace(count=before.count + 1)
        else:
            made.append(part._replace(joined=True))
    return made


def _merging(demand: Demand) -> tuple[frozenset[int], int]:
    """Return the slots that start a range, and the first that is in none with others."""
    edges = set(demand.buffers)
    if demand.blocks > 1:  # blocks can be buffers of their own
        edges.update(range(0, demand.slots + 1, demand.chunks))
    # Scratch slots differ in size as chunks of a block do, in another rhythm than the data's.
    return frozenset(edges), demand.slots if demand.chunks > 1 else 1 << 31


class _Places:
    """Where every chunk is, or would be, at every rank."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._scratch = [[0] * demand.chunks for _ in range(demand.ranks)]
        self._held: list[set[int]] = []
        self._place: list[dict[int, int]] = []
        """By rank, where an item lies or would arrive."""
        self._owed: list[list[tuple[int, int]]] = []
        """By rank, (item, slot) to be filled in the end."""
        self.copies_before: list[Transfer] = []
        for rank in range(demand.ranks):
            self._settle(rank)

    @property
    def scratch_slots(self) -> int:
        return self._demand.chunks * max(max(used) for used in self._scratch)

    def _settle(self, rank: int) -> None:
        held: dict[int, list[int]] = {}
        taken: set[int] = set()
        for slot, item, _ in self._demand.initial(rank):
            held.setdefault(item, []).append(slot)
            taken.add(slot)
        place = {item: slots[0] for item, slots in held.items()}
        owed: list[tuple[int, int]] = []
        for slot, item, _ in self._demand.final(rank):
            if slot in held.get(item, ()):
                continue
            if slot in taken:
                owed.append((item, slot))
            elif item in held:
                self.copies_before.append(Transfer(rank, rank, place[item], slot))
            elif item in place:
                owed.append((item, slot))
            else:
                place[item] = slot
        self._held.append(set(held))
        self._place.append(place)
        self._owed.append(owed)

    def hop(self, row: int, chunk: int, src: int, dst: int) -> tuple[int, int]:
        """Return the slots that a chunk leaves from and arrives in."""
        if chunk not in self._held[src]:
            raise ProgramError(
                f"sends: row {row} sends chunk {chunk} from rank {src} to rank {dst}, but rank "
                f"{src} does not have it yet; needs an order of cause and effect"
            )
        self._held[dst].add(chunk)
        if chunk not in self._place[dst]:
            self._place[dst][chunk] = self._passing(dst, chunk)
        return self._place[src][chunk], self._place[dst][chunk]

    def _passing(self, rank: int, chunk: int) -> int:
        demand = self._demand
        if demand.in_place:
            return chunk
        used, of_block = self._scratch[rank], chunk % demand.chunks
        used[of_block] += 1
        return demand.slots + (used[of_block] - 1) * demand.chunks + of_block

    def copies_after(self) -> list[Transfer]:
        """Fill what is owed; what would be overwritten on the way is put aside first."""
        aside: list[Transfer] = []
        filled: list[Transfer] = []
        for rank, owed in enumerate(self._owed):
            place, targets = self._place[rank], {slot for _, slot in owed}
            for item, slot in owed:
                if item not in self._held[rank]:
                    raise ProgramError(f"sends: chunk {item} never reaches rank {rank}")
                if place[item] in targets:
                    free = self._passing(rank, item)
                    aside.append(Transfer(rank, rank, place[item], free))
                    place[item] = free
                filled.append(Transfer(rank, rank, place[item], slot))
        return aside + filled


def sends_of(schedule: Schedule) -> Sends:
    """Return the sends of `schedule`: which items its transfers move; local ones have none.

    Raises
    ------
    ProgramError : if a slot is sent that holds nothing.
    """
    demand = schedule.demand
    holds = [{slot: item for slot, item, _ in demand.initial(rank)} for rank in range(demand.ranks)]
    rows: list[tuple[int, int, int, bool, int]] = []
    message = -1
    for index, transfer in enumerate(schedule.transfers):
        src, dst = transfer.src, transfer.dst
        message += src != dst and not transfer.joined
        for k in range(transfer.count):
            item = holds[src].get(transfer.src_slot + k)
            if item is None:
                raise ProgramError(
                    f"transfers[{index}] sends slot {transfer.src_slot + k} of rank {src}, which "
                    "holds nothing"
                )
            holds[dst][transfer.dst_slot + k] = item
            if src != dst:
                rows.append((item, src, dst, transfer.reduce, message))
    columns = np.array(rows, dtype=np.int32).reshape(-1, 5)
    chunk, source, target, reduce, number = (columns[:, k].copy() for k in range(5))
    return Sends(
        chunk=chunk,
        src=source,
        dst=target,
        reduce=reduce.astype(bool),
        message=number,
        start_us=np.empty(0),
    )
