"""Clusters of equal boxes: links inside each, NICs between them."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.errors import TopologyError
from headrace.topology.topology import Link, SharedCapacity, Switch, Topology

Inter = Literal["auto", "all", "rails"]
"""GPUs of different nodes that links join: all with all; GPU i with GPU i (rails)."""

ALL_UP_TO = 128
"""Ranks up to which `auto` means all pairs: their links grow with the square of the ranks."""


LocalLink = tuple[int, int, float, float]
"""(src, dst, alpha in us, beta in us/MB) of a link inside a node."""


MAX_LINKS = 4_000_000
"""More would take gigabytes: guards against mistyped numbers of nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node, from which `cluster` makes any number.

    Attributes
    ----------
    name : of the kind of machine.
    gpus : ranks in a node.
    local : every link inside a node.
    capacities : (name, indices into `local`, beta in us/MB) that links inside a node share.
    switches : those inside a node, their links as indices into `local`.
    nic_of : NIC of every GPU, for its traffic to other nodes.
    nic_betas : us/MB of every NIC, each way.
    remote_alpha : us of a message to another node.
    """

    name: str
    gpus: int
    local: tuple[LocalLink, ...]
    capacities: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    switches: tuple[Switch, ...] = ()
    nic_of: tuple[int, ...]
    nic_betas: tuple[float, ...]
    remote_alpha: float


def full_mesh(gpus: int, alpha: float, beta: float) -> tuple[LocalLink, ...]:
    """Return a link of equal cost between any two of `gpus`."""
    return tuple((s, d, alpha, beta) for s in range(gpus) for d in range(gpus) if s != d)


def both_ways(pairs: Iterable[tuple[int, int]], alpha: float, beta: float) -> list[LocalLink]:
    """Return a link each way for every pair."""
    return [(s, d, alpha, beta) for a, b in pairs for s, d in ((a, b), (b, a))]


def gpu_ports(
    local: tuple[LocalLink, ...], gpus: int, beta: float, name: str = "port"
) -> tuple[tuple[str, tuple[int, ...], float], ...]:
    """Return every GPU's port into a switch, one out and one in, that its local links share."""
    ends = np.array([(s, d) for s, d, _, _ in local], np.int64).reshape(-1, 2)
    out, into = members(ends[:, 0], gpus), members(ends[:, 1], gpus)
    return tuple(
        (f"{name}-{way}-{gpu}", links[gpu], beta)
        for gpu in range(gpus)
        for way, links in (("out", out), ("in", into))
        if links[gpu]
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
    betas = [box.nic_betas[nic] for nic in box.nic_of]
    remote = [
        Link(
            src=s,
            dst=d,
            alpha_us=box.remote_alpha,
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


def members(keys: np.ndarray, count: int, items: np.ndarray | None = None) -> list[tuple[int, ...]]:
    """Return the `items` (default: the indices) of every key 0 to count - 1."""
    order = np.argsort(keys, kind="stable")
    ends = np.searchsorted(keys[order], np.arange(count + 1))
    sorted_items = order if items is None else items[order]
    return [
        tuple(sorted_items[low:high].tolist()) for low, high in itertools.pairwise(ends.tolist())
    ]


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
    nics = len(box.nic_betas)
    of_rank = (np.arange(nodes)[:, None] * nics + np.array(box.nic_of)[None, :]).ravel()
    links = np.arange(first, first + len(pairs))
    out = members(of_rank[pairs[:, 0]], nodes * nics, links)
    into = members(of_rank[pairs[:, 1]], nodes * nics, links)
    return [
        SharedCapacity(
            name=f"node{nic // nics}-nic-{way}-{nic % nics}",
            links=mine,
            beta_us_per_mb=box.nic_betas[nic % nics],
        )
        for nic in range(nodes * nics)
        for way, mine in (("out", out[nic]), ("in", into[nic]))
        if mine
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
