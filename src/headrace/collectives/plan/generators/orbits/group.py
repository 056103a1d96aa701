"""Regular permutation groups (simply transitive on the ranks), and what they make alike.

Links and shared capacities of a symmetric topology need to be looked at once for each orbit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.errors import SymmetryError
from headrace.topology import Topology
from headrace.topology.automorphism import link_image, require_automorphism
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
        word: list[int] = []
        while rank:
            rank, by = self._tree[rank]
            word.append(by)
        permutation = np.arange(self.ranks, dtype=np.int32)
        for index in reversed(word):
            permutation = self.generators[index][permutation]
        return permutation

    @cached_property
    def table(self) -> np.ndarray:
        """Every element, int32 (ranks, ranks); for groups of a few thousand."""
        permutations = np.empty((self.ranks, self.ranks), dtype=np.int32)
        permutations[0] = np.arange(self.ranks)
        for rank, (parent, by) in self._tree.items():
            if rank:
                permutations[rank] = self.generators[by][permutations[parent]]
        return permutations

    @cached_property
    def _tree(self) -> dict[int, tuple[int, int]]:
        """For every rank, parents first, its parent and the generator from there to it.

        A Schreier tree; rank 0 is its own parent.
        """
        tree, queue = {0: (0, -1)}, [0]
        for rank in queue:  # grows during iteration
            for index, image in enumerate(self.generators[:, rank].tolist()):
                if image not in tree:
                    tree[image] = rank, index
                    queue.append(image)
        if len(tree) < self.ranks:
            raise SymmetryError(
                f"the generators reach {len(tree)} of {self.ranks} ranks from rank 0, needs all"
            )
        return tree

    def seen_alike(self, members: list[int]) -> np.ndarray:
        """Return for every rank the lowest of its orbit under the elements of `members`.

        To the ranks that these elements join (of one host, say) ranks of one number are one rank;
        number 0 are the ranks that they join to rank 0.
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
    generators: list[int] = []
    while (label := orbits(ranks, table[generators])).any():
        generators.append(int(np.argmax(label > 0)))
    return np.ascontiguousarray(table[generators], dtype=np.int32).reshape(len(generators), ranks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkClasses:
    """Links out of rank 0, and so out of every rank, and the capacities that they share.

    Attributes
    ----------
    dst : (classes,) int64, the receivers of rank 0's links; class k is the link to ``dst[k]``.
    alpha_us : (classes,) float64, of the link itself.
    held : (classes, ranks) int32: the block named e by the receiver of class k is named
        ``held[k, e]`` by the sender.
    uses : (resources, classes) float64, us that a resource is busy for every MB that each rank
        sends over the class; the first resources are the links themselves.
    times : (resources, classes) int64, number of links of the class at a resource.
    """

    dst: np.ndarray
    alpha_us: np.ndarray
    held: np.ndarray
    uses: np.ndarray
    times: np.ndarray

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.dst)


def require_symmetry(topology: Topology, generators: np.ndarray) -> None:
    """Raise SymmetryError unless every generator is an automorphism of the topology's costs."""
    if generators.shape[1] != topology.ranks:
        raise SymmetryError(
            f"the group permutes {generators.shape[1]} ranks, topology '{topology.name}' has "
            f"{topology.ranks}: needs the same number"
        )
    for index, perm in enumerate(generators):
        require_automorphism(topology, perm, f"generators[{index}]")


def link_classes(topology: Topology, group: RegularGroup) -> LinkClasses:
    """Return the classes of links; `group` must be of automorphisms (`require_symmetry`)."""
    columns = topology.columns
    link = np.flatnonzero(columns.src == 0)
    link = link[np.argsort(columns.dst[link])]
    label = link_orbits(topology, group.generators)
    uses, times = [np.diag(columns.beta_us_per_mb[link])], [np.eye(len(link), dtype=np.int64)]
    orbit = capacity_orbits(topology, group.generators)
    for shared in np.unique(orbit).tolist():
        members = np.array(topology.shared[shared].links, dtype=np.int64)
        row = (label[members][None, :] == label[link][:, None]).sum(axis=1)
        if row.any():
            times.append(row[None, :])
            uses.append(row[None, :] * topology.shared[shared].beta_us_per_mb)
    dst = columns.dst[link]
    return LinkClasses(
        dst=dst,
        alpha_us=columns.alpha_us[link],
        held=np.array([group.element(rank) for rank in dst.tolist()], dtype=np.int32).reshape(
            len(dst), topology.ranks
        ),
        uses=np.concatenate(uses),
        times=np.concatenate(times),
    )


def link_orbits(topology: Topology, perms: Iterable[np.ndarray]) -> np.ndarray:
    """Return for every link the lowest index that `perms` take it to, int64."""
    return orbits(len(topology.links), [link_image(topology, perm) for perm in perms])


def capacity_orbits(topology: Topology, perms: Iterable[np.ndarray]) -> np.ndarray:
    """Return for every shared capacity the lowest index that `perms` take it to, int64."""
    members = [np.array(shared.links, dtype=np.int64) for shared in topology.shared]
    capacities_of: dict[tuple[bytes, float], list[int]] = {}
    for index, links in enumerate(members):
        key = (np.sort(links).tobytes(), topology.shared[index].beta_us_per_mb)
        capacities_of.setdefault(key, []).append(index)
    images: list[np.ndarray] = []
    for perm in perms:
        image = link_image(topology, perm)
        taken = dict.fromkeys(capacities_of, 0)
        moved = np.empty(len(members), dtype=np.int64)
        for index, links in enumerate(members):
            key = (np.sort(image[links]).tobytes(), topology.shared[index].beta_us_per_mb)
            moved[index] = capacities_of[key][taken[key]]
            taken[key] += 1
        images.append(moved)
    return orbits(len(members), images)
