"""Allreduce over trees used in both directions: reduction up to a root, then multicast down.

The best reduce_scatter and the best allgather need not compose to the best allreduce where links
differ: the halves contend for the same routes. Here every chunk has one tree for both, so that
every send down a link has a counterpart up its mirror image. An allgather whose links share their
capacity with their mirror images (a network of half-duplex links) has exactly these loads: its time
is that of the allreduce at full duplex, wherever the roots are. `mirrored` searches for that
allgather, keeps its trees, and orders all sends like a systolic array: a chunk starts after the one
before it has left, and every further hop of a tree waits a fixed number of chunks more, so that no
lane is blocked by a chunk in flight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import CostModel
from headrace.collectives.plan.engine import SearchEngine, SearchProblem, SearchSettings
from headrace.collectives.plan.generators.limits import chunk_mb_of
from headrace.collectives.plan.ir.chunks import Deliveries, Sends, realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.topology import SharedCapacity, Topology

Edge = tuple[int, int]

_CHUNKS_PER_RANK = (4, 16, 32, 64)
_HOPS = (2, 4)
"""Chunks by which every further hop is delayed."""

_MOST_EDGES = 6000
"""Most edges of all trees together: beyond, planning takes more than seconds."""

_SAME = 1e-9
_SINGLE_ROOTS = 3
_PIECES = 600

_RESTARTS_BY_EFFORT = {"quick": 4, "normal": 24, "thorough": 200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """A spanning tree for every chunk: its edges (from, to) away from the root, in causal order."""

    ranks: int
    roots: tuple[int, ...]
    edges: tuple[tuple[Edge, ...], ...]


def mirrored(
    topology: Topology,
    total_bytes: int,
    engine: SearchEngine,
    model: CostModel,
    *,
    seed: int = 0,
    restarts: int = 24,
    max_chunks: int = 1 << 20,
    chunk_counts: Sequence[int] = (),
    limit_s: float = 2.0,
) -> Iterator[Schedule]:
    """Yield for each of several chunk counts the best allreduce found, by its time under `model`.

    Parameters
    ----------
    restarts : of each search; there is one for every choice of roots, chunks and batching.
    max_chunks : finer cuts are left out.
    chunk_counts : chunks of the whole data; empty: multiples of the ranks.
    limit_s : time limit of each search, as a safety net.

    Raises
    ------
    ProgramError : if a link has no mirror image, or ranks are too many.
    """
    ranks = topology.ranks
    if ranks < 2:
        raise ProgramError("one rank has nothing to send")
    network = half_duplex(topology, latency=not model.streaming)
    for chunks in _allowed_counts(ranks, chunk_counts, max_chunks):
        demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=chunks)
        chunk_mb = chunk_mb_of(demand, total_bytes)
        best_us, best = float("inf"), None
        for roots, batch_share in product(_root_choices(topology), (0.0, 1.0)):
            settings = SearchSettings(
                seed=seed, restarts=restarts, batch_share=batch_share, limit_s=limit_s
            )
            trees = _trees(network, roots, chunks, chunk_mb, engine, settings)
            for hop in _HOPS:
                sends = systolic(trees, hop)
                simulation = simulate(
                    lower(realize(demand, sends)),
                    topology,
                    total_bytes,
                    model=model,
                    max_pieces=_PIECES,
                )
                if simulation.total_us < best_us:
                    best_us, best = simulation.total_us, sends
                if model.streaming:
                    continue
                # The same order, but combined by arrival: often shorter, sometimes not.
                timed = engine.retime(topology, sends, chunk_mb)
                if timed.total_us < best_us * (1 - _SAME):
                    best_us, best = timed.total_us, timed.sends
        assert best is not None
        yield realize(demand, best)


def _allowed_counts(ranks: int, chunk_counts: Sequence[int], max_chunks: int) -> list[int]:
    counts = list(chunk_counts) or [ranks * multiple for multiple in _CHUNKS_PER_RANK]
    counts = [count for count in counts if count <= max_chunks] or counts[:1]
    counts = [count for count in counts if count * (ranks - 1) <= _MOST_EDGES]
    if not counts:
        raise ProgramError(f"{ranks} ranks, trees of all chunks together have too many edges")
    return counts


def half_duplex(topology: Topology, *, latency: bool = True) -> Topology:
    """Return `topology` with every link and shared capacity shared with its mirror image.

    Parameters
    ----------
    latency : keep alpha. Without, only what limits throughput is left.

    Raises
    ------
    ProgramError : for a link without a mirror image.
    """
    index = topology.link_index
    try:
        mirror = [index[link.dst, link.src] for link in topology.links]
    except KeyError as error:
        raise ProgramError(f"no link {error}: trees are used in both directions") from None
    capacities: dict[frozenset[int], float] = {}
    own = [((i,), link.beta_us_per_mb) for i, link in enumerate(topology.links)]
    for links, beta in own + [
        (capacity.links, capacity.beta_us_per_mb) for capacity in topology.shared
    ]:
        both = frozenset(links) | {mirror[link] for link in links}
        capacities[both] = max(capacities.get(both, 0.0), beta)
    return replace(
        topology,
        links=topology.links
        if latency
        else tuple(replace(link, alpha_us=0.0) for link in topology.links),
        shared=tuple(
            SharedCapacity(name=f"both-ways-{i}", links=tuple(sorted(both)), beta_us_per_mb=beta)
            for i, (both, beta) in enumerate(capacities.items())
        ),
        switches=(),
    )


def systolic(trees: Trees, hop: int) -> Sends:
    """Return all sends of an allreduce over `trees`: up with reduction, then down.

    A send of chunk c is ordered as if at time ``c + hop * (number of hops before it)``.
    """
    rows: list[tuple[int, int, int, int, int, bool]] = []
    for chunk, (root, edges) in enumerate(zip(trees.roots, trees.edges, strict=True)):
        depth, height = {root: 0}, dict.fromkeys(range(trees.ranks), 0)
        for above, below in edges:
            depth[below] = depth[above] + 1
        for above, below in reversed(edges):
            height[above] = max(height[above], height[below] + 1)
        for above, below in reversed(edges):
            rows.append((chunk + hop * height[below], len(rows), chunk, below, above, True))
        for above, below in edges:
            time = chunk + hop * (height[root] + depth[above])
            rows.append((time, len(rows), chunk, above, below, False))
    columns = np.array(sorted(rows), dtype=np.int32).reshape(-1, 6)
    return Sends.of(*columns[:, 2:5].T, reduce=columns[:, 5])


def _trees(
    network: Topology,
    roots: Sequence[int],
    chunks: int,
    chunk_mb: float,
    engine: SearchEngine,
    settings: SearchSettings,
) -> Trees:
    """Every chunk's tree in the best broadcast of all of them; roots alternate."""
    origin = np.resize(np.array(roots, dtype=np.int32), chunks)
    targets = np.ones((chunks, network.ranks), dtype=bool)
    targets[np.arange(chunks), origin] = False
    deliveries = Deliveries(ranks=network.ranks, origin=origin, targets=targets)
    problem = SearchProblem(topology=network, deliveries=deliveries, chunk_mb=chunk_mb)
    sends = engine.search(problem, settings).sends
    edges: list[list[Edge]] = [[] for _ in range(chunks)]
    for chunk, src, dst in zip(
        sends.chunk.tolist(), sends.src.tolist(), sends.dst.tolist(), strict=True
    ):
        edges[chunk].append((src, dst))
    return Trees(ranks=network.ranks, roots=tuple(origin.tolist()), edges=tuple(map(tuple, edges)))


def _root_choices(topology: Topology) -> list[tuple[int, ...]]:
    """All ranks in turn, or one of those with the fastest links: loads are the same."""
    ranks = range(topology.ranks)
    cost = [0.0] * topology.ranks
    for link in topology.links:
        cost[link.src] += link.beta_us_per_mb
    fastest = sorted(ranks, key=lambda rank: (cost[rank], rank))[:_SINGLE_ROOTS]
    return [tuple(ranks), *((rank,) for rank in fastest)]


def mirrored_schedules(request: Request) -> Iterator[Schedule]:
    """Allreduce over trees that are used in both directions: `mirrored`."""
    method = request.method
    if request.collective is not Collective.ALLREDUCE:
        raise ProgramError("only for allreduce")
    if method.engine is None:
        raise ProgramError("needs a search engine")
    # Without latency, which a stream hides, the best schedule does not depend on the size.
    for aim in request.aims[-1:] if method.model.streaming else request.aims:
        yield from mirrored(
            request.topology,
            max(aim, 1),
            method.engine,
            method.model,
            seed=method.seed,
            restarts=_RESTARTS_BY_EFFORT[method.effort],
            max_chunks=request.max_chunks,
            chunk_counts=() if method.chunks is None else (method.chunks,),
        )
