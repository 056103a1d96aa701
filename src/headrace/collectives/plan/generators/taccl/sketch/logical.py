"""A sketch applied to a topology: the logical topology that synthesis works on (TACCL 5.4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.errors import SketchError
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    AUTO_BYTES,
    Internode,
    Policy,
    Sketch,
    Strategy,
)
from headrace.collectives.plan.generators.taccl.sketch.symmetry import RankSymmetry, rank_symmetry
from headrace.topology import Link, SharedCapacity, Topology, subgraph, transposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperedge:
    """A switch, represented by direct links, of which an algorithm uses some.

    Attributes
    ----------
    links : indices into the logical topology's links.
    """

    name: str
    links: tuple[int, ...]
    policy: Policy

    def chosen(self, chunk_bytes: float) -> Policy:
        """Return the policy for chunks of this size (5.4.2: above 1 MB `uc-min`)."""
        if self.policy is not Policy.AUTO:
            return self.policy
        return Policy.MIN if chunk_bytes > AUTO_BYTES else Policy.MAX


@dataclass(frozen=True, kw_only=True, eq=False)
class LogicalTopology:
    """Logical topology of a sketch: the links that it keeps, and its constraints on algorithms.

    Attributes
    ----------
    topology : links that the sketch keeps, with the capacities that they share.
    physical : the topology that the sketch was applied to; costs there are not split.
    hyperedges : the sketch's switches.
    strategy : objective on loads within nodes.
    symmetries : automorphisms that algorithms must follow.
    sender : for every rank, the one that sends its chunks out of the node; -1: any.
    relay_end : for every link, the end that is the sender in the sketch's sense.
    enforce_ordering : a sender's own chunks leave first.
    """

    topology: Topology
    physical: Topology
    hyperedges: tuple[Hyperedge, ...] = ()
    strategy: Strategy = Strategy.NONE
    symmetries: tuple[RankSymmetry, ...] = ()
    sender: tuple[int, ...]
    relay_end: tuple[int, ...]
    enforce_ordering: bool = False

    @property
    def crossing(self) -> np.ndarray:
        """(links,) bool: whether the link joins two nodes."""
        host = self.topology.rank_host
        return np.array([host[k.src] != host[k.dst] for k in self.topology.links], bool)

    def usable(self, origin: int) -> np.ndarray:
        """(links,) bool: links for chunks of `origin`, which leave its node by its sender only."""
        sender = self.sender[origin]
        usable_links = np.ones(len(self.topology.links), bool)
        if sender < 0:
            return usable_links
        host, local = self.topology.rank_host, _local_index(self.topology)
        for index in np.flatnonzero(self.crossing).tolist():
            link = self.topology.links[index]
            if host[link.src] == host[origin]:
                usable_links[index] = local[self.relay_end[index]] == local[sender]
        return usable_links

    def transposed(self) -> "LogicalTopology":
        """Return it with every link reversed, on which combining is planned (5.7)."""
        return replace(self, topology=transposed(self.topology), physical=transposed(self.physical))


def whole(topology: Topology) -> LogicalTopology:
    """Return the logical topology without a sketch, which has no constraints."""
    return LogicalTopology(
        topology=topology,
        physical=topology,
        sender=(-1,) * topology.ranks,
        relay_end=tuple(link.src for link in topology.links),
    )


def apply_sketch(sketch: Sketch, topology: Topology) -> LogicalTopology:
    """Apply `sketch` to `topology`.

    Raises
    ------
    SketchError : naming the field, if the sketch does not fit the topology; naming ranks and a
        removed link, if a rank is unreachable; naming the link without an image, if a symmetry is
        no automorphism.
    """
    nodes = _nodes(sketch, topology)
    local = _local_index(topology)
    link_kept = [_kept(sketch, topology.rank_host, local, link) for link in topology.links]
    logical = _subgraph(sketch, topology, link_kept)
    _check_reachable(sketch, topology, logical)
    hyperedges = _hyperedges(sketch, logical, nodes)
    logical = _with_ports(logical, hyperedges)
    internode = sketch.internode or Internode()
    return LogicalTopology(
        topology=logical,
        physical=topology,
        hyperedges=hyperedges,
        strategy=sketch.intranode.strategy,
        symmetries=tuple(
            rank_symmetry(logical, symmetry, f"{sketch.name}: symmetry {index}")
            for index, symmetry in enumerate(sketch.symmetries)
        ),
        sender=_senders(sketch, internode, topology, nodes),
        relay_end=tuple(link.src for link in logical.links),
        enforce_ordering=internode.enforce_ordering,
    )


def _nodes(sketch: Sketch, topology: Topology) -> list[list[int]]:
    """The ranks of every node, in order."""
    nodes: list[list[int]] = [[] for _ in topology.hosts]
    for rank, host in enumerate(topology.rank_host):
        nodes[host].append(rank)
    nodes = [node for node in nodes if node]
    if len(nodes) != sketch.nodes:
        raise SketchError(
            f"{sketch.name}: field 'nnodes' is {sketch.nodes}, topology '{topology.name}' has "
            f"{len(nodes)} nodes"
        )
    size = len(nodes[0])
    gpus = [gpu for switch in sketch.intranode.switches for gpu in switch]
    fields = [("intranode_sketch.switches", gpus)]
    if sketch.internode:
        conn = sketch.internode.connections
        if not isinstance(conn, str):
            ends = [*conn, *(dst for row in conn.values() for dst in row)]
            fields.append(("internode_sketch.internode_conn", ends))
        fields.append(("internode_sketch.beta_split", list(sketch.internode.beta_split)))
        senders = sketch.internode.senders
        ends = [*senders, *(gpu for row in senders.values() for gpu in row)]
        fields.append(("internode_sketch.gpus_to_sender_rev_map", ends))
    smallest = min(map(len, nodes))
    for name, indices in fields:
        if indices and max(indices) >= smallest:
            raise SketchError(
                f"{sketch.name}: field '{name}' names GPU {max(indices)}, nodes of topology "
                f"'{topology.name}' have {smallest if smallest < size else size}"
            )
    return nodes


def _local_index(topology: Topology) -> tuple[int, ...]:
    seen = [0] * len(topology.hosts)
    local: list[int] = []
    for host in topology.rank_host:
        local.append(seen[host])
        seen[host] += 1
    return tuple(local)


def _kept(sketch: Sketch, host: Sequence[int], local: Sequence[int], link: Link) -> bool:
    if host[link.src] == host[link.dst]:
        return True
    assert sketch.internode is not None  # more than one node
    conn = sketch.internode.connections
    if conn == "fully-connected":
        return True
    if conn == "direct-map":
        return local[link.src] == local[link.dst]
    assert not isinstance(conn, str)
    return local[link.dst] in conn.get(local[link.src], ())


def _subgraph(sketch: Sketch, topology: Topology, link_kept: Sequence[bool]) -> Topology:
    host, local = topology.rank_host, _local_index(topology)
    split = sketch.internode.beta_split if sketch.internode else {}
    logical = subgraph(
        topology, np.flatnonzero(link_kept).tolist(), f"{topology.name}/{sketch.name}"
    )

    def scaled(link: Link) -> Link:
        crosses = host[link.src] != host[link.dst]
        factor = split.get(local[link.src], 1.0) if crosses else 1.0
        return replace(link, beta_us_per_mb=link.beta_us_per_mb * factor)

    links = tuple(map(scaled, logical.links))
    if not split:
        return replace(logical, links=links)

    def divided(row: SharedCapacity) -> bool:
        """Return whether the split partitions the capacity: its links cannot exceed it together."""
        apart = all(links[at] != logical.links[at] for at in row.links)
        shares = sum(row.beta_us_per_mb / links[at].beta_us_per_mb for at in row.links)
        return apart and shares <= 1 + 1e-9

    shared = tuple(row for row in logical.shared if not divided(row))
    return replace(logical, links=links, shared=shared)


def _hyperedges(sketch: Sketch, logical: Topology, nodes: list[list[int]]) -> tuple[Hyperedge, ...]:
    hyperedges: list[Hyperedge] = []
    intranode = sketch.intranode
    for number, node in enumerate(nodes):
        rows = zip(intranode.switches, intranode.policies, strict=True)
        for index, (switch, policy) in enumerate(rows):
            ranks = {node[gpu] for gpu in switch}
            links = tuple(
                at
                for at, link in enumerate(logical.links)
                if link.src in ranks and link.dst in ranks
            )
            if links:
                hyperedges.append(
                    Hyperedge(name=f"switch-{number}-{index}", links=links, policy=policy)
                )
    return tuple(hyperedges)


def _with_ports(logical: Topology, hyperedges: tuple[Hyperedge, ...]) -> Topology:
    """Add switch ports that are not shared capacities of the topology yet (5.7, 5.8)."""
    capacity_links = [frozenset(row.links) for row in logical.shared]
    ports: list[SharedCapacity] = []
    for edge in hyperedges:
        for end in ("src", "dst"):
            for rank in range(logical.ranks):
                mine = [at for at in edge.links if getattr(logical.links[at], end) == rank]
                if len(mine) < 2 or any(row.issuperset(mine) for row in capacity_links):
                    continue
                beta = max(logical.links[at].beta_us_per_mb for at in mine)
                name = f"{edge.name}-{'out' if end == 'src' else 'in'}-{rank}"
                ports.append(SharedCapacity(name=name, links=tuple(mine), beta_us_per_mb=beta))
    return replace(logical, shared=(*logical.shared, *ports)) if ports else logical


def _senders(
    sketch: Sketch, internode: Internode, topology: Topology, nodes: list[list[int]]
) -> tuple[int, ...]:
    local = _local_index(topology)
    of = {gpu: sender for sender, gpus in internode.senders.items() for gpu in gpus}
    senders: list[int] = []
    for rank, host in enumerate(topology.rank_host):
        gpu = internode.relay.sender(local[rank]) if internode.relay else of.get(local[rank], -1)
        node = next(node for node in nodes if topology.rank_host[node[0]] == host)
        if gpu >= len(node):
            raise SketchError(
                f"{sketch.name}: field 'internode_sketch.chunk_to_relay_map' sends chunks of GPU "
                f"{local[rank]} through GPU {gpu}, nodes have {len(node)}"
            )
        senders.append(node[gpu] if gpu >= 0 else -1)
    return tuple(senders)


def _check_reachable(sketch: Sketch, topology: Topology, logical: Topology) -> None:
    """Raise SketchError unless the graph is strongly connected; name a removed link as remedy."""
    for end in ("src", "dst"):
        reached, opposite = {0}, "dst" if end == "src" else "src"
        grew = True
        while grew:
            before = len(reached)
            for link in logical.links:
                if getattr(link, end) in reached:
                    reached.add(getattr(link, opposite))
            grew = len(reached) > before
        lost = sorted(set(range(logical.ranks)) - reached)
        if not lost:
            continue
        remaining = set(logical.link_index)
        removed = next(
            (
                f"{link.src} -> {link.dst}"
                for link in topology.links
                if (link.src, link.dst) not in remaining
                and getattr(link, end) in reached
                and getattr(link, opposite) in lost
            ),
            None,
        )
        what = "be reached from" if end == "src" else "reach"
        remedy = f"keep a link such as {removed}" if removed else "the topology has no link there"
        raise SketchError(
            f"{sketch.name}: field 'internode_sketch.internode_conn' cuts rank {lost[0]} off: it "
            f"cannot {what} rank 0; {remedy}"
        )
