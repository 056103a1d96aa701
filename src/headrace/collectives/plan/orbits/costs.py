"""What the simulator needs of a topology and its group, whatever the plan: made once."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from headrace.collectives.plan.orbits.classes import (
    capacity_orbits,
    link_orbits,
    require_symmetry,
)
from headrace.collectives.plan.orbits.group import RegularGroup
from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.symmetry import orbits

__all__ = ["OrbitCosts", "Representatives"]

_MAX_SUBGROUPS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Representatives:
    """One rank of each orbit of a subgroup under which no two ranks get into each other's way.

    Attributes
    ----------
    ranks : the representatives.
    label : (ranks,) int64, the position in `ranks` of each rank's representative.
    link, capacity : for every link, every shared capacity, the lowest of its orbit.
    """

    ranks: tuple[int, ...]
    label: np.ndarray
    link: np.ndarray
    capacity: np.ndarray

    @property
    def order(self) -> np.ndarray:
        """Who comes first among messages of one number: the first representative and its like."""
        n = len(self.label)
        made = np.empty(n, dtype=np.int64)
        made[np.lexsort((np.arange(n), self.label))] = np.arange(n)
        return made


@dataclass(kw_only=True)
class OrbitCosts:
    """A topology seen through a group of its automorphisms.

    Raises
    ------
    SymmetryError : if the group is not one of automorphisms of `topology`.
    """

    topology: Topology
    group: RegularGroup
    _known: dict[tuple[int, ...], Representatives] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_symmetry(self.topology, self.group.generators)
        self._orbit = link_orbits(self.topology, self.group.generators)
        shared = self.topology.shared
        self._owner = np.repeat(np.arange(len(shared)), [len(s.links) for s in shared])
        self._member = np.array([link for s in shared for link in s.links], dtype=np.int64)

    def route(self, link: int) -> list[int]:
        """The shared capacities that a link is part of."""
        return self._owner[self._member == link].tolist()

    def link(self, src: int, dst: int) -> int:
        """The link's index; raises TopologyError if there is none."""
        link = self.topology.link_index.get((src, dst))
        if link is None:
            raise TopologyError(
                f"topology '{self.topology.name}' has no link {src} -> {dst}, which the plan uses"
            )
        return link

    def representatives(self, used: list[int]) -> Representatives:
        """Return representatives for the links from every rank to the likes of `used` (rank 0's).

        If no two links of an orbit meet at a capacity that is rank 0 alone; else the largest
        subgroup that powers of the generators make under which none do.
        """
        key = tuple(sorted(used))
        if key not in self._known:
            self._known[key] = self._represented(used)
        return self._known[key]

    def _represented(self, used: list[int]) -> Representatives:
        wanted = self._orbit[[self.link(0, to) for to in used]]
        taken = np.isin(self._orbit[self._member], wanted)
        owner, member = self._owner[taken], self._member[taken]
        links = len(self.topology.links)
        for perms in itertools.islice(_subgroups(self.group), _MAX_SUBGROUPS):
            label = link_orbits(self.topology, perms)
            if len(np.unique(owner * links + label[member])) == len(owner):
                return self._of(perms, label)
        return self._of([], np.arange(links))

    def _of(self, perms: list[np.ndarray], link: np.ndarray) -> Representatives:
        first, label = np.unique(orbits(self.group.ranks, perms), return_inverse=True)
        return Representatives(
            ranks=tuple(first.tolist()),
            label=label.ravel(),
            link=link,
            capacity=capacity_orbits(self.topology, perms),
        )


def _subgroups(group: RegularGroup) -> Iterator[list[np.ndarray]]:
    """Subgroups that powers of the generators make, by index; last the trivial one."""
    powers: list[list[tuple[int, np.ndarray | None]]] = []
    for perm in group.generators:
        cycles = [perm]
        while not np.array_equal(cycles[-1], np.arange(group.ranks)):
            cycles.append(perm[cycles[-1]])
        order = len(cycles)
        made = [(k, cycles[k - 1]) for k in range(1, order) if order % k == 0]
        powers.append([*made, (order, None)])
    for choice in sorted(
        itertools.product(*powers), key=lambda some: float(np.prod([float(k) for k, _ in some]))
    ):
        yield [perm for _, perm in choice if perm is not None]
