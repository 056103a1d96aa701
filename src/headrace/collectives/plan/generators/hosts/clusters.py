"""Clusters of equal hosts, for `hierarchy`: the topology inside hosts, the rails between them."""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.resources import slowest_betas
from headrace.topology import Topology
from headrace.topology.transforms import restricted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostTopology:
    """One host: its ranks and the subgraph that they induce.

    Attributes
    ----------
    ranks : its ranks, ascending; position k is its k-th GPU.
    inside : the topology of these alone, its ranks numbered by position.
    """

    ranks: tuple[int, ...]
    inside: Topology


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rail:
    """A NIC of every host, and the GPU of each that sends and receives there.

    Attributes
    ----------
    gpu : position of that GPU in every host.
    served : positions of the GPUs that use this NIC.
    alpha_us, beta_us_per_mb : the largest of a message between any two hosts.
    """

    gpu: int
    served: tuple[int, ...]
    alpha_us: float
    beta_us_per_mb: float


def hosts_of(topology: Topology) -> tuple[HostTopology, ...]:
    """Return the hosts.

    Raises
    ------
    ProgramError : if there is only one, or they are of different sizes.
    """
    members: dict[int, list[int]] = {}
    for rank, host in enumerate(topology.rank_host):
        members.setdefault(host, []).append(rank)
    sizes = sorted({len(ranks) for ranks in members.values()})
    if len(members) < 2:
        raise ProgramError("all ranks are on one host: there is no level above it")
    if len(sizes) > 1:
        raise ProgramError(f"hosts have {sizes} ranks; needs hosts of equal size")
    return tuple(
        HostTopology(
            ranks=tuple(ranks),
            inside=restricted(topology, ranks, f"{topology.name}, ranks {ranks[0]}.."),
        )
        for ranks in members.values()
    )


def rails_of(topology: Topology, hosts: tuple[HostTopology, ...]) -> tuple[Rail, ...]:
    """Return the rails: GPUs that share capacities out of or into the host are on one.

    A rail on which no GPU has links to and from its counterpart on every other host is left out.

    Raises
    ------
    ProgramError : if hosts pair GPUs with NICs in different ways, or no rail is left.
    """
    first = _partition(topology, hosts[0])
    for host in hosts[1:]:
        if _partition(topology, host) != first:
            raise ProgramError("hosts share their NICs among GPUs in different ways")
    found = [rail for served in first if (rail := _rail(topology, hosts, served)) is not None]
    if not found:
        raise ProgramError(
            "no GPU of a host has links to and from its counterpart on all other hosts, needs one"
        )
    return tuple(found)


def _partition(topology: Topology, host: HostTopology) -> tuple[tuple[int, ...], ...]:
    """Positions of GPUs, grouped by shared capacities out of or into the host."""
    here = np.zeros(topology.ranks, dtype=bool)
    here[list(host.ranks)] = True
    place = {rank: k for k, rank in enumerate(host.ranks)}
    mark = list(range(len(host.ranks)))
    columns = topology.columns
    for shared in topology.shared:
        links = np.array(shared.links, dtype=np.int64)
        for ends, others in ((columns.src, columns.dst), (columns.dst, columns.src)):
            near, far = ends[links], others[links]
            # A capacity of a host's own NIC joins few GPUs here to many there.
            ours = here[near].all() and np.unique(near).size <= np.unique(far).size
            out = here[near] & ~here[far]
            if not ours or not out.any():
                continue
            using = sorted({place[rank] for rank in near[out].tolist()})
            joined = {mark[k] for k in using}
            mark = [min(joined) if m in joined else m for m in mark]
    groups: dict[int, list[int]] = {}
    for k, m in enumerate(mark):
        groups.setdefault(m, []).append(k)
    return tuple(tuple(group) for group in groups.values())


def _rail(
    topology: Topology, hosts: tuple[HostTopology, ...], served: tuple[int, ...]
) -> Rail | None:
    """The GPU of those served with the fastest multicast inside."""
    index = topology.link_index
    beta_of = slowest_betas(topology)
    options: list[tuple[float, int, float, float]] = []
    for gpu in served:
        ends = [host.ranks[gpu] for host in hosts]
        links = [index.get((s, d), -1) for s in ends for d in ends if s != d]
        if min(links) < 0:
            continue
        inside = max(_slowness(host.inside, gpu) for host in hosts)
        alpha = max(topology.links[k].alpha_us for k in links)
        options.append((inside, gpu, alpha, float(beta_of[links].max())))
    if not options:
        return None
    _, gpu, alpha, beta = min(options)
    return Rail(gpu=gpu, served=served, alpha_us=alpha, beta_us_per_mb=beta)


def _slowness(inside: Topology, gpu: int) -> float:
    """Inverse of the smaller of a GPU's total rates out and in."""
    out = sum(1.0 / link.beta_us_per_mb for link in inside.links if link.src == gpu)
    into = sum(1.0 / link.beta_us_per_mb for link in inside.links if link.dst == gpu)
    return 1.0 / min(out, into) if min(out, into) > 0 else float("inf")
