"""Regular permutation groups (simply transitive on the ranks), from a few generators."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.errors import SymmetryError
from headrace.topology import Topology
from headrace.topology.symmetry import orbits, translations


@dataclass(frozen=True, kw_only=True, eq=False)
class RegularGroup:
    """A regular permutation group of the ranks: element x alone takes rank 0 to rank x.

    Attributes
    ----------
    generators : (k, ranks) int32.
    """

    generators: np.ndarray

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.generators.shape[1]

    def element(self, rank: int) -> np.ndarray:
        """Return the permutation that takes rank 0 to `rank`, int32."""
        parent, by = self._words
        word: list[int] = []
        while rank:
            word.append(int(by[rank]))
            rank = int(parent[rank])
        made = np.arange(self.ranks, dtype=np.int32)
        for index in reversed(word):
            made = self.generators[index][made]
        return made

    @cached_property
    def table(self) -> np.ndarray:
        """Every element, int32 (ranks, ranks); for groups of a few thousand."""
        parent, by = self._words
        made = np.empty((self.ranks, self.ranks), dtype=np.int32)
        made[0] = np.arange(self.ranks)
        for rank in self._order[1:]:
            made[rank] = self.generators[by[rank]][made[parent[rank]]]
        return made

    @cached_property
    def _order(self) -> list[int]:
        seen, queue = {0}, [0]
        for rank in queue:  # grows during iteration
            for image in self.generators[:, rank].tolist():
                if image not in seen:
                    seen.add(image)
                    queue.append(image)
        if len(queue) < self.ranks:
            raise SymmetryError(
                f"the generators reach {len(queue)} of {self.ranks} ranks from rank 0, needs all"
            )
        return queue

    @cached_property
    def _words(self) -> tuple[np.ndarray, np.ndarray]:
        """For every rank its parent and the generator from there to it (a Schreier tree)."""
        parent = np.full(self.ranks, -1, dtype=np.int64)
        by = np.full(self.ranks, -1, dtype=np.int64)
        parent[0] = 0
        for rank in self._order:
            for index, image in enumerate(self.generators[:, rank].tolist()):
                if parent[image] < 0:
                    parent[image], by[image] = rank, index
        return parent, by

    def subgroup(self, members: list[int]) -> np.ndarray:
        """Return the orbit of rank 0 under the subgroup that elements `members` generate, bool."""
        inside = np.zeros(self.ranks, dtype=bool)
        inside[0] = True
        perms = [self.element(rank) for rank in members]
        front = np.array([0])
        while perms and len(front):
            reached = np.unique(np.concatenate([perm[front] for perm in perms]))
            front = reached[~inside[reached]]
            inside[front] = True
        return inside

    def seen_alike(self, members: list[int]) -> np.ndarray:
        """Return for every rank the lowest of its orbit under the elements of `members`.

        To the ranks that these elements join (of one host, say) ranks of one number are one rank.
        """
        return orbits(self.ranks, [self.element(rank) for rank in members])


def group_of(topology: Topology) -> RegularGroup:
    """Return a group of automorphisms of `topology` that takes every rank to every other.

    Raises
    ------
    SymmetryError : if none is found.
    """
    table = translations(topology)
    if table is None:
        raise SymmetryError(
            f"topology '{topology.name}' has no group of rotations that takes every rank to every "
            "other; needs a ring, a torus, a cluster of equal switched hosts or the like"
        )
    return RegularGroup(generators=_generators(table))


def _generators(table: np.ndarray) -> np.ndarray:
    """A few rows of `table` that generate it, each the first not in the subgroup of the others."""
    ranks = len(table)
    inside = np.zeros(ranks, dtype=bool)
    inside[0] = True
    chosen: list[int] = []
    while not inside.all():
        chosen.append(int(np.argmin(inside)))
        front = np.flatnonzero(inside)
        while len(front):
            reached = np.unique(np.concatenate([table[rank][front] for rank in chosen]))
            front = reached[~inside[reached]]
            inside[front] = True
    return np.ascontiguousarray(table[chosen], dtype=np.int32).reshape(len(chosen), ranks)
