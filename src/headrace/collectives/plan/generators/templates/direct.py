"""Direct: every chunk is sent from its origin to each target in one hop."""

from collections.abc import Iterator

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.templates.transfers import (
    REVERSED,
    backwards,
    cut,
    move,
    unsupported,
)
from headrace.collectives.plan.ir.chunks import Deliveries, Sends, deliveries_of, realize
from headrace.collectives.program import Schedule, Transfer


def direct(demand: Demand) -> Schedule:
    """Return the schedule of direct transfers, for all but custom demands that combine.

    allreduce is a direct reduce-scatter, one part of the vector a rank, then a direct allgather.
    In round s rank r sends to rank r+s, so that no rank receives from all at once.

    Raises
    ------
    ProgramError : for a custom demand that combines.
    """
    match demand.collective:
        case Collective.ALLREDUCE:
            parts = cut(range(demand.slots), demand.ranks)
            gather = [t for src, dst in _rounds(demand.ranks) for t in move(src, dst, parts[src])]
            transfers = [*backwards(gather, reduce=True), *gather]
        case Collective.ALLGATHER | Collective.REDUCE_SCATTER:
            transfers = [
                t for src, dst in _rounds(demand.ranks) for t in move(src, dst, demand.block(src))
            ]
        case Collective.BROADCAST | Collective.REDUCE:
            transfers = [
                Transfer(demand.root, rank, slot, slot)
                for slot in range(demand.slots)
                for rank in _others(demand)
            ]
        case Collective.SCATTER | Collective.GATHER:
            transfers = [
                t for rank in _others(demand) for t in move(demand.root, rank, demand.block(rank))
            ]
        case Collective.ALL_TO_ALL:
            transfers = _all_to_all(demand)
        case Collective.ALL_TO_ALL_V | Collective.CUSTOM:
            return realize(demand, _one_hop(deliveries_of(demand)))
    if demand.collective in REVERSED:
        transfers = backwards(transfers, reduce=demand.collective is not Collective.GATHER)
    return Schedule.of(demand, transfers)


def full_exchange(demand: Demand) -> Schedule:
    """Return the allreduce in one hop: every rank sends its whole vector to every other.

    The fewest rounds and the most bytes, (n-1) vectors out of every rank; for vectors so short
    that only the number of rounds counts. Every rank adds in the order of the ranks, so all
    results agree bit for bit. Uses one scratch slot a chunk.

    Raises
    ------
    ProgramError : for every collective but allreduce.
    """
    if demand.collective is not Collective.ALLREDUCE:
        unsupported("full_exchange", demand)
    ranks = range(demand.ranks)
    transfers: list[Transfer] = []
    for slot in range(demand.slots):
        scratch = demand.slots + slot
        # Values of lower ranks are summed in scratch while the slot still holds the value to send;
        # the slot adds that sum, then the values of higher ranks.
        for dst in ranks:
            transfers += [Transfer(src, dst, slot, scratch, src > 0) for src in ranks[:dst]]
        for dst in ranks:
            if dst > 0:
                transfers.append(Transfer(dst, dst, scratch, slot, True))
            transfers += [Transfer(src, dst, slot, slot, True) for src in ranks[dst + 1 :]]
    return Schedule.of(demand, transfers, demand.slots if demand.ranks > 1 else 0)


def _rounds(ranks: int) -> Iterator[tuple[int, int]]:
    return ((src, (src + step) % ranks) for step in range(1, ranks) for src in range(ranks))


def _others(demand: Demand) -> list[int]:
    return [(demand.root + step) % demand.ranks for step in range(1, demand.ranks)]


def _all_to_all(demand: Demand) -> list[Transfer]:
    half = demand.ranks * demand.chunks

    def block(src: int, dst: int) -> Transfer:
        target = half + src * demand.chunks
        return Transfer(src, dst, dst * demand.chunks, target, False, demand.chunks)

    own = [block(rank, rank) for rank in range(demand.ranks)]
    return [*own, *(block(src, dst) for src, dst in _rounds(demand.ranks))]


def _one_hop(deliveries: Deliveries) -> Sends:
    """Send every chunk from its origin to each target, one message for each pair of ranks."""
    chunk, dst = np.nonzero(deliveries.targets)
    src = deliveries.origin[chunk]
    pair = (dst - src) % deliveries.ranks * deliveries.ranks + src  # by round
    order = np.argsort(pair, kind="stable")
    pair = pair[order]
    message = np.cumsum(np.diff(pair, prepend=pair[:1]) != 0)
    return Sends.of(chunk[order], src[order], dst[order], message=message)
