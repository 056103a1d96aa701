"""Two-level aggregation on groups of ranks, so that slow links between groups carry the least.

After PLink (Luo et al., MLSys 2020), section 4.3: every chunk has a *local master* in every group,
and one of the local masters is its *global master*. Masters rotate from chunk to chunk.
"""

from collections.abc import Iterator, Sequence

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.generators.templates.doubling import swaps
from headrace.collectives.plan.generators.templates.transfers import (
    REVERSED,
    backwards,
    move,
    pipelined,
    unsupported,
)
from headrace.collectives.plan.generators.templates.two_level.masters import (
    Spread,
    check_capacities,
    spread_masters,
    turns,
)
from headrace.collectives.plan.generators.templates.two_level.schedule import stages, two_level
from headrace.collectives.plan.locality import RankGroups, check_groups
from headrace.collectives.program import Schedule, Transfer


def hierarchical(
    demand: Demand,
    groups: RankGroups,
    *,
    lag: int | None = None,
    capacities: Sequence[float] | None = None,
    spread: Spread = "proportional",
) -> Schedule:
    """Return the schedule in which a chunk crosses the border of every group as rarely as possible.

    allreduce is the two-level hierarchical aggregation: members to local master, local masters to
    global master, and back the same way; every group's uplink carries 2(G-1)/G of the vector each
    way when the global masters are spread evenly over G groups. allgather and broadcast enter
    every other group once, at a local master that forwards it; reduce_scatter and reduce are
    their reverse.

    Parameters
    ----------
    groups : the ranks by locality; sizes may differ.
    lag : chunks by which the reduction may run ahead of the exchange, and that of the fan-out,
        where they share a lane. By default the number of ranks, one chunk of every master: local
        traffic is then paced by the uplink instead of bursting ahead of it (measured on shaped
        TCP links: half of all chunks costs 5% of the bandwidth).
    capacities : weight of every rank in the assignment of masters (default: equal).
    spread : assign global masters to groups in proportion to their capacity (as in PLink) or
        evenly (less traffic for the busiest of equal uplinks if group sizes differ).

    Raises
    ------
    ProgramError : for gather, scatter and all_to_all (direct moves no byte across twice), or
        groups that do not hold every rank once.
    """
    check_groups(demand.ranks, groups)
    if demand.collective is Collective.ALLREDUCE:
        masters = spread_masters(groups, demand.slots, capacities=capacities, spread=spread)
        return two_level(demand, masters, lag=lag)
    weights = check_capacities(demand.ranks, capacities)
    # Half a turn in, as for chunks whose global master is elsewhere.
    masters = [turns(weights[list(group)], start=len(group) // 2) for group in groups]
    match demand.collective:
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
            unsupported("hierarchical", demand)
    transfers = pipelined(chains, demand.ranks if lag is None else lag)
    if demand.collective in REVERSED:
        return Schedule.of(demand, backwards(transfers, reduce=True))
    return Schedule.of(demand, transfers)


def exchange(demand: Demand, groups: RankGroups, *, lag: int | None = None) -> Schedule:
    """Return the hierarchical allreduce whose local masters exchange partial sums pairwise.

    One crossing fewer than by way of a global master, for G > 2 more bytes across: log2(G)
    vectors. Uses one scratch slot a chunk.

    Raises
    ------
    ProgramError : for every collective but allreduce, or bad groups.
    """
    if demand.collective is not Collective.ALLREDUCE:
        unsupported("exchange", demand)
    masters = spread_masters(groups, demand.slots)
    chains = []
    for slot in range(demand.slots):
        first, *_, last = stages(masters, slot)
        local = masters.local_master[slot].tolist()
        # Rotated, so that reductions through scratch are balanced over the masters.
        turn = [*local[slot % len(local) :], *local[: slot % len(local)]]
        chains.append([first, swaps(turn, slot, demand.slots + slot), last])
    lag = demand.ranks if lag is None else lag
    return Schedule.of(demand, pipelined(chains, lag), demand.slots)


def _enter_groups(
    groups: RankGroups, source: int, slot: int, masters: list[Iterator[int]], *, relay: bool = False
) -> list[list[Transfer]]:
    """Return the stages of a chunk's multicast from `source`: across groups first, then within.

    With `relay` the source's own group has a local master too, which takes load off a source that
    sends everything.
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
        master = next(rank for turn in masters[index] if (rank := group[turn]) != source)
        first += move(source, master, cell)
        then += [t for rank in others if rank != master for t in move(master, rank, cell)]
    return [first, then]
