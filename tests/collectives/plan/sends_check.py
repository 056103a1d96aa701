"""A second opinion on sends: are their starts possible under the full cost model, when is the end?

Written apart from the schedulers: it looks at every pair of messages that share a resource.
"""

import itertools

import numpy as np
import pytest

from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.topology import Link, SharedCapacity, Topology

EPS = 1e-6


def network(n: int, rows: list[tuple[int, int, float, float]], *shared: SharedCapacity) -> Topology:
    return Topology(
        name="network",
        hosts=tuple(f"h{i}" for i in range(n)),
        rank_host=tuple(range(n)),
        links=tuple(Link(src=s, dst=d, alpha_us=a, beta_us_per_mb=b) for s, d, a, b in rows),
        shared=shared,
    )


def both_ways(n: int, pairs: list[tuple[int, int]], alpha: float, beta: float) -> Topology:
    return network(n, [(*p, alpha, beta) for s, d in pairs for p in ((s, d), (d, s))])


def ring(n: int, alpha: float = 0.0, beta: float = 10.0) -> Topology:
    return both_ways(n, [(i, (i + 1) % n) for i in range(n)], alpha, beta)


DOUBLE = [(0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)]
SINGLE = [(0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)]


def ndv2_node(alpha: float = 0.0) -> Topology:
    """NVLink mesh of one NDv2 node: 23 us/MB over two links, 46 over one."""
    rows = [(s, d, alpha, 23.0) for s, d in DOUBLE] + [(s, d, alpha, 46.0) for s, d in SINGLE]
    return network(8, [row for s, d, a, b in rows for row in ((s, d, a, b), (d, s, a, b))])


def ndv2_pair() -> Topology:
    """Two such nodes, joined by one NIC each (2.6 us, 105 us/MB)."""
    node = ndv2_node(0.3)
    rows = [
        (k.src + 8 * h, k.dst + 8 * h, k.alpha_us, k.beta_us_per_mb)
        for h in range(2)
        for k in node.links
    ]
    far = [(s, d, 2.6, 105.0) for s in range(16) for d in range(16) if s // 8 != d // 8]
    first = len(rows)
    shared = [
        SharedCapacity(
            name=f"nic-{end}-{h}",
            links=tuple(first + k for k, row in enumerate(far) if row[end] // 8 == h),
            beta_us_per_mb=105.0,
        )
        for h in range(2)
        for end in (0, 1)
    ]
    return network(16, rows + far, *shared)


def allgather(n: int, chunks: int = 1) -> Deliveries:
    origin = np.repeat(np.arange(n, dtype=np.int32), chunks)
    return Deliveries(ranks=n, origin=origin, targets=np.arange(n) != origin[:, None])


def broadcast(n: int, chunks: int = 1, root: int = 0) -> Deliveries:
    origin = np.full(chunks, root, dtype=np.int32)
    return Deliveries(ranks=n, origin=origin, targets=np.arange(n) != origin[:, None])


def all_to_all(n: int, chunks: int = 1) -> Deliveries:
    origin = np.repeat(np.arange(n, dtype=np.int32), n * chunks)
    to = np.tile(np.repeat(np.arange(n), chunks), n)
    targets = (np.arange(n) == to[:, None]) & (to != origin)[:, None]
    return Deliveries(ranks=n, origin=origin, targets=targets)


def total_us(topology: Topology, deliveries: Deliveries, chunk_mb: float, sends: Sends) -> float:
    """Check `sends` with their starts; return when the last arrives."""
    holds: list[tuple[int, float, float]] = []  # resource, from, until
    there = {(c, int(deliveries.origin[c])): 0.0 for c in range(deliveries.chunks)}
    end = 0.0
    assert sends.message.tolist() == sorted(sends.message.tolist())
    for message in range(int(sends.message.max(initial=-1)) + 1):
        rows = np.flatnonzero(sends.message == message)
        assert len(rows), "messages are numbered without holes"
        (src,), (dst,), (start,) = (
            set(c[rows].tolist()) for c in (sends.src, sends.dst, sends.start_us)
        )
        link = topology.link_index[src, dst]
        mb = len(rows) * chunk_mb
        alpha = topology.links[link].alpha_us
        betas = {link: topology.links[link].beta_us_per_mb}
        for k, shared in enumerate(topology.shared):
            if link in shared.links:
                betas[len(topology.links) + k] = shared.beta_us_per_mb
        arrives = start + alpha + mb * max(betas.values())
        for chunk in sends.chunk[rows].tolist():
            assert there.get((chunk, src), np.inf) <= start + EPS, "sent before it is there"
            assert (chunk, dst) not in there, "sent twice"
            there[chunk, dst] = arrives
        holds += [(resource, start, start + alpha + mb * beta) for resource, beta in betas.items()]
        end = max(end, arrives)
    holds.sort()
    for (one, _, until), (other, start, _) in itertools.pairwise(holds):
        assert one != other or start >= until - EPS, "a resource serves two messages at once"
    for chunk, rank in zip(*np.nonzero(deliveries.targets), strict=True):
        assert (int(chunk), int(rank)) in there, f"chunk {chunk} does not reach rank {rank}"
    assert end == pytest.approx(end)
    return end
