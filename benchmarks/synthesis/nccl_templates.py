"""NCCL's algorithms as schedules: timed by the same simulator, proven by the same verifier.

Modelled is the routing of bytes (NCCL 2.8, the version that the paper measured against): rings
through every NIC, double binary trees over nodes with a chain in each, grouped sends and receives
for all-to-all; channels, slices that pipeline within a channel, and fusion (data is received,
combined and forwarded at once; combining costs nothing). The number of channels and slices is the
best of several at every size, which NCCL's tuning at most equals.

Not modelled: the LL and LL128 protocols (a cheaper alpha at a part of the bandwidth), launching
kernels, limits of a single channel's threads, proxies, PCIe and host memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.templates.transfers import backwards, unsupported
from headrace.collectives.plan.request import Generator, Request
from headrace.collectives.program import Schedule, Transfer
from headrace.topology import Topology

MOST_MESSAGES = 33_000
"""Limit of messages: finer slices are not tried, as they gain next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """NCCL's wiring of a cluster of equal nodes.

    Attributes
    ----------
    paths : for every channel the GPUs of a node (numbered within it), from the one at which data
        enters to the one at which it leaves; both sit at the channel's NIC.
    """

    paths: tuple[tuple[int, ...], ...]

    def ring(self, channel: int, nodes: int) -> tuple[int, ...]:
        """Return the ranks in the order of a channel's ring, through the nodes in turn."""
        path = self.paths[channel]
        return tuple(node * len(path) + gpu for node in range(nodes) for gpu in path)


DGX2 = Wiring(
    paths=tuple((nic, *((nic + 2 + k) % 16 for k in range(14)), nic + 1) for nic in range(0, 16, 2))
)
"""Eight rings: ring k enters at the first GPU of NIC k and leaves at its second."""

NDV2 = Wiring(paths=((1, 3, 2, 6, 7, 5, 4, 0),))
"""One ring, for there is one NIC, from GPU 1 to GPU 0 over neighbours with two NVLinks.

NCCL runs two channels over it; in the model the second adds nothing that slices do not.
"""


def generators(wiring: Wiring) -> tuple[Generator, ...]:
    """Return NCCL as rows of the portfolio, each trying several channels and slices."""
    return (
        Generator("nccl-ring", partial(_rings, wiring)),
        Generator("nccl-tree", partial(_trees, wiring)),
        Generator("nccl-peer-to-peer", _peers),
    )


def ring(demand: Demand, wiring: Wiring, channels: int, slices: int) -> Schedule:
    """Return the rings: every channel moves its part of the data, slice after slice.

    A slice of an allgather or reduce_scatter makes n-1 steps, of an allreduce 2(n-1) on an n-th
    part each.

    Parameters
    ----------
    demand : with channels * slices chunks a block; for an allreduce as many a rank.

    Raises
    ------
    ProgramError : for other collectives or chunk counts.
    """
    n, whole = demand.ranks, demand.collective is Collective.ALLREDUCE
    if demand.collective not in _RINGED:
        unsupported("nccl-ring", demand)
    _check_chunks(demand, channels * slices * (n if whole else 1))
    orders = [wiring.ring(c, n // len(wiring.paths[c])) for c in range(channels)]

    def slot(channel: int, part: int, loop: int) -> int:
        if whole:
            return (channel * slices + loop) * n + part
        return orders[channel][part] * demand.chunks + channel * slices + loop

    transfers: list[Transfer] = []
    for loop in range(slices):
        for step in range(2 * (n - 1) if whole else n - 1):
            for at in range(n):
                for channel, order in enumerate(orders):
                    moved = slot(channel, (at - step) % n, loop)
                    src, dst = order[at], order[(at + 1) % n]
                    reduce = whole and step < n - 1
                    transfers.append(Transfer(src, dst, moved, moved, reduce, channel=channel))
    if demand.collective is Collective.REDUCE_SCATTER:
        transfers = backwards(transfers, reduce=True)
    return Schedule.of(demand, transfers)


def tree(demand: Demand, wiring: Wiring, channels: int, slices: int) -> Schedule:
    """Return the double binary trees: up to be combined, down again, pipelined by slices.

    Every channel has two trees over the nodes, each for half of its data; in a node a chain along
    the channel's path hangs from the GPU at which data enters.

    Parameters
    ----------
    demand : an allreduce with 2 * channels * slices chunks.

    Raises
    ------
    ProgramError : for other collectives or chunk counts.
    """
    if demand.collective is not Collective.ALLREDUCE:
        unsupported("nccl-tree", demand)
    _check_chunks(demand, 2 * channels * slices)
    timed: list[tuple[int, Transfer]] = []
    for channel in range(channels):
        path = wiring.paths[channel]
        for which, over in enumerate(_two_trees(demand.ranks // len(path))):
            waves = _waves(over, path)
            for loop in range(slices):
                slot = (2 * channel + which) * slices + loop
                down = [
                    [Transfer(a, b, slot, slot, channel=2 * channel + which) for a, b in wave]
                    for wave in waves
                ]
                up = [backwards(wave, reduce=True) for wave in reversed(down)]
                timed += [(loop + at, t) for at, wave in enumerate((*up, *down)) for t in wave]
    timed.sort(key=lambda row: row[0])
    return Schedule.of(demand, [transfer for _, transfer in timed])


def peer_to_peer(demand: Demand, topology: Topology, slices: int) -> Schedule:
    """Return the all-to-all of grouped sends: rank r sends to r+1, r+2 and so on, all at once.

    GPUs of a node that no NVLink joins exchange through a neighbour of both; NCCL 2.8 would go
    over PCIe and host memory there, which the topology does not have.

    Parameters
    ----------
    demand : an all_to_all with `slices` chunks a block.

    Raises
    ------
    ProgramError : for other collectives or chunk counts, or ranks that are three hops apart.
    """
    if demand.collective is not Collective.ALL_TO_ALL:
        unsupported("nccl-peer-to-peer", demand)
    _check_chunks(demand, slices)
    n, half = demand.ranks, demand.ranks * slices
    relays = _Relays(topology)
    taken = [demand.slots] * n
    timed: list[tuple[int, Transfer]] = []
    for shift in range(n):
        for src in range(n):
            dst = (src + shift) % n
            hops = (src, *relays.between(src, dst), dst)
            for k in range(slices):
                at = dst * slices + k
                for late, (a, b) in enumerate(pairwise(hops)):
                    to = half + src * slices + k
                    if b != dst:
                        to, taken[b] = taken[b], taken[b] + 1
                    # Relayed data is sent two rounds later: by then it has arrived.
                    timed.append((k * n + shift + 2 * late, Transfer(a, b, at, to)))
                    at = to
    timed.sort(key=lambda row: row[0])
    return Schedule.of(demand, [t for _, t in timed], max(taken) - demand.slots)


_RINGED = (Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALLREDUCE)


def _check_chunks(demand: Demand, wanted: int) -> None:
    if demand.chunks != wanted:
        raise ProgramError(f"chunks is {demand.chunks}, needs {wanted}")


def _rings(wiring: Wiring, request: Request) -> Iterator[Schedule]:
    n, whole = request.ranks, request.collective is Collective.ALLREDUCE
    messages = n * (n - 1) * (2 if whole else 1)
    for channels, slices in _sizes(wiring, (1, 2, 4, 8, 16), messages):
        demand = request.demand(channels * slices * (n if whole else 1))
        yield ring(demand, wiring, channels, slices)


def _trees(wiring: Wiring, request: Request) -> Iterator[Schedule]:
    for channels, slices in _sizes(wiring, (1, 4, 16, 32), 4 * request.ranks):
        yield tree(request.demand(2 * channels * slices), wiring, channels, slices)


def _peers(request: Request) -> Iterator[Schedule]:
    for slices in (1, 4, 8, 16):
        yield peer_to_peer(request.demand(slices), request.topology, slices)


def _sizes(wiring: Wiring, slices: Sequence[int], messages: int) -> Iterator[tuple[int, int]]:
    """Channels and slices to try: few channels for little data, slices only with all of them."""
    most = len(wiring.paths)
    yield from ((channels, 1) for channels in (1, 2, 4) if channels < most)
    yield from ((most, k) for k in slices if k == 1 or most * k * messages <= MOST_MESSAGES)


def _two_trees(nodes: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(parent, child) of two binary trees; inner nodes of one are leaves of the other, if possible.

    Below node 0 the others are in the order of their numbers, odd ones being leaves; the second
    tree is the first with nodes counted from the other end.
    """
    first: list[tuple[int, int]] = []
    for node in range(1, nodes):
        low = node & -node
        over = (node - low) | (low << 1)
        first.append((over if over < nodes else node - low, node))
    return tuple(first), tuple((nodes - 1 - a, nodes - 1 - b) for a, b in first)


def _waves(over: Sequence[tuple[int, int]], path: Sequence[int]) -> list[list[tuple[int, int]]]:
    """(parent, child) ranks by the depth of the child, from the root of the whole tree down."""
    size, parent = len(path), {child: above for above, child in over}
    ends: list[tuple[int, tuple[int, int]]] = []
    for node in {0, *parent, *parent.values()}:
        depth, at = 0, node
        while at in parent:
            depth, at = depth + 1, parent[at]
        ranks = [node * size + gpu for gpu in path]
        if node in parent:
            ends.append((depth, (parent[node] * size + path[0], ranks[0])))
        ends += [(depth + k, pair) for k, pair in enumerate(pairwise(ranks), start=1)]
    deepest = max(depth for depth, _ in ends)
    return [[pair for depth, pair in ends if depth == d] for d in range(1, deepest + 1)]


class _Relays:
    """Relays between pairs of ranks without a link: the least used of the fastest."""

    def __init__(self, topology: Topology) -> None:
        self._beta = {(k.src, k.dst): k.beta_us_per_mb for k in topology.links}
        self._host = topology.rank_host
        self._used = [0] * topology.ranks

    def between(self, src: int, dst: int) -> tuple[int, ...]:
        """Return () where a link exists (or src is dst), else one rank."""
        if src == dst or (src, dst) in self._beta:
            return ()
        beta, found = self._beta, range(len(self._host))
        both = [r for r in found if (src, r) in beta and (r, dst) in beta]
        near = [r for r in both if self._host[r] in (self._host[src], self._host[dst])]
        if not near:
            raise ProgramError(f"ranks {src} and {dst} have no neighbour in common")
        best = min(near, key=lambda r: (beta[src, r] + beta[r, dst], self._used[r], r))
        self._used[best] += 1
        return (best,)
