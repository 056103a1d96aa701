"""Groups of ranks that are near each other, as a topology alone shows them."""

from itertools import pairwise
from math import sqrt

from headrace.collectives.errors import ProgramError
from headrace.topology import Topology

RankGroups = tuple[tuple[int, ...], ...]
"""Ranks by locality (one rack, one host); every rank in exactly one group."""

_BETA_JUMP = 1.5
"""Ratio of adjacent betas from which the slower links are classified as between groups."""


def check_groups(ranks: int, groups: RankGroups) -> None:
    """Raise ProgramError unless `groups` holds every rank exactly once and no group is empty."""
    if sorted(rank for group in groups for rank in group) != list(range(ranks)):
        raise ProgramError(
            f"groups is {groups}, needs every rank from 0 to {ranks - 1} in one group"
        )
    if not all(groups):
        raise ProgramError(f"groups is {groups}, has an empty group; leave it out")


def grouping(topology: Topology, groups: RankGroups | None) -> RankGroups | None:
    """Return `groups`, or `locality` of the topology where there is only one group.

    One group of all ranks (as measured in a single rack) does not show ranks that share a host.
    """
    return groups if groups and len(groups) > 1 else locality(topology)


def locality(topology: Topology) -> RankGroups | None:
    """Return the groups that follow from `topology` alone, or None.

    Ranks that share a host; else ranks joined by links that are clearly faster than the rest;
    else ranks behind one shared capacity to all others (an uplink).
    """
    for partition in (_by_host(topology), _by_beta(topology), _by_uplink(topology)):
        if 1 < len(partition) < topology.ranks:
            return tuple(sorted(tuple(sorted(group)) for group in partition))
    return None


def _by_host(topology: Topology) -> list[set[int]]:
    hosts: dict[int, set[int]] = {}
    for rank, host in enumerate(topology.rank_host):
        hosts.setdefault(host, set()).add(rank)
    return list(hosts.values())


def _by_uplink(topology: Topology) -> list[set[int]]:
    """Ranks whose every link to or from all others is in one shared capacity."""
    sides: list[set[int]] = []
    for shared in topology.shared:
        sources = {topology.links[link].src for link in shared.links}
        targets = {topology.links[link].dst for link in shared.links}
        cuts = len(sources) * len(targets) == len(shared.links) and not sources & targets
        if cuts and len(sources | targets) == topology.ranks:
            sides += [sources, targets] if min(len(sources), len(targets)) > 1 else []
    groups: list[set[int]] = []
    for side in sorted(sides, key=len):  # the larger ones may be several racks together
        if not any(side & group for group in groups):
            groups.append(side)
    alone = set(range(topology.ranks)).difference(*groups)
    return [*groups, *({rank} for rank in alone)]


def _by_beta(topology: Topology) -> list[set[int]]:
    betas = sorted({link.beta_us_per_mb for link in topology.links})
    jumps = [(high / low, sqrt(high * low)) for low, high in pairwise(betas)]
    if not jumps or max(jumps)[0] < _BETA_JUMP:
        return []
    limit = max(jumps)[1]
    group_of = {rank: {rank} for rank in range(topology.ranks)}
    for link in topology.links:
        if link.beta_us_per_mb < limit and group_of[link.src] is not group_of[link.dst]:
            joined = group_of[link.src] | group_of[link.dst]
            group_of.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in group_of.values()}.values())
