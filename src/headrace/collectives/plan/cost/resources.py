"""Routes: the links and shared capacities that can delay the bytes of a link, in order."""

from collections.abc import Iterable
from functools import cached_property, lru_cache

import numpy as np

from headrace.topology import Topology

Route = tuple[tuple[int, float], ...]
"""Resources that bytes pass, in order: (resource, its beta in us/MB)."""


def resource_routes(
    topology: Topology, used: Iterable[int], *, keep_links: bool = False
) -> tuple[dict[int, Route], int]:
    """Return for every used link its route, and the number of resources.

    A resource is a used link or a shared capacity. One is left out if another holds at least the
    same used links at no higher rate: bytes that pass that one never wait for this. With
    `keep_links` a link stays, first on its route.
    """
    routes = _Resources(topology, sorted(set(used)))
    return {
        link: tuple(
            (resource, routes.betas[resource]) for resource in routes.route(link, keep_links)
        )
        for link in routes.through
    }, len(routes.betas)


@lru_cache(maxsize=16)
def slowest_betas(topology: Topology) -> np.ndarray:
    """For every link, the largest beta of its resources (read-only)."""
    betas = topology.columns.beta_us_per_mb.copy()
    for shared in topology.shared:
        links = list(shared.links)
        betas[links] = np.maximum(betas[links], shared.beta_us_per_mb)
    betas.flags.writeable = False
    return betas


class _Resources:
    def __init__(self, topology: Topology, used: list[int]) -> None:
        self._links = topology.links
        self._used = len(used)
        self.betas: list[float] = []
        self.through: dict[int, list[int]] = {link: [] for link in used}
        self._members: list[frozenset[int]] = []
        self._place: list[tuple[bool, int, int, int]] = []
        for link in used:
            self._add(frozenset((link,)), topology.links[link].beta_us_per_mb)
        for shared in topology.shared:
            self._add(frozenset(self.through).intersection(shared.links), shared.beta_us_per_mb)

    def _add(self, links: frozenset[int], beta: float) -> None:
        index = len(self.betas)
        for link in links:
            self.through[link].append(index)
        # Bytes leave through resources that few sources share, and arrive by those of few sinks.
        sources = len({self._links[link].src for link in links})
        sinks = len({self._links[link].dst for link in links})
        self._place.append((index >= self._used, sources, -sinks, index))
        self._members.append(links)
        self.betas.append(beta)

    def route(self, link: int, keep_links: bool) -> list[int]:
        binding = [
            resource
            for resource in self.through[link]
            if (keep_links and resource < self._used) or not self.implied[resource]
        ]
        return sorted(binding, key=lambda resource: self._place[resource])

    @cached_property
    def implied(self) -> list[bool]:
        """For every resource whether another one makes it redundant."""
        return [bool(links) and self._implied(index) for index, links in enumerate(self._members)]

    def _implied(self, resource: int) -> bool:
        mine, beta = self._members[resource], self.betas[resource]
        for candidate in self.through[min(mine)]:
            theirs = self._members[candidate]
            if candidate == resource or self.betas[candidate] < beta or not theirs >= mine:
                continue
            alike = self.betas[candidate] == beta and len(theirs) == len(mine)
            if not alike or candidate < resource:  # of equal ones the first stays
                return True
        return False
