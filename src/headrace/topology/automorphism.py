"""Check that a permutation of the ranks is an automorphism, with the reason if not."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from headrace.errors import SymmetryError
from headrace.topology.topology import SharedCapacity, Switch, Topology

Permutation = Sequence[int] | np.ndarray
"""Array: rank r maps to ``perm[r]``."""


def link_image(topology: Topology, perm: Permutation) -> np.ndarray:
    """Return the index of every link's image; -1 where there is none."""
    columns, ranks = topology.columns, topology.ranks
    there = np.asarray(perm, np.int64)
    keys = columns.src * ranks + columns.dst
    if not keys.size:
        return np.zeros(0, np.int64)
    order = np.argsort(keys)
    image_keys = there[columns.src] * ranks + there[columns.dst]
    place = np.minimum(np.searchsorted(keys[order], image_keys), len(keys) - 1)
    links = order[place]
    return np.where(keys[links] == image_keys, links, -1)


def is_automorphism(
    topology: Topology, perm: Permutation, *, hosts: bool = False, tolerance: float = 0.0
) -> str | None:
    """Return None if `perm` is an automorphism, else the reason why not, naming the link.

    Links must map to links of equal alpha and beta (within a relative `tolerance`), shared
    capacities to shared capacities of equal beta, switches to equal switches; with `hosts` ranks
    of one host to ranks of one host.
    """
    there = np.asarray(perm)
    ranks = topology.ranks
    if there.shape != (ranks,) or not np.array_equal(np.sort(there), np.arange(ranks)):
        return f"it is no permutation of the ranks 0 to {ranks - 1}"
    image = link_image(topology, there)
    return (
        _link_reason(topology, there, image, tolerance)
        or _member_reason(topology, image, tolerance)
        or (_host_reason(topology, there) if hosts else None)
    )


def require_automorphism(
    topology: Topology, perm: Permutation, name: str = "the permutation", *, hosts: bool = False
) -> None:
    """Raise SymmetryError, with the reason and the offending link, unless `perm` is one."""
    reason = is_automorphism(topology, perm, hosts=hosts)
    if reason is not None:
        raise SymmetryError(f"{name} is no automorphism of {topology.name}: {reason}")


def _link_reason(
    topology: Topology, there: np.ndarray, image: np.ndarray, tolerance: float
) -> str | None:
    if np.any(image < 0):
        index = int(np.argmax(image < 0))
        link = topology.links[index]
        return (
            f"links[{index}] ({link.src} -> {link.dst}) would go to {there[link.src]} -> "
            f"{there[link.dst]}, where there is no link"
        )
    for field in ("alpha_us", "beta_us_per_mb"):
        costs: np.ndarray = getattr(topology.columns, field)
        unlike = np.abs(costs[image] - costs) > tolerance * costs
        if np.any(unlike):
            index = int(np.argmax(unlike))
            link, image_link = topology.links[index], topology.links[image[index]]
            return (
                f"links[{index}] ({link.src} -> {link.dst}) has {field} {getattr(link, field)}, "
                f"the link it goes to ({image_link.src} -> {image_link.dst}) has "
                f"{getattr(image_link, field)}"
            )
    return None


def _member_reason(topology: Topology, image: np.ndarray, tolerance: float) -> str | None:
    for field, members in (("shared", topology.shared), ("switches", topology.switches)):
        targets: dict[bytes, list[float]] = {}
        for member in members:
            key = np.sort(np.array(member.links, np.int64)).tobytes()
            targets.setdefault(key, []).append(_mark(member))
        images: Counter[tuple[bytes, float]] = Counter()
        for index, member in enumerate(members):
            mapped = np.sort(image[np.array(member.links, np.int64)]) if member.links else image[:0]
            key = mapped.tobytes()
            mark = _mark(member)
            alike = [m for m in targets.get(key, ()) if abs(m - mark) <= tolerance * abs(mark)]
            images[key, mark] += 1
            if len(alike) >= images[key, mark]:
                continue
            link = topology.links[member.links[0]] if member.links else None
            where = f" (that of link {link.src} -> {link.dst})" if link else ""
            return (
                f"{field}[{index}] {member.name}{where} would go to links that no entry of "
                f"'{field}' alike has"
            )
    return None


def _mark(member: SharedCapacity | Switch) -> float:
    if isinstance(member, Switch):
        return float(member.multicast)
    return member.beta_us_per_mb


def _host_reason(topology: Topology, there: np.ndarray) -> str | None:
    host_of = np.array(topology.rank_host, np.int64)
    target = host_of[there]
    first: dict[int, int] = {}
    for rank, host in enumerate(topology.rank_host):
        first_rank = first.setdefault(host, rank)
        if target[rank] != target[first_rank]:
            return (
                f"ranks {first_rank} and {rank} of host {topology.hosts[host]} would go to "
                "different hosts"
            )
    return None
