"""Rings and chains: every rank communicates with its two neighbours only."""

from collections.abc import Sequence
from itertools import pairwise

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.templates.transfers import (
    REVERSED,
    backwards,
    cut,
    from_root,
    move,
    pipelined,
    rank_order,
    unsupported,
)
from headrace.collectives.program import Schedule, Transfer


def ring(demand: Demand, *, order: Sequence[int] | None = None) -> Schedule:
    """Return the ring (or, for rooted collectives, pipelined chain) schedule.

    allreduce cuts the vector into one part a rank, so it should have as many chunks as ranks, or
    more: 2(n-1) rounds, 2(n-1)/n of the vector over every link. `order` is the order around the
    ring; with the ranks of a group adjacent every group is entered and left once.

    Raises
    ------
    ProgramError : for gather, scatter and all_to_all, or an order that is no permutation.
    """
    around = rank_order(demand, order)
    match demand.collective:
        case Collective.ALLREDUCE:
            parts = cut(range(demand.slots), demand.ranks)
            transfers = _pass_round(around, parts, first=0, reduce=True)
            transfers += _pass_round(around, parts, first=1)
        case Collective.ALLGATHER | Collective.REDUCE_SCATTER:
            blocks = [demand.block(rank) for rank in around]
            transfers = _pass_round(around, blocks, first=0)
        case Collective.BROADCAST | Collective.REDUCE:
            transfers = _chain(demand, from_root(around, demand.root))
        case _:
            unsupported("ring", demand)
    if demand.collective in REVERSED:
        transfers = backwards(transfers, reduce=True)
    return Schedule.of(demand, transfers)


def _pass_round(
    around: Sequence[int], parts: Sequence[range], *, first: int, reduce: bool = False
) -> list[Transfer]:
    """n-1 rounds: position i starts with part i+first and forwards what it received."""
    n = len(around)
    return [
        transfer
        for step in range(n - 1)
        for i in range(n)
        for transfer in move(
            around[i], around[(i + 1) % n], parts[(i + first - step) % n], reduce=reduce
        )
    ]


def _chain(demand: Demand, line: Sequence[int]) -> list[Transfer]:
    hops = list(pairwise(line))
    chunks = [[move(a, b, range(k, k + 1)) for a, b in hops] for k in range(demand.slots)]
    return list(pipelined(chunks, lag=1))
