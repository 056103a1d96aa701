"""Profiles rearranged for other ranks on the same hosts: in another order, or on some of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace.topology.profile import Profile
from headrace.topology.transforms import restricted


def arranged(profile: Profile, addresses: Sequence[str]) -> Profile | None:
    """Return `profile` for a job whose rank r runs on the host with address ``addresses[r]``.

    Ranks of one host are interchangeable and assigned in ascending order. Hosts and ranks that the
    job does not have are left out. None if the profile lacks a host, or enough ranks of it.
    """
    topology = profile.topology
    located = topology.addresses or topology.hosts
    waiting: dict[str, list[int]] = {}
    for rank, host in enumerate(topology.rank_host):
        waiting.setdefault(located[host], []).append(rank)
    order: list[int] = []
    for address in addresses:
        if not waiting.get(address):
            return None
        order.append(waiting[address].pop(0))
    if order == list(range(topology.ranks)):
        return profile
    place = {rank: index for index, rank in enumerate(order)}
    groups = (tuple(sorted(place[r] for r in group if r in place)) for group in profile.groups)
    return replace(
        profile,
        topology=restricted(topology, order),
        groups=tuple(sorted(group for group in groups if group)),
        samples=between(profile.samples, place),
        fits=between(profile.fits, place),
        pairs=between(profile.pairs, place),
    )


def between(table: Mapping[str, np.ndarray], place: Mapping[int, int]) -> dict[str, np.ndarray]:
    """Return the rows whose `src` and `dst` are in `place`, renumbered by it."""
    ends = list(zip(table["src"].tolist(), table["dst"].tolist(), strict=True))
    rows = [row for row, (src, dst) in enumerate(ends) if src in place and dst in place]
    renumbered = {name: column[rows] for name, column in table.items()}
    for position, end in enumerate(("src", "dst")):
        numbers = [place[ends[row][position]] for row in rows]
        renumbered[end] = np.array(numbers, dtype=table[end].dtype)
    return renumbered
