"""Links and shared capacities of a symmetric topology, one for each orbit of them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.errors import SymmetryError
from headrace.topology import Topology
from headrace.topology.automorphism import link_image, require_automorphism
from headrace.topology.symmetry import orbits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkClasses:
    """Links out of rank 0, and so out of every rank, and the capacities that they share.

    Attributes
    ----------
    dst : (classes,) int64, the receivers of rank 0's links; class k is the link to ``dst[k]``.
    link : (classes,) int64, their indices in the topology.
    alpha_us, beta_us_per_mb : (classes,) float64, of the link itself.
    held : (classes, ranks) int32: the block named e by the receiver of class k is named
        ``held[k, e]`` by the sender.
    uses : (resources, classes) float64, us that a resource is busy for every MB that each rank
        sends over the class; the first resources are the links themselves.
    times : (resources, classes) int64, number of links of the class at a resource.
    """

    dst: np.ndarray
    link: np.ndarray
    alpha_us: np.ndarray
    beta_us_per_mb: np.ndarray
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
    betas = columns.beta_us_per_mb[link]
    uses, times = [np.diag(betas)], [np.eye(len(link), dtype=np.int64)]
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
        link=link,
        alpha_us=columns.alpha_us[link],
        beta_us_per_mb=betas,
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
    known: dict[tuple[bytes, float], list[int]] = {}
    for index, links in enumerate(members):
        key = (np.sort(links).tobytes(), topology.shared[index].beta_us_per_mb)
        known.setdefault(key, []).append(index)
    images: list[np.ndarray] = []
    for perm in perms:
        image = link_image(topology, perm)
        taken = dict.fromkeys(known, 0)
        moved = np.empty(len(members), dtype=np.int64)
        for index, links in enumerate(members):
            key = (np.sort(image[links]).tobytes(), topology.shared[index].beta_us_per_mb)
            moved[index] = known[key][taken[key]]
            taken[key] += 1
        images.append(moved)
    return orbits(len(members), images)
