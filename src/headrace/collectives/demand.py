"""What a collective asks for: pre- and postconditions over the slots of one data buffer.

Every rank has one *data buffer* divided into slots of one chunk each. A slot holds a *value*: an
``(item, mask)`` pair, where ``item`` names the logical datum and ``mask`` is the set of ranks
(as bits) whose contributions have been combined into it. A collective is then only a statement
of which values the slots hold before and after:

==============  ==============  =======================  ===============================
collective      slots           before, at rank r        after
==============  ==============  =======================  ===============================
allreduce       c               k: (k, {r})              all ranks, k: (k, everyone)
reduce          c               k: (k, {r})              root, k: (k, everyone)
broadcast       c               root, k: (k, {root})     all ranks, k: (k, {root})
allgather       n*c             own block b=r            all ranks, block b: {b}
gather          n*c             own block b=r            root, block b: {b}
reduce_scatter  n*c             every slot s: (s, {r})   own block: (s, everyone)
scatter         n*c             root, every slot: {root} own block: {root}
all_to_all      2*n*c           input block d            inputs kept, then output block s
==============  ==============  =======================  ===============================

n is the number of ranks, c the number of chunks per block. Everything but all_to_all works in
place; slots that the postcondition does not name may be overwritten.
"""

from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import ProgramError


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


ROOTED = frozenset({Collective.REDUCE, Collective.BROADCAST, Collective.GATHER, Collective.SCATTER})
REDUCING = frozenset({Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER})
_SINGLE_BLOCK = frozenset({Collective.ALLREDUCE, Collective.REDUCE, Collective.BROADCAST})

Value = tuple[int, int]
"""(item, bit mask of the ranks combined)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One collective over `ranks` ranks, its blocks cut into `chunks` chunks each.

    Raises
    ------
    ProgramError : for a rank, chunk or root count outside its range.
    """

    collective: Collective
    ranks: int
    chunks: int = 1
    root: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ProgramError(f"ranks is {self.ranks}, needs at least 1")
        if self.chunks < 1:
            raise ProgramError(f"chunks is {self.chunks}, needs at least 1")
        if not 0 <= self.root < self.ranks:
            raise ProgramError(f"root is {self.root}, needs 0 to {self.ranks - 1}")

    @property
    def blocks(self) -> int:
        """Number of equal blocks that the collective's size (in bytes) is divided into."""
        return 1 if self.collective in _SINGLE_BLOCK else self.ranks

    @property
    def slots(self) -> int:
        """Number of slots of the data buffer at every rank (scratch slots come after)."""
        both_sides = 2 if self.collective is Collective.ALL_TO_ALL else 1
        return both_sides * self.blocks * self.chunks

    def chunk_bytes(self, total_bytes: int) -> float:
        """Bytes of one chunk when the collective moves `total_bytes`.

        `total_bytes` is the size of the whole data buffer on one side: the reduced vector, the
        gathered output, the scattered input, or the all-to-all input.
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

    def final(self, rank: int) -> list[tuple[int, int, int]]:
        """(slot, item, mask) for every slot whose value the caller wants at `rank` after."""
        everyone = (1 << self.ranks) - 1
        match self.collective:
            case Collective.ALLREDUCE:
                return [(slot, slot, everyone) for slot in range(self.slots)]
            case Collective.REDUCE:
                slots = range(self.slots) if rank == self.root else range(0)
                return [(slot, slot, everyone) for slot in slots]
            case Collective.BROADCAST:
                return [(slot, slot, 1 << self.root) for slot in range(self.slots)]
            case Collective.SCATTER:
                return [(slot, slot, 1 << self.root) for slot in self.block(rank)]
            case Collective.REDUCE_SCATTER:
                return [(slot, slot, everyone) for slot in self.block(rank)]
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

    def block(self, index: int) -> range:
        """The slots of block `index` (of the input side, for all_to_all)."""
        return range(index * self.chunks, (index + 1) * self.chunks)
