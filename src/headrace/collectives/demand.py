"""Demand of a collective: pre- and postconditions over the slots of one data buffer.

Every rank has one *data buffer* divided into slots of one chunk each. A slot holds a *value*: an
``(item, mask)`` pair, where ``item`` names the logical datum and ``mask`` is the set of ranks
(as bits) whose contributions have been combined into it. A collective is then only a statement
of which values the slots hold before and after:

==============  ==============  =======================  ===============================
collective      slots           before, at rank r        after
==============  ==============  =======================  ===============================
allreduce       c               k: (k, {r})              all ranks, k: (k, all)
reduce          c               k: (k, {r})              root, k: (k, all)
broadcast       c               root, k: (k, {root})     all ranks, k: (k, {root})
allgather       n*c             own block b=r            all ranks, block b: {b}
gather          n*c             own block b=r            root, block b: {b}
reduce_scatter  n*c             every slot s: (s, {r})   own block: (s, all)
scatter         n*c             root, every slot: {root} own block: {root}
all_to_all      2*n*c           input block d            inputs kept, then output block s
all_to_all_v    (in + out)*c    input blocks, packed     inputs kept, then output blocks
custom          slots*c         as given                 as given
==============  ==============  =======================  ===============================

n is the number of ranks, c the number of chunks per block. Everything but the exchanges (and what a
custom demand does) works in place; slots that the postcondition does not name may be overwritten.

In an all_to_all_v block (s, d) has ``counts[s][d]`` parts of equal size (a part is cut into c
chunks). At rank s its input blocks follow one another in the order of d from slot 0 on, at rank d
its output blocks in the order of s from slot ``in * c`` on; `in` and `out` are the most parts that
any rank sends and receives, its own included. Other slots are padding.

A custom demand names every value: `before` and `after` have a row (rank, slot, item, contributors)
for each slot that holds, or must hold, something. Chunks cut each of these slots into c: slot s
becomes slots ``s*c`` to ``s*c + c-1``, and so do items.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import StrEnum
from itertools import accumulate

from headrace.collectives.errors import ProgramError
from headrace.facades import offered_by, public_value


@offered_by("headrace.collectives")
class Collective(StrEnum):
    """The collectives that plans exist for."""

    ALLREDUCE = "allreduce"
    REDUCE = "reduce"
    BROADCAST = "broadcast"
    ALLGATHER = "allgather"
    GATHER = "gather"
    REDUCE_SCATTER = "reduce_scatter"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    ALL_TO_ALL_V = "all_to_all_v"
    CUSTOM = "custom"


ROOTED = frozenset({Collective.REDUCE, Collective.BROADCAST, Collective.GATHER, Collective.SCATTER})
REDUCING = frozenset({Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER})
_SINGLE_BLOCK = frozenset({Collective.ALLREDUCE, Collective.REDUCE, Collective.BROADCAST})

STANDARD = (
    Collective.ALLREDUCE,
    Collective.REDUCE,
    Collective.BROADCAST,
    Collective.ALLGATHER,
    Collective.GATHER,
    Collective.REDUCE_SCATTER,
    Collective.SCATTER,
    Collective.ALL_TO_ALL,
)
"""The collectives that are defined by name, ranks, chunks and root."""

DemandRow = tuple[int, int, int, tuple[int, ...]]
"""(rank, slot, item, contributors): a row of a custom demand."""


@public_value("headrace.collectives")
class Demand:
    """One collective over `ranks` ranks, its blocks cut into `chunks` chunks each.

    Attributes
    ----------
    counts : for all_to_all_v only: by source and destination, the parts of each block.
    custom_slots, before, after : for custom demands only, see `custom`.

    Raises
    ------
    ProgramError : naming the field that is out of its range, or does not fit the collective.
    """

    collective: Collective
    ranks: int
    chunks: int = 1
    root: int = 0
    counts: tuple[tuple[int, ...], ...] = ()
    custom_slots: int = 0
    before: tuple[DemandRow, ...] = ()
    after: tuple[DemandRow, ...] = ()
    _sent: tuple[tuple[int, ...], ...] = field(default=(), init=False, repr=False, compare=False)
    """By source: parts sent to ranks below each, and to all; computed once, as `counts` is long."""
    _widths: tuple[int, int] = field(default=(1, 1), init=False, repr=False, compare=False)
    """The most parts that any rank sends and receives, at least 1."""

    @property
    def description(self) -> str:
        """The collective, ranks and chunks, in one line."""
        chunks = "1 chunk" if self.chunks == 1 else f"{self.chunks} chunks"
        return f"{self.collective} of {self.ranks} ranks in {chunks}"

    @classmethod
    def custom(
        cls,
        *,
        ranks: int,
        slots: int,
        before: Iterable[DemandRow],
        after: Iterable[DemandRow],
        chunks: int = 1,
    ) -> "Demand":
        """Make a demand from rows (rank, slot, item, contributors), in any order.

        Parameters
        ----------
        slots : number of slots at every rank, scratch not included.
        before, after : what slots hold, and what they must hold. Items are numbered from 0
            without gaps; contributors are the ranks whose data has been combined into the value.

        Raises
        ------
        ProgramError : naming the row that is wrong.
        """
        return cls(
            collective=Collective.CUSTOM,
            ranks=ranks,
            chunks=chunks,
            custom_slots=slots,
            before=tuple(sorted((r, s, i, tuple(sorted(by))) for r, s, i, by in before)),
            after=tuple(sorted((r, s, i, tuple(sorted(by))) for r, s, i, by in after)),
        )

    @classmethod
    def all_to_all_v(cls, counts: Sequence[Sequence[int]], chunks: int = 1) -> "Demand":
        """Make the exchange in which ``counts[s][d]`` equal parts go from rank s to rank d.

        Raises
        ------
        ProgramError : if `counts` is not square, or has a negative entry.
        """
        rows = tuple(tuple(row) for row in counts)
        return cls(collective=Collective.ALL_TO_ALL_V, ranks=len(rows), chunks=chunks, counts=rows)

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ProgramError(f"ranks is {self.ranks}, needs at least 1")
        if self.chunks < 1:
            raise ProgramError(f"chunks is {self.chunks}, needs at least 1")
        if not 0 <= self.root < self.ranks:
            raise ProgramError(f"root is {self.root}, needs 0 to {self.ranks - 1}")
        _check_counts(self)
        _check_custom(self)
        if self.counts:
            received = map(sum, zip(*self.counts, strict=True))
            sent = tuple(tuple(accumulate(row, initial=0)) for row in self.counts)
            object.__setattr__(self, "_sent", sent)
            object.__setattr__(self, "_widths", (max(1, *(r[-1] for r in sent)), max(1, *received)))

    @property
    def blocks(self) -> int:
        """Number of equal blocks that the collective's size (in bytes) is divided into."""
        if self.collective is Collective.ALL_TO_ALL_V:
            return self._widths[0]
        if self.collective is Collective.CUSTOM:
            return self.custom_slots
        return 1 if self.collective in _SINGLE_BLOCK else self.ranks

    @property
    def slots(self) -> int:
        """Number of slots of the data buffer at every rank (scratch slots come after)."""
        if self.collective is Collective.ALL_TO_ALL_V:
            return sum(self._widths) * self.chunks
        both_sides = 2 if self.collective is Collective.ALL_TO_ALL else 1
        return both_sides * self.blocks * self.chunks

    @property
    def conditions(self) -> int:
        """Number of values of `initial` and `final` over all ranks, without listing them."""
        n, c = self.ranks, self.chunks
        match self.collective:
            case Collective.ALLREDUCE:
                return 2 * n * c
            case Collective.REDUCE | Collective.BROADCAST:
                return (n + 1) * c
            case Collective.GATHER | Collective.SCATTER:
                return 2 * n * c
            case Collective.ALLGATHER | Collective.REDUCE_SCATTER:
                return (n + n * n) * c
            case Collective.ALL_TO_ALL:
                return 3 * n * n * c
            case Collective.ALL_TO_ALL_V:
                return 3 * sum(map(sum, self.counts)) * c
            case Collective.CUSTOM:
                return (len(self.before) + len(self.after)) * c

    @property
    def in_place(self) -> bool:
        """Return whether item k lies in slot k everywhere: all but exchanges and custom demands."""
        return self.collective in STANDARD and self.collective is not Collective.ALL_TO_ALL

    @property
    def buffers(self) -> tuple[int, ...]:
        """Slots at which another buffer begins, scratch included: steps must not span them."""
        if self.collective in (Collective.ALL_TO_ALL, Collective.ALL_TO_ALL_V):
            return (self.blocks * self.chunks, self.slots)
        return (self.slots,)

    def chunk_bytes(self, total_bytes: int) -> float:
        """Bytes of one chunk when the collective moves `total_bytes`.

        `total_bytes` is the size of the whole data buffer on one side: the reduced vector, the
        gathered output, the scattered input, or the all-to-all input; the largest input of an
        all_to_all_v, with its padding, and all slots of a custom demand.
        """
        return total_bytes / (self.blocks * self.chunks)

    def initial(self, rank: int) -> list[tuple[int, int, int]]:
        """(slot, item, mask) for every slot that holds a value at `rank` before the call."""
        own = 1 << rank
        match self.collective:
            case Collective.ALLREDUCE | Collective.REDUCE | Collective.REDUCE_SCATTER:
                return [(slot, slot, own) for slot in range(self.slots)]
            case Collective.BROADCAST | Collective.SCATTER:
                slots = range(self.slots) if rank == self.root else range(0)
                return [(slot, slot, own) for slot in slots]
            case Collective.ALLGATHER | Collective.GATHER:
                return [(slot, slot, own) for slot in self.block(rank)]
            case Collective.ALL_TO_ALL:
                half = self.ranks * self.chunks
                return [(slot, rank * half + slot, own) for slot in range(half)]
            case Collective.ALL_TO_ALL_V:
                width = self.blocks * self.chunks
                sent = self._sent[rank][-1] * self.chunks
                return [(slot, rank * width + slot, own) for slot in range(sent)]
            case Collective.CUSTOM:
                return self._expanded(self.before, rank)

    def final(self, rank: int) -> list[tuple[int, int, int]]:
        """(slot, item, mask) for every slot with a postcondition at `rank`."""
        all_ranks = (1 << self.ranks) - 1
        match self.collective:
            case Collective.ALLREDUCE:
                return [(slot, slot, all_ranks) for slot in range(self.slots)]
            case Collective.REDUCE:
                slots = range(self.slots) if rank == self.root else range(0)
                return [(slot, slot, all_ranks) for slot in slots]
            case Collective.BROADCAST:
                return [(slot, slot, 1 << self.root) for slot in range(self.slots)]
            case Collective.SCATTER:
                return [(slot, slot, 1 << self.root) for slot in self.block(rank)]
            case Collective.REDUCE_SCATTER:
                return [(slot, slot, all_ranks) for slot in self.block(rank)]
            case Collective.ALLGATHER | Collective.GATHER:
                if self.collective is Collective.GATHER and rank != self.root:
                    return []
                return [(slot, slot, 1 << b) for b in range(self.ranks) for slot in self.block(b)]
            case Collective.ALL_TO_ALL:
                half = self.ranks * self.chunks
                return self.initial(rank) + [
                    (half + s * self.chunks + k, s * half + rank * self.chunks + k, 1 << s)
                    for s in range(self.ranks)
                    for k in range(self.chunks)
                ]
            case Collective.ALL_TO_ALL_V:
                return self.initial(rank) + self._received(rank)
            case Collective.CUSTOM:
                return self._expanded(self.after, rank)

    def _received(self, rank: int) -> list[tuple[int, int, int]]:
        width, slot = self.blocks * self.chunks, self.blocks * self.chunks
        outputs: list[tuple[int, int, int]] = []
        for src, row in enumerate(self.counts):
            first = src * width + self._sent[src][rank] * self.chunks
            for item in range(first, first + row[rank] * self.chunks):
                outputs.append((slot, item, 1 << src))
                slot += 1
        return outputs

    def _expanded(self, rows: tuple[DemandRow, ...], rank: int) -> list[tuple[int, int, int]]:
        mine = rows[bisect_left(rows, (rank,)) : bisect_left(rows, (rank + 1,))]
        return [
            (slot * self.chunks + k, item * self.chunks + k, mask)
            for _, slot, item, contributors in mine
            for mask in (mask_of(contributors),)
            for k in range(self.chunks)
        ]

    def block(self, index: int) -> range:
        """The slots of block `index` (of the input side, for all_to_all)."""
        return range(index * self.chunks, (index + 1) * self.chunks)


def mask_of(ranks: Iterable[int]) -> int:
    """Return the bit mask of `ranks`."""
    members = set(ranks)
    bits = bytearray(max(members, default=0) // 8 + 1)  # summing would copy the mask for every rank
    for rank in members:
        bits[rank >> 3] |= 1 << (rank & 7)
    return int.from_bytes(bits, "little")


def _check_counts(demand: Demand) -> None:
    if demand.collective is not Collective.ALL_TO_ALL_V:
        if demand.counts:
            raise ProgramError(f"counts is given, needs none for {demand.collective}")
        return
    if len(demand.counts) != demand.ranks:
        raise ProgramError(f"counts has {len(demand.counts)} rows, needs {demand.ranks}")
    for src, row in enumerate(demand.counts):
        if len(row) != demand.ranks:
            raise ProgramError(f"counts[{src}] has {len(row)} entries, needs {demand.ranks}")
        for dst, count in enumerate(row):
            if count < 0:
                raise ProgramError(f"counts[{src}][{dst}] is {count}, needs at least 0")


def _check_custom(demand: Demand) -> None:
    if demand.collective is not Collective.CUSTOM:
        if demand.before or demand.after or demand.custom_slots:
            raise ProgramError(
                f"before, after or custom_slots are given, needs none for {demand.collective}"
            )
        return
    if demand.custom_slots < 1:
        raise ProgramError(f"slots is {demand.custom_slots}, needs at least 1")
    masks: dict[int, int] = {}
    for rank, slot, item, contributors in _checked(demand, "before", demand.before):
        mask = mask_of(contributors)
        if item < 0:
            raise ProgramError(f"before: item {item} of rank {rank}, slot {slot}: needs 0 or more")
        masks[item] = masks.get(item, 0) | mask
    gap = next((item for item in range(len(masks)) if item not in masks), None)
    if gap is not None:
        raise ProgramError(
            f"before has {len(masks)} different items, but no item {gap}; needs them numbered from "
            "0 without gaps"
        )
    for rank, slot, item, contributors in _checked(demand, "after", demand.after):
        missing = mask_of(contributors) & ~masks.get(item, 0)
        if missing:
            raise ProgramError(
                f"after: rank {rank}, slot {slot} wants item {item} of rank "
                f"{missing.bit_length() - 1}, which no row of before has; needs contributors that "
                "exist"
            )


def _checked(demand: Demand, field: str, rows: tuple[DemandRow, ...]) -> tuple[DemandRow, ...]:
    last = (-1, -1)
    for rank, slot, item, contributors in rows:
        where = f"{field}: rank {rank}, slot {slot} (item {item})"
        if not 0 <= rank < demand.ranks:
            raise ProgramError(f"{where}: needs a rank from 0 to {demand.ranks - 1}")
        if not 0 <= slot < demand.custom_slots:
            raise ProgramError(f"{where}: needs a slot from 0 to {demand.custom_slots - 1}")
        if (rank, slot) == last:
            raise ProgramError(f"{where}: the slot has two rows; needs one value a slot")
        if (rank, slot) < last:
            raise ProgramError(f"{where}: rows are not sorted; needs `Demand.custom`")
        last = (rank, slot)
        if not contributors or not all(0 <= by < demand.ranks for by in contributors):
            raise ProgramError(
                f"{where}: contributors are {list(contributors)}, needs at least one rank from 0 "
                f"to {demand.ranks - 1}"
            )
        if list(contributors) != sorted(set(contributors)):
            raise ProgramError(f"{where}: contributors are {list(contributors)}, needs each once")
    return rows
