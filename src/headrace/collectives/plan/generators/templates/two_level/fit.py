"""Masters fitted to a topology's links and shared capacities; groups by predicted cost."""

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import CostModel
from headrace.collectives.plan.generators.templates.two_level.balance import (
    balanced_masters,
    group_shares,
)
from headrace.collectives.plan.generators.templates.two_level.masters import Masters, spread_masters
from headrace.collectives.plan.generators.templates.two_level.schedule import (
    MOST_TRANSFERS,
    chunk_count,
    two_level,
)
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.locality import RankGroups
from headrace.topology import BYTES_PER_MB, Topology

ALIKE = 1.1
"""Rates within this factor count as equal: measurement noise."""


def fitted_masters(topology: Topology, groups: RankGroups, chunks: int) -> Masters:
    """Return masters balanced by the topology's rates of ranks and groups."""
    ranks, across = topology_rates(topology, groups)
    ranks, across = _levelled(ranks, groups), _levelled(across, (tuple(range(len(groups))),))
    shares = group_shares(groups, across, ranks)
    return balanced_masters(groups, chunks, rank_rates=ranks, group_shares=shares)


def is_plain(masters: Masters) -> bool:
    """Return whether these are the masters by group sizes alone."""
    plain = spread_masters(masters.groups, masters.chunks)
    same = np.array_equal(masters.global_master, plain.global_master)
    return same and np.array_equal(masters.local_master, plain.local_master)


def topology_rates(topology: Topology, groups: RankGroups) -> tuple[np.ndarray, np.ndarray]:
    """Return (ranks,) and (groups,) float64 bytes/s: the smaller of the rates out and in.

    Raises
    ------
    ProgramError : if some rank has no link to some other.
    """
    if len(topology.links) < topology.ranks * (topology.ranks - 1):
        raise ProgramError(f"topology '{topology.name}' does not link every rank with every other")
    ranks = _leaving(topology, np.arange(topology.ranks))
    group_of = np.zeros(topology.ranks, dtype=np.int64)
    for index, group in enumerate(groups):
        group_of[list(group)] = index
    members = np.bincount(group_of, weights=ranks)
    return ranks, np.minimum(_leaving(topology, group_of), members)


def _leaving(topology: Topology, side: np.ndarray) -> np.ndarray:
    """Return (sides,) bytes/s, the smaller of the rates out of and into every side.

    A side is a label of ranks. Its rate is the sum over links across, or less: the narrowest
    capacity that all of them share.
    """
    columns, count = topology.columns, int(side.max()) + 1
    with np.errstate(divide="ignore"):
        rates = 1.0 / columns.beta_us_per_mb
    crosses = side[columns.src] != side[columns.dst]
    least = np.full(count, np.inf)
    for end in (side[columns.src], side[columns.dst]):
        links = np.bincount(end[crosses], minlength=count)
        rate = np.bincount(end[crosses], weights=rates[crosses], minlength=count)
        for shared in topology.shared:
            mine = np.array(shared.links, dtype=np.int64)
            links_by_end = np.bincount(end[mine[crosses[mine]]], minlength=count)
            rate[links_by_end == links] = np.minimum(
                rate[links_by_end == links], 1.0 / shared.beta_us_per_mb
            )
        least = np.minimum(least, np.where(links > 0, rate, np.inf))
    return least * BYTES_PER_MB * 1e6


def _levelled(rates: np.ndarray, groups: RankGroups) -> np.ndarray:
    """Return the rates, averaged within a group if they differ by noise only."""
    level = np.where(np.isfinite(rates), rates, 1.0)
    for group in groups:
        mine = level[list(group)]
        if mine.max() <= ALIKE * mine.min():
            level[list(group)] = mine.mean()
    return level


def cheapest_groups(topology: Topology, total_bytes: int, model: CostModel) -> RankGroups:
    """Return the groups with the least predicted time of an allreduce of `total_bytes`.

    For networks without visible groups. Candidates are 2, sqrt(n) (PLink 4.1.3) and n / 2 groups of
    even size, of ranks with the cheapest links between them.

    Raises
    ------
    ProgramError : if some rank has no link to some other, or there are fewer than 4.
    """
    n = topology.ranks
    if n < 4:
        raise ProgramError(f"{n} ranks make no two groups of two")
    topology_rates(topology, (tuple(range(n)),))
    order = _neighbours(topology, total_bytes / n)
    counts = sorted({2, round(n**0.5), n // 2})
    tried = [_cut(order, count) for count in counts]
    chunks = min(chunk_count(total_bytes, n), 2 * n, max(1, MOST_TRANSFERS // (8 * n)))
    demand = Demand(collective=Collective.ALLREDUCE, ranks=n, chunks=chunks)
    times = [
        simulate(
            lower(two_level(demand, fitted_masters(topology, groups, chunks))),
            topology,
            total_bytes,
            model=model,
            max_pieces=1000,
        ).total_us
        for groups in tried
    ]
    return tried[times.index(min(times))]


def _neighbours(topology: Topology, message_bytes: float) -> list[int]:
    """Return the ranks as leaves of an average-linkage tree, by the time of a message."""
    # imported here: most topologies show their groups
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    columns = topology.columns
    time = np.zeros((topology.ranks, topology.ranks))
    time[columns.src, columns.dst] = (
        columns.alpha_us + columns.beta_us_per_mb * message_bytes / BYTES_PER_MB
    )
    if np.ptp(columns.alpha_us) == np.ptp(columns.beta_us_per_mb) == 0:
        return list(range(topology.ranks))  # all equal: as numbered
    return leaves_list(linkage(squareform((time + time.T) / 2), method="average")).tolist()


def _cut(order: list[int], count: int) -> RankGroups:
    parts = np.array_split(np.array(order), count)
    return tuple(sorted(tuple(sorted(part.tolist())) for part in parts))
