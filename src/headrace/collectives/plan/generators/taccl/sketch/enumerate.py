"""Sketches derived from a topology (TACCL 8.2, automatic sketches).

A sketch has four parts: links between nodes, switch policies, symmetries, number of chunks. The
parts are enumerated here one by one; `guided.autosketch` combines and evaluates them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    AUTO_BYTES,
    Internode,
    Intranode,
    Policy,
    Sketch,
    Strategy,
    Symmetry,
)
from headrace.topology import Topology
from headrace.topology.symmetry import offset_symmetries

_RECEIVERS = (2, 4)
_KINDS_OF_PAIRS = 3
_FINER = 2
"""Rotations within a node to propose: the one with most images, and the next."""


def connections(topology: Topology) -> list[Sketch]:
    """Return a sketch for every way to connect nodes, all of one chunk and without symmetry.

    All links; for several nodes of several GPUs also: GPU i to GPU i, one sender and one receiver
    behind every NIC, a single pair for the whole node, and 2 or 4 receivers for every sender.
    NICs are the shared capacities that a node's GPUs have towards other nodes. A node's switches
    are hyperedges, with the policy `auto`.
    """
    locals_ = _locals(topology)
    nodes = len(locals_)
    base = Sketch(
        name="all",
        nodes=nodes,
        intranode=_intranode(topology, locals_),
        internode=Internode() if nodes > 1 else None,
    )
    sketches = [base]
    if nodes > 1 and min(map(len, locals_)) > 1:
        seen: list[object] = [base.internode]
        for name, conn in _ways(topology, locals_):
            internode = Internode(connections=conn)
            if internode not in seen:
                seen.append(internode)
                sketches.append(replace(base, name=name, internode=internode))
    return sketches


def policies(sketch: Sketch, chunk_bytes: float) -> list[Sketch]:
    """Return `sketch` with each switch policy other than that of `auto` for such chunks."""
    count = len(sketch.intranode.switches)
    auto = Policy.MIN if chunk_bytes > AUTO_BYTES else Policy.MAX
    return [
        replace(
            sketch,
            name=f"{sketch.name}, {policy}",
            intranode=replace(sketch.intranode, policies=(policy,) * count),
        )
        for policy in (Policy.MIN, Policy.MAX, Policy.FREE)
        if count and policy is not auto
    ]


def symmetries(sketch: Sketch, topology: Topology) -> list[Sketch]:
    """Return `sketch` with rotations that are automorphisms of its logical topology.

    Of whole nodes, and with them one within every node; raises SketchError if `sketch` does not
    fit the topology.
    """
    logical = apply_sketch(sketch, topology).topology
    offsets = offset_symmetries(logical)
    size = topology.ranks // sketch.nodes
    within = [row for row in offsets if row[1] == size] if size > 1 else []
    across = [row for row in offsets if row[1] == topology.ranks and row[0] % size == 0]
    between_nodes = across[:1] if sketch.nodes > 1 else []
    choices = [between_nodes] if between_nodes else []
    choices += [[row, *between_nodes] for row in within[:_FINER]]
    return [
        replace(
            sketch,
            name=f"{sketch.name}, " + " ".join(f"[{o},{g}]" for o, g in rows),
            symmetries=tuple(Symmetry(offset=o, group=g) for o, g in rows),
        )
        for rows in choices
    ]


def _locals(topology: Topology) -> list[list[int]]:
    nodes: list[list[int]] = [[] for _ in topology.hosts]
    for rank, host in enumerate(topology.rank_host):
        nodes[host].append(rank)
    return [node for node in nodes if node]


def _intranode(topology: Topology, nodes: list[list[int]]) -> Intranode:
    """The switches of every node, if equal in all."""
    cliques: list[list[tuple[int, ...]]] = []
    for node in nodes:
        ranks = {rank: local for local, rank in enumerate(node)}
        rows: list[tuple[int, ...]] = []
        for switch in topology.switches:
            ends = {
                end
                for at in switch.links
                for end in (topology.links[at].src, topology.links[at].dst)
            }
            if len(ends) > 2 and ends <= set(ranks):
                rows.append(tuple(sorted(ranks[end] for end in ends)))
        cliques.append(sorted(rows))
    if not cliques[0] or any(rows != cliques[0] for rows in cliques):
        return Intranode()
    switches = tuple(cliques[0])
    return Intranode(
        strategy=Strategy.SWITCH, switches=switches, policies=(Policy.AUTO,) * len(switches)
    )


def _ways(
    topology: Topology, nodes: list[list[int]]
) -> Iterator[tuple[str, Mapping[int, tuple[int, ...]] | str]]:
    gpus = range(min(map(len, nodes)))
    yield "direct-map", "direct-map"
    nics = _nics(topology, nodes[0])
    if len(nics) < len(gpus):
        kinds = [_pairs(topology, nodes[0], nic) for nic in nics]
        for number in range(max(map(len, kinds))):
            pairs = [rows[number % len(rows)] for rows in kinds]
            name = "NIC pairs" if number == 0 else f"NIC pairs {number + 1}"
            yield name, {src: (dst,) for src, dst in pairs}
        yield "one GPU a NIC", {nic[0]: (nic[0],) for nic in nics}
    src, dst = _pairs(topology, nodes[0], tuple(gpus))[0]
    yield "single relay", {src: (dst,)}
    for count in _RECEIVERS:
        if count < len(gpus):
            step = max(1, len(gpus) // count)
            rows = {
                gpu: tuple(sorted((gpu + k * step) % len(gpus) for k in range(count)))
                for gpu in gpus
            }
            yield f"{count} receivers", rows


def _nics(topology: Topology, node: list[int]) -> list[tuple[int, ...]]:
    """GPUs of the node, numbered within it, grouped by shared capacity out of it."""
    local, host = {rank: at for at, rank in enumerate(node)}, topology.rank_host
    of = {at: (at,) for at in local.values()}
    outside = set(range(topology.ranks)) - set(node)
    widest_first = sorted(topology.shared, key=lambda row: -len(row.links))
    for row in widest_first:
        links = [topology.links[at] for at in row.links]
        sources, targets = {link.src for link in links}, {link.dst for link in links}
        # A capacity of links to few nodes is that of another node's NIC, into it.
        leaves = all(host[link.src] != host[link.dst] for link in links) and targets >= outside
        if leaves and len(sources) > 1 and sources <= set(local):
            shared = tuple(sorted(local[rank] for rank in sources))
            of |= dict.fromkeys(shared, shared)
    return sorted(set(of.values()))


def _pairs(topology: Topology, node: list[int], gpus: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pairs (sender, receiver) among `gpus`, one of each kind of connection between the two."""
    if len(gpus) == 1:
        return [(gpus[0], gpus[0])]
    kinds: dict[tuple[float, ...], tuple[int, int]] = {}
    for src in reversed(gpus):  # as in the dissertation: of a pair the odd one sends
        for dst in gpus:
            if src != dst:
                kind = tuple(
                    topology.links[at].beta_us_per_mb if at is not None else float("inf")
                    for at in (
                        topology.link_index.get((node[a], node[b]))
                        for a, b in ((src, dst), (dst, src))
                    )
                )
                kinds.setdefault(kind, (src, dst))
    return [kinds[kind] for kind in sorted(kinds)][:_KINDS_OF_PAIRS]
