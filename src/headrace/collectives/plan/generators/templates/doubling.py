"""Recursive halving and doubling: exchanges with one partner a round, the distance doubling."""

from collections.abc import Sequence

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.templates.transfers import (
    REVERSED,
    backwards,
    cut,
    move,
    rank_order,
    unsupported,
)
from headrace.collectives.program import Schedule, Transfer


def halving_doubling(demand: Demand, *, order: Sequence[int] | None = None) -> Schedule:
    """Return recursive vector halving followed by its reverse, recursive doubling.

    The nearest partner (in `order`) gets the largest half, so the ranks of a group should be
    adjacent. For allreduce with a rank count that is no power of two, the first ranks are paired:
    one of each pair sends its vector to the other before, and receives the result after.

    Raises
    ------
    ProgramError : for the rooted collectives and all_to_all; for allgather and reduce_scatter if
        the rank count is no power of two.
    """
    around = rank_order(demand, order)
    if demand.collective is Collective.ALLREDUCE:
        slots = range(demand.slots)
        core, folded = _fold(around)
        parts = cut(slots, len(core))
        doubling = _spread(core, [parts[_mirror(j, len(core))] for j in range(len(core))])
        transfers = [
            *(t for out, into in folded for t in move(out, into, slots, reduce=True)),
            *backwards(doubling, reduce=True),
            *doubling,
            *(t for out, into in folded for t in move(into, out, slots)),
        ]
    elif demand.collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
        if demand.ranks & (demand.ranks - 1):
            unsupported("halving_doubling", demand, "the rank count is no power of two")
        transfers = _spread(around, [demand.block(rank) for rank in around], merge=False)
        if demand.collective in REVERSED:
            transfers = backwards(transfers, reduce=True)
    else:
        unsupported("halving_doubling", demand)
    return Schedule.of(demand, transfers)


def recursive_doubling(demand: Demand, *, order: Sequence[int] | None = None) -> Schedule:
    """Return the allreduce that exchanges whole vectors: log2(n) rounds, one message each way.

    Uses one scratch slot a chunk. The far partners come last. Rank counts that are no power of
    two are folded as in `halving_doubling`.

    Raises
    ------
    ProgramError : for every collective but allreduce.
    """
    if demand.collective is not Collective.ALLREDUCE:
        unsupported("recursive_doubling", demand)
    around = rank_order(demand, order)
    transfers = [
        t for slot in range(demand.slots) for t in swaps(around, slot, demand.slots + slot)
    ]
    return Schedule.of(demand, transfers, demand.slots)


def swaps(ranks: Sequence[int], slot: int, scratch: int) -> list[Transfer]:
    """Return an allreduce of one slot among `ranks` by recursive doubling.

    Of two partners, one reduces what arrives right into its slot (its own value has left by
    then), the other by way of `scratch`; both compute the same sum up to commutativity.
    """
    core, folded = _fold(ranks)
    transfers = [Transfer(out, into, slot, slot, True) for out, into in folded]
    distance = 1
    while distance < len(core):
        for j, low in enumerate(core):
            if j & distance:
                continue
            high = core[j | distance]
            transfers += [
                Transfer(low, high, slot, scratch),
                Transfer(high, low, slot, slot, True),
                Transfer(high, high, scratch, slot, True),
            ]
        distance *= 2
    return transfers + [Transfer(into, out, slot, slot) for out, into in folded]


def _fold(ranks: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a power of two of the ranks, and for the others the pairs (left out, stand-in)."""
    size = 1 << (len(ranks).bit_length() - 1)
    extra = len(ranks) - size
    folded = [(ranks[2 * i + 1], ranks[2 * i]) for i in range(extra)]
    return [*ranks[: 2 * extra : 2], *ranks[2 * extra :]], folded


def _mirror(index: int, size: int) -> int:
    """Reverse the bits of `index` below `size` (a power of two)."""
    return int(f"{index + size:b}"[:0:-1] or "0", 2)


def _spread(core: Sequence[int], owned: Sequence[range], *, merge: bool = True) -> list[Transfer]:
    """Allgather among `core` by doubling, far partners first, while there is little to send.

    Position j starts with ``owned[j]``. With `merge`, adjacent ranges travel as one message.
    """
    owned_parts = [[part] for part in owned]
    transfers: list[Transfer] = []
    distance = len(core) // 2
    while distance:
        for j, src in enumerate(core):
            for part in owned_parts[j]:
                transfers += move(src, core[j ^ distance], part)
        owned_parts = [
            _joined(owned_parts[j] + owned_parts[j ^ distance], merge) for j in range(len(core))
        ]
        distance //= 2
    return transfers


def _joined(parts: list[range], merge: bool) -> list[range]:
    if not merge:
        return parts
    joined: list[range] = []
    for part in sorted(filter(len, parts), key=lambda r: r.start):
        if joined and joined[-1].stop == part.start:
            joined[-1] = range(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return joined
