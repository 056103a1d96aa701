"""Clusters of equal boxes: links inside each, NICs between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from headrace.errors import TopologyError
from headrace.topology.ports import by_direction
from headrace.topology.topology import Link, SharedCapacity, Switch, Topology

Inter = Literal["auto", "all", "rails"]
"""GPUs of different nodes that links join: all with all; GPU i with GPU i (rails)."""

ALL_UP_TO = 128
"""Ranks up to which `auto` means all pairs: their links grow with the square of the ranks."""


LocalLink = tuple[int, int, float, float]
"""(src, dst, alpha in us, beta in us/MB) of a link inside a node."""


MAX_LINKS = 4_000_000
"""More would take gigabytes: guards against mistyped numbers of nodes."""


LocalCapacity = tuple[str, tuple[int, ...], float]
"""(name, indices of local links, beta in us/MB) of a capacity that links inside a node share."""


class Nics(NamedTuple):
    """The NICs of a node.

    Attributes
    ----------
    of : NIC of every GPU, for its traffic to other nodes.
    betas : us/MB of every NIC, each way.
    alpha : us of a message to another node.
    """

    of: tuple[int, ...]
    betas: tuple[float, ...]
    alpha: float

    @classmethod
    def alike(cls, of: tuple[int, ...], beta: float, alpha: float) -> "Nics":
        """Return NICs of one rate."""
        return cls(of, (beta,) * (max(of) + 1), alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node, from which `cluster` makes any number.

    Attributes
    ----------
    name : of the kind of machine.
    gpus : ranks in a node.
    local : every link inside a node.
    capacities : those that links inside a node share.
    switches : those inside a node, their links as indices into `local`.
    nics : those to other nodes.
    """

    name: str
    gpus: int
    local: tuple[LocalLink, ...]
    nics: Nics
    capacities: tuple[LocalCapacity, ...] = ()
    switches: tuple[Switch, ...] = ()


def full_mesh(gpus: int, alpha: float, beta: float) -> tuple[LocalLink, ...]:
    """Return a link of equal cost between any two of `gpus`."""
    return tuple((s, d, alpha, beta) for s in range(gpus) for d in range(gpus) if s != d)


def both_ways(pairs: Iterable[tuple[int, int]], alpha: float, beta: float) -> list[LocalLink]:
    """Return a link each way for every pair."""
    return [(s, d, alpha, beta) for a, b in pairs for s, d in ((a, b), (b, a))]


def gpu_ports(
    local: Sequence[LocalLink], betas: Sequence[float], name: str = "port", first: int = 0
) -> tuple[LocalCapacity, ...]:
    """Return every GPU's port into a switch, one out and one in, that its local links share.

    `betas` are by GPU; `first` is the index of the first of the links among those of the node.
    """
    ends = np.array([(s, d) for s, d, _, _ in local], np.int64).reshape(-1, 2)
    links = np.arange(first, first + len(local))
    return tuple(
        (f"{name}-{direction}-{gpu}", mine, betas[gpu])
        for gpu, direction, mine in by_direction(ends[:, 0], ends[:, 1], len(betas), links)
    )


def cluster(box: Box, nodes: int, inter: Inter = "auto") -> Topology:
    """Return `nodes` boxes: rank r is GPU r mod gpus of node r // gpus.

    NIC traffic uses the NICs alone: it crosses neither links nor switch ports inside a node.
    Links between nodes follow those inside, ordered by source and destination.

    Raises
    ------
    TopologyError : if `nodes` is below one or `inter` is unknown.
    """
    if nodes < 1:
        raise TopologyError(f"nodes is {nodes}, needs at least 1")
    if inter not in ("auto", "all", "rails"):
        raise TopologyError(f"inter is {inter!r}, needs 'auto', 'all' or 'rails'")
    ranks = nodes * box.gpus
    _check_size(box, nodes, inter)
    local = [
        Link(src=base + s, dst=base + d, alpha_us=alpha, beta_us_per_mb=beta)
        for base in range(0, ranks, box.gpus)
        for s, d, alpha, beta in box.local
    ]
    pairs = remote_pairs(ranks, box.gpus, inter) if nodes > 1 else np.zeros((0, 2), np.int64)
    betas = [box.nics.betas[nic] for nic in box.nics.of]
    remote = [
        Link(
            src=s,
            dst=d,
            alpha_us=box.nics.alpha,
            beta_us_per_mb=max(betas[s % box.gpus], betas[d % box.gpus]),
        )
        for s, d in pairs.tolist()
    ]
    shared = (*_capacities(box, nodes), *_nics(box, nodes, pairs, len(local)))
    return Topology(
        name=f"{box.name}-x{nodes}",
        hosts=tuple(f"node{i}" for i in range(nodes)),
        rank_host=tuple(rank // box.gpus for rank in range(ranks)),
        links=(*local, *remote),
        shared=shared,
        switches=_switches(box, nodes, len(local), len(remote)),
    )


def _check_size(box: Box, nodes: int, inter: Inter) -> None:
    ranks = nodes * box.gpus
    apart = ranks * (nodes - 1) * (1 if _rails(inter, ranks) else box.gpus)
    if apart + nodes * len(box.local) > MAX_LINKS:
        raise TopologyError(
            f"nodes is {nodes}: {ranks} ranks have {apart} links between nodes, at most "
            f"{MAX_LINKS} in all are allowed, needs fewer nodes or inter='rails'"
        )


def _rails(inter: Inter, ranks: int) -> bool:
    return inter == "rails" or (inter == "auto" and ranks > ALL_UP_TO)


def remote_pairs(ranks: int, gpus: int, inter: Inter) -> np.ndarray:
    """Return the (src, dst) of every link between nodes, int64 (links, 2)."""
    if _rails(inter, ranks):
        nodes = np.arange(ranks // gpus)
        src = np.repeat(np.arange(ranks), len(nodes))
        dst = (nodes[None, :] * gpus + (np.arange(ranks) % gpus)[:, None]).ravel()
    else:
        src, dst = np.repeat(np.arange(ranks), ranks), np.tile(np.arange(ranks), ranks)
    apart = src // gpus != dst // gpus
    return np.stack([src[apart], dst[apart]], axis=1)


def _capacities(box: Box, nodes: int) -> list[SharedCapacity]:
    return [
        SharedCapacity(
            name=f"node{node}-{name}",
            links=tuple(node * len(box.local) + link for link in links),
            beta_us_per_mb=beta,
        )
        for node in range(nodes)
        for name, links, beta in box.capacities
    ]


def _nics(box: Box, nodes: int, pairs: np.ndarray, first: int) -> list[SharedCapacity]:
    if nodes == 1:
        return []
    nics = len(box.nics.betas)
    of_rank = (np.arange(nodes)[:, None] * nics + np.array(box.nics.of)[None, :]).ravel()
    src, dst = of_rank[pairs].T
    return [
        SharedCapacity(
            name=f"node{nic // nics}-nic-{direction}-{nic % nics}",
            links=mine,
            beta_us_per_mb=box.nics.betas[nic % nics],
        )
        for nic, direction, mine in by_direction(
            src, dst, nodes * nics, np.arange(first, first + len(pairs))
        )
    ]


def _switches(box: Box, nodes: int, local: int, remote: int) -> tuple[Switch, ...]:
    size = local // nodes
    inside = [
        Switch(
            name=f"node{node}-{switch.name}",
            links=tuple(node * size + link for link in switch.links),
            multicast=switch.multicast,
        )
        for node in range(nodes)
        for switch in box.switches
    ]
    if remote:
        inside.append(Switch(name="network", links=tuple(range(local, local + remote))))
    return tuple(inside)
