"""Search for a topology's automorphisms by colour refinement and backtracking.

Ranks get colours that are invariant under automorphisms, from the costs of the links between each
pair and the capacities the two use together; individualizing ranks one after the other and refining
again leaves few choices. For every fixed rank and each rank of its colour the search is for one
automorphism from the one to the other: these generate the whole group, and the sizes of the orbits
multiply to its order (the orbit-stabilizer theorem).
"""

from dataclasses import dataclass

import numpy as np

from headrace.errors import SymmetryError
from headrace.topology.automorphism import is_automorphism
from headrace.topology.topology import Topology


def automorphism_generators(
    topology: Topology, effort: int = 1_000_000_000
) -> tuple[list[np.ndarray], int]:
    """Return generators of the group of all automorphisms, int32 (ranks,) each, and its order.

    Without generators the identity is the only one. `effort` limits the pairs of ranks visited
    (the default takes some ten seconds; 64 ranks need a small part of it).

    Raises
    ------
    SymmetryError : if the search took more than `effort`.
    """
    return _Search(topology, effort).run()


@dataclass(slots=True)
class _Level:
    """A fixed rank: all colours before it was fixed, and the ranks of its colour."""

    rank: int
    before: np.ndarray
    cell: list[int]


class _Search:
    def __init__(self, topology: Topology, effort: int) -> None:
        self._topology = topology
        self._relation = _relation(topology)
        self._effort = effort
        self._levels: list[_Level] = []
        colours = self._refined(_start(self._relation))
        while len(np.unique(colours)) < topology.ranks:
            cell = _smallest_cell(colours)
            self._levels.append(_Level(rank=cell[0], before=colours, cell=cell))
            colours = self._fixed(colours, cell[0], len(self._levels))
        self._last = colours

    def run(self) -> tuple[list[np.ndarray], int]:
        generators: list[np.ndarray] = []
        order = 1
        for depth in reversed(range(len(self._levels))):
            level = self._levels[depth]
            # Generators found so far fix the ranks of all levels above: they act on this cell.
            reached = _orbit(level.rank, generators)
            failed: set[int] = set()
            for candidate in level.cell:
                if candidate in reached or candidate in failed:
                    continue
                automorphism = self._leaf(depth, self._fixed(level.before, candidate, depth + 1))
                if automorphism is None:
                    failed |= _orbit(candidate, generators)
                else:
                    generators.append(automorphism)
                    reached = _orbit(level.rank, generators)
            order *= len(reached)
        return generators, order

    def _leaf(self, depth: int, colours: np.ndarray) -> np.ndarray | None:
        """Return an automorphism that maps the levels up to `depth` to those fixed in `colours`."""
        ours = self._levels[depth + 1].before if depth + 1 < len(self._levels) else self._last
        if not np.array_equal(np.sort(ours), np.sort(colours)):
            return None
        if depth + 1 == len(self._levels):
            return self._checked(ours, colours)
        following = self._levels[depth + 1]
        for candidate in np.flatnonzero(colours == ours[following.rank]).tolist():
            automorphism = self._leaf(depth + 1, self._fixed(colours, candidate, depth + 2))
            if automorphism is not None:
                return automorphism
        return None

    def _checked(self, ours: np.ndarray, colours: np.ndarray) -> np.ndarray | None:
        perm = np.empty(len(ours), np.int32)
        perm[np.argsort(ours)] = np.argsort(colours)
        return perm if is_automorphism(self._topology, perm) is None else None

    def _fixed(self, colours: np.ndarray, rank: int, depth: int) -> np.ndarray:
        alone = colours.copy()
        alone[rank] = _scrambled(alone[rank : rank + 1] + np.uint64(depth))[0]
        return self._refined(alone)

    def _refined(self, colours: np.ndarray) -> np.ndarray:
        """Refine until no cell splits: each colour becomes a hash of itself and all others."""
        cells = len(np.unique(colours))
        while True:
            self._effort -= colours.size**2
            if self._effort < 0:
                raise SymmetryError(
                    f"{self._topology.name}: the search for automorphisms took too many steps, "
                    "needs a higher effort, or the symmetries given as offsets"
                )
            seen = _scrambled(self._relation + colours[None, :]).sum(axis=1, dtype=np.uint64)
            colours = _scrambled(colours * np.uint64(3) + seen)
            now = len(np.unique(colours))
            if now == cells:
                return colours
            cells = now


def _relation(topology: Topology) -> np.ndarray:
    """Return an invariant of every pair of ranks under automorphisms, uint64 (ranks, ranks).

    A hash of the costs of the two links between them and of the capacities and switches that both
    of them use, each by its beta, its size and the roles of the two.
    """
    ranks, columns = topology.ranks, topology.columns
    colours = np.zeros((ranks, ranks), np.uint64)
    costs = np.stack([columns.alpha_us, columns.beta_us_per_mb], axis=1)
    _, kind = np.unique(costs, axis=0, return_inverse=True)
    kind = kind.reshape(-1).astype(np.uint64) + np.uint64(1)
    colours[columns.src, columns.dst] += _scrambled(kind)
    colours[columns.dst, columns.src] += _scrambled(kind + np.uint64(1 << 32))
    marks = [(0, s.beta_us_per_mb, s.links) for s in topology.shared]
    marks += [(1, float(s.multicast), s.links) for s in topology.switches]
    kinds = {mark: i for i, mark in enumerate(sorted({(*m[:2], len(m[2])) for m in marks}))}
    for what, mark, links in marks:
        members = np.array(links, np.int64)
        used = np.zeros((2, ranks), np.uint64)
        np.add.at(used[0], columns.src[members], np.uint64(1))
        np.add.at(used[1], columns.dst[members], np.uint64(1))
        touched = np.flatnonzero(used.any(axis=0))
        role = _scrambled(used[0, touched] * np.uint64(ranks + 1) + used[1, touched])
        tag = np.uint64(kinds[what, mark, len(links)] + 1)
        pair = _scrambled(_scrambled(role + tag)[:, None] + role[None, :])
        colours[np.ix_(touched, touched)] += pair
    return colours


def _start(relation: np.ndarray) -> np.ndarray:
    return _scrambled(np.diagonal(relation).copy())


def _scrambled(values: np.ndarray) -> np.ndarray:
    """Return a hash of 64 bits (finalizer of splitmix64: xor-shifts and odd multipliers).

    A collision of two colours only weakens the pruning: results are checked.
    """
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _smallest_cell(colours: np.ndarray) -> list[int]:
    """Return the smallest class of ranks of equal colour that has several, by lowest rank."""
    _, first, inverse, counts = np.unique(
        colours, return_index=True, return_inverse=True, return_counts=True
    )
    several = np.flatnonzero(counts > 1)
    cell = several[np.lexsort((first[several], counts[several]))[0]]
    return np.flatnonzero(inverse == cell).tolist()


def _orbit(rank: int, generators: list[np.ndarray]) -> set[int]:
    reached, open_ = {rank}, [rank]
    while open_:
        at = open_.pop()
        for perm in generators:
            image = int(perm[at])
            if image not in reached:
                reached.add(image)
                open_.append(image)
    return reached
