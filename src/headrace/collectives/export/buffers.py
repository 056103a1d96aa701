"""Locations of a demand's slots in the buffers that NCCL's callers pass.

A demand has one data buffer; a caller has an input and an output buffer, which in-place calls let
overlap: for allgather the input is the caller's own block of the output, for reduce-scatter the
output is its own block of the input, for the rest both are the same (at the root, where only
the root has both).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.export.algorithm import Buffer, Location

NAMES = {
    Collective.ALLREDUCE: "allreduce",
    Collective.REDUCE: "reduce",
    Collective.BROADCAST: "broadcast",
    Collective.ALLGATHER: "allgather",
    Collective.GATHER: "gather",
    Collective.REDUCE_SCATTER: "reducescatter",
    Collective.SCATTER: "scatter",
    Collective.ALL_TO_ALL: "alltoall",
}
"""The name of each collective in MSCCL's files, as msccl-executor-nccl and MSCCL++ read them."""

MSCCL_NAMES = {
    collective: "reduce_scatter" if collective is Collective.REDUCE_SCATTER else name
    for collective, name in NAMES.items()
    if collective not in (Collective.GATHER, Collective.SCATTER)
}
"""Those of microsoft/msccl, which msccl-tools and TACCL write too."""

COLLECTIVES = {
    name: collective for names in (NAMES, MSCCL_NAMES) for collective, name in names.items()
}

_PER_LOOP_OF_ONE_RANK = frozenset({Collective.GATHER, Collective.SCATTER})
"""The executor multiplies the count by the ranks for allgather, reduce-scatter and all-to-all."""


def chunks_per_loop(demand: Demand) -> int:
    """Return `nchunksperloop`: chunks of the buffer that the executor divides."""
    if demand.collective in _PER_LOOP_OF_ONE_RANK:
        return demand.chunks
    return demand.blocks * demand.chunks


def chunks_of(collective: Collective, ranks: int, per_loop: int) -> int:
    """Return the chunks a block, from `nchunksperloop`.

    Raises
    ------
    ProgramError : if the ranks do not divide it.
    """
    demand = Demand(collective=collective, ranks=ranks)
    blocks = chunks_per_loop(demand)
    if per_loop < 1 or per_loop % blocks:
        raise ProgramError(
            f"nchunksperloop is {per_loop}, needs a positive multiple of {blocks} "
            f"for {collective} of {ranks} GPUs"
        )
    return per_loop // blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Locations of a demand's slots, for calls in place or out of place."""

    demand: Demand
    in_place: bool

    def __post_init__(self) -> None:
        if self.demand.collective not in NAMES:
            raise ProgramError(
                f"{self.demand.collective} has no counterpart among the executors' collectives; "
                f"needs one of {', '.join(NAMES)}"
            )
        if self.in_place and self.demand.collective is Collective.ALL_TO_ALL:
            raise ProgramError(
                "all_to_all works out of place only: its programs keep their input; "
                "needs --out-of-place"
            )

    def _start(self, rank: int, buffer: Buffer) -> int:
        """Return the slot of the first chunk of the input or output at `rank`."""
        demand = self.demand
        match demand.collective:
            case Collective.ALLGATHER | Collective.GATHER:
                return rank * demand.chunks if buffer == "i" else 0
            case Collective.REDUCE_SCATTER | Collective.SCATTER:
                return rank * demand.chunks if buffer == "o" else 0
            case Collective.ALL_TO_ALL:
                return demand.slots // 2 if buffer == "o" else 0
            case _:
                return 0

    def sizes(self, rank: int) -> tuple[int, int]:
        """Return the chunks of the input and of the output buffer at `rank`."""
        chunks, every = self.demand.chunks, self.demand.ranks * self.demand.chunks
        at_root = every if rank == self.demand.root else 0
        match self.demand.collective:
            case Collective.ALLREDUCE | Collective.REDUCE | Collective.BROADCAST:
                return chunks, chunks
            case Collective.ALLGATHER:
                return chunks, every
            case Collective.GATHER:
                return chunks, at_root
            case Collective.REDUCE_SCATTER:
                return every, chunks
            case Collective.SCATTER:
                return at_root, chunks
            case _:
                return every, every

    def input_location(self, rank: int, slot: int) -> Location | None:
        """Return the location of the caller's value of `slot`; None if there is none."""
        if self.demand.collective is Collective.BROADCAST and rank != self.demand.root:
            return None
        return self._within(rank, "i", slot)

    def output_location(self, rank: int, slot: int) -> Location | None:
        """Return the location of the result in `slot`; None if it is no result."""
        collective = self.demand.collective
        if collective is Collective.REDUCE and rank != self.demand.root:
            return None
        if collective is Collective.ALL_TO_ALL and slot < self.demand.slots // 2:
            return Location("i", slot)
        return self._within(rank, "o", slot)

    def _within(self, rank: int, buffer: Buffer, slot: int) -> Location | None:
        offset = slot - self._start(rank, buffer)
        size = self.sizes(rank)[buffer == "o"]
        return Location(buffer, offset) if 0 <= offset < size else None

    def displaced(self, rank: int) -> int:
        """Return the number of chunks at the start of scratch for data slots without a location.

        All or none: slot k is then chunk k of scratch, and the program's scratch comes after.
        """
        slots = range(self.demand.slots)
        return 0 if all(self._data_location(rank, slot) for slot in slots) else self.demand.slots

    def home(self, rank: int, slot: int) -> Location:
        """Return the location of `slot` once the program has written it."""
        return self._data_location(rank, slot) or self._scratch(rank, slot)

    def slot(self, rank: int, location: Location) -> int:
        """Return the slot of `location`: the inverse of `home` and `input_location`."""
        buffer, offset = location
        if buffer != "s":
            return self._start(rank, buffer) + offset
        displaced = self.displaced(rank)
        return offset if offset < displaced else self.demand.slots + offset - displaced

    def same_memory(self, rank: int, location: Location) -> Location:
        """Return the canonical one of locations that an in-place call makes the same memory."""
        collective, (buffer, offset) = self.demand.collective, location
        if not self.in_place or buffer == "s":
            return location
        if collective in (Collective.GATHER, Collective.SCATTER) and rank != self.demand.root:
            return location
        shared = "o" if collective in (Collective.ALLGATHER, Collective.GATHER) else "i"
        return Location(shared, self._start(rank, buffer) + offset)

    def held(self, rank: int) -> Iterator[tuple[Location, int, int]]:
        """Yield (location, item, mask) of the precondition."""
        for slot, item, mask in self.demand.initial(rank):
            location = self.input_location(rank, slot)
            assert location is not None
            yield location, item, mask

    def wanted(self, rank: int) -> Iterator[tuple[Location, int, int]]:
        """Yield (location, item, mask) of the postcondition."""
        for slot, item, mask in self.demand.final(rank):
            location = self.output_location(rank, slot)
            assert location is not None
            yield location, item, mask

    def _data_location(self, rank: int, slot: int) -> Location | None:
        location = self.output_location(rank, slot)
        if location is None and self.in_place:
            return self.input_location(rank, slot)
        return location

    def _scratch(self, rank: int, slot: int) -> Location:
        displaced = self.displaced(rank)
        slots = self.demand.slots
        return Location("s", slot if slot < slots else displaced + slot - slots)
