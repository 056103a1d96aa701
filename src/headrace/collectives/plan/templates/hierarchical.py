"""Two-level aggregation on groups of ranks, so that slow links between groups carry the least.

After PLink (Luo et al., MLSys 2020), section 4.3: every chunk has a *local master* in every group,
and one of the local masters is its *global master*. Masters rotate from chunk to chunk.
"""

import math
from collections.abc import Sequence
from typing import Literal

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.templates.doubling import swaps
from headrace.collectives.plan.templates.shape import (
    REVERSED,
    Groups,
    backwards,
    check_groups,
    move,
    pipelined,
    unserved,
)
from headrace.collectives.program import Schedule, Transfer
from headrace.errors import ProgramError

Spread = Literal["proportional", "even"]


def hierarchical(
    demand: Demand,
    groups: Groups,
    *,
    lag: int | None = None,
    capacities: Sequence[float] | None = None,
    spread: Spread = "proportional",
) -> Schedule:
    """Return the schedule in which a chunk enters and leaves every group as seldom as possible.

    allreduce is the two-level hierarchical aggregation: members to local master, local masters to
    global master, and back the same way; every group's uplink carries 2(G-1)/G of the vector each
    way when the global masters are spread evenly over G groups. allgather and broadcast enter
    every foreign group once, at a local master that passes it on; reduce_scatter and reduce are
    their reverse.

    Parameters
    ----------
    groups : the ranks by locality; sizes may differ.
    lag : how many chunks the reduction may run ahead of the exchange, and that of the fan-out,
        where they share a lane. By default the number of ranks, one chunk of every master: local
        traffic is then held to the pace of the uplink instead of bursting ahead of it (measured
        on shaped TCP links: half of all chunks costs 5% of the bandwidth).
    capacities : per rank, how much of the mastering it should carry (default: all the same).
    spread : whether groups hold global masters in proportion to their capacity (as in PLink) or
        evenly (less traffic for the busiest of equal uplinks if group sizes differ).

    Raises
    ------
    ProgramError : for gather, scatter and all_to_all (direct moves no byte across twice), or
        groups that do not hold every rank once.
    """
    check_groups(demand, groups)
    masters = _Masters(groups, _checked(demand, capacities), spread)
    lag = demand.ranks if lag is None else lag
    match demand.collective:
        case Collective.ALLREDUCE:
            chains = [_aggregate(groups, slot, *masters.next()) for slot in range(demand.slots)]
        case Collective.ALLGATHER | Collective.REDUCE_SCATTER:
            chains = [
                _enter_groups(groups, rank, demand.block(rank)[k], masters)
                for k in range(demand.chunks)
                for rank in range(demand.ranks)
            ]
        case Collective.BROADCAST | Collective.REDUCE:
            chains = [
                _enter_groups(groups, demand.root, slot, masters, relay=True)
                for slot in range(demand.slots)
            ]
        case _:
            unserved("hierarchical", demand)
    transfers = pipelined(chains, lag)
    if demand.collective in REVERSED:
        return Schedule.of(demand, backwards(transfers, reduce=True))
    return Schedule.of(demand, transfers)


def exchange(demand: Demand, groups: Groups, *, lag: int | None = None) -> Schedule:
    """Return the hierarchical allreduce whose local masters swap partial sums pairwise.

    One crossing fewer than by way of a global master, for G > 2 more bytes across: log2(G)
    vectors. Uses one scratch slot a chunk.

    Raises
    ------
    ProgramError : for every collective but allreduce, or bad groups.
    """
    if demand.collective is not Collective.ALLREDUCE:
        unserved("exchange", demand)
    check_groups(demand, groups)
    masters = _Masters(groups, (1.0,) * demand.ranks, "proportional")
    lag = demand.ranks if lag is None else lag
    chains = []
    for slot in range(demand.slots):
        local, top = masters.next()
        first, *_, last = _aggregate(groups, slot, local, top)
        # Starting with another master each time evens out who reduces by way of scratch.
        turn = [*local[slot % len(local) :], *local[: slot % len(local)]]
        chains.append([first, swaps(turn, slot, demand.slots + slot), last])
    return Schedule.of(demand, pipelined(chains, lag), demand.slots)


def _checked(demand: Demand, capacities: Sequence[float] | None) -> Sequence[float]:
    capacities = capacities or (1.0,) * demand.ranks
    if len(capacities) != demand.ranks:
        raise ProgramError(f"capacities has {len(capacities)} rows, needs {demand.ranks}")
    for rank, capacity in enumerate(capacities):
        if not (math.isfinite(capacity) and capacity > 0):
            raise ProgramError(f"capacities[{rank}] is {capacity}, needs a finite number above 0")
    return capacities


def _aggregate(groups: Groups, slot: int, local: Sequence[int], top: int) -> list[list[Transfer]]:
    """Return the four stages of one chunk: up within groups, up and down across, down within."""
    cell = range(slot, slot + 1)
    across = [t for master in local if master != local[top] for t in move(local[top], master, cell)]
    within = [
        t
        for group, master in zip(groups, local, strict=True)
        for rank in group
        if rank != master
        for t in move(master, rank, cell)
    ]
    return [backwards(within, reduce=True), backwards(across, reduce=True), across, within]


def _enter_groups(
    groups: Groups, source: int, slot: int, masters: "_Masters", *, relay: bool = False
) -> list[list[Transfer]]:
    """Return the stages that bring a chunk from `source` to all: across first, then within.

    With `relay` the source's own group has a local master too, which spreads the load of a
    source that sends everything.
    """
    cell = range(slot, slot + 1)
    first: list[Transfer] = []
    then: list[Transfer] = []
    for index, group in enumerate(groups):
        home = source in group
        others = [rank for rank in group if rank != source]
        if not others:
            continue
        if home and not relay:
            first += [t for rank in others for t in move(source, rank, cell)]
            continue
        master = masters.of_group(index, without=source if home else None)
        first += move(source, master, cell)
        then += [t for rank in others if rank != master for t in move(master, rank, cell)]
    return [first, then]


class _Turns:
    """Smooth weighted round robin: every prefix of the picks is close to the weights."""

    def __init__(self, weights: Sequence[float], start: int = 0) -> None:
        self._weights = list(weights)
        self._total = sum(weights)
        # A different start lets two sequences over the same ranks be out of step.
        self._credit = [-float((k - start) % len(weights)) * 1e-6 for k in range(len(weights))]

    def next(self) -> int:
        """Return the index whose turn it is."""
        self._credit = [c + w for c, w in zip(self._credit, self._weights, strict=True)]
        best = max(range(len(self._credit)), key=lambda k: self._credit[k])
        self._credit[best] -= self._total
        return best


class _Masters:
    """Who masters the next chunk."""

    def __init__(self, groups: Groups, capacities: Sequence[float], spread: Spread) -> None:
        self._groups = groups
        weights = [[capacities[rank] for rank in group] for group in groups]
        shares = [sum(w) for w in weights] if spread == "proportional" else [1.0] * len(groups)
        self._top = _Turns(shares)
        # A group's masters rotate apart for the chunks whose global master it has, so that the
        # global role falls on every rank.
        self._as_top = [_Turns(w) for w in weights]
        self._as_other = [_Turns(w, start=len(w) // 2) for w in weights]

    def next(self) -> tuple[list[int], int]:
        """Return the next chunk's local master in every group, and which of them is global."""
        top = self._top.next()
        turns = [*self._as_other[:top], self._as_top[top], *self._as_other[top + 1 :]]
        return [group[turns[g].next()] for g, group in enumerate(self._groups)], top

    def of_group(self, index: int, without: int | None = None) -> int:
        """Return the next local master of one group, other than `without`."""
        while (rank := self._groups[index][self._as_other[index].next()]) == without:
            pass
        return rank
