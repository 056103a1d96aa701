"""Hierarchical plans for clusters of equal hosts whose ranks are not equivalent.

The NICs bound the time; hosts are symmetric, so the plan between hosts is one host's growth (see
`orbits.grow`): every block crosses into every host once, in messages that grow while blocks
spread and shrink towards the end. Inside a host every block goes down trees of a packing, from
the GPU that holds it or received it. All is pipelined: incoming chunks spread while the next
message arrives. A host's own blocks spread first; its NICs send what has reached their GPU by then.

This is an allgather. `reversed_sends` of one on the transposed topology is a reduce_scatter.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import Routes
from headrace.collectives.plan.flows import Packing, PackSettings, pack
from headrace.collectives.plan.flows.list_schedule import in_order
from headrace.collectives.plan.flows.rounding import rounded, tree_routes
from headrace.collectives.plan.generators.hosts.clusters import (
    HostTopology,
    Rail,
    hosts_of,
    rails_of,
)
from headrace.collectives.plan.generators.limits import check_size
from headrace.collectives.plan.generators.orbits.group import LinkClasses
from headrace.collectives.plan.generators.orbits.grow import Growth, grow
from headrace.collectives.plan.generators.orbits.levels import Level, LinkGroup
from headrace.collectives.plan.ir.chunks import Deliveries, Sends, realize
from headrace.collectives.plan.ir.sends import (
    concatenated,
    overlapped,
    reversed_sends,
    with_arrivals,
)
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.topology import BYTES_PER_MB, Topology, transposed

_CHUNKS = (2, 4, 8, 16)
_SHARES = (0.7, 0.6, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15)
_MAX_ROWS = 60_000
"""Most sends of a plan; the least number of chunks is tried in any case."""
_SETTINGS = PackSettings(gap=5e-3, iterations=60, limit_s=5.0)

_Key = tuple[float, int, int, int, int, int]
"""A message's start, depth in a host's trees (0: between hosts), and number."""

_Row = tuple[_Key, int, int, int]
"""(key, item, source, destination)."""


def hierarchical_plans(
    topology: Topology,
    collective: Collective,
    block_mb: float,
    *,
    chunks: tuple[int, ...] = _CHUNKS,
    most: int = 3,
) -> list[tuple[Demand, Sends]]:
    """Return plans, the predicted fastest first.

    Parameters
    ----------
    block_mb : block that a rank contributes to an allgather, or owns in the other collectives.
    chunks : chunks a block to try.
    most : maximum number of plans.

    Raises
    ------
    ProgramError : for another collective than allgather, reduce_scatter and allreduce, or a
        topology that is no cluster of equal hosts; with the reason.
    """
    match Collective(collective):
        case Collective.ALLGATHER:
            return _gathering(topology, block_mb, chunks, most)
        case Collective.REDUCE_SCATTER:
            return _scattering(topology, block_mb, chunks, most)
        case Collective.ALLREDUCE:
            return _exchanging(topology, block_mb, chunks)
        case other:
            raise ProgramError(f"{other} has no hierarchical plan of hosts")


def _exchanging(
    topology: Topology, block_mb: float, chunks: tuple[int, ...]
) -> list[tuple[Demand, Sends]]:
    """A reduce_scatter and an allgather of the same chunks, in sequence or overlapped."""
    made: list[tuple[Demand, Sends]] = []
    for demand, gather in _gathering(topology, block_mb, chunks, 1):
        count = demand.chunks
        for _, scatter in _scattering(topology, block_mb, (count,), 1):
            whole = replace(demand, collective=Collective.ALLREDUCE, chunks=count * topology.ranks)
            made.append((whole, overlapped(scatter, gather)))
            made.append((whole, concatenated(scatter, gather)))
    return made


def _scattering(
    topology: Topology, block_mb: float, chunks: tuple[int, ...], most: int
) -> list[tuple[Demand, Sends]]:
    dual = transposed(topology)
    return [
        (
            replace(demand, collective=Collective.REDUCE_SCATTER),
            reversed_sends(sends),
        )
        for demand, sends in _gathering(dual, block_mb, chunks, most)
    ]


def _gathering(
    topology: Topology, block_mb: float, chunks: tuple[int, ...], most: int
) -> list[tuple[Demand, Sends]]:
    hosts = hosts_of(topology)
    rails = rails_of(topology, hosts)
    tried: list[tuple[float, int, _Gather]] = []
    for count in chunks:
        if count > min(chunks) and count * topology.ranks**2 > _MAX_ROWS:
            break
        insides = _Insides(hosts, rails, count, block_mb / count)
        for share in _SHARES:
            gather = _Gather(topology, hosts, rails, insides, share)
            tried.append((gather.estimate_us(), len(tried), gather))
    tried.sort(key=lambda row: row[:2])
    best = (gather for _, _, gather in tried[:most])
    return [
        (each.demand, with_arrivals(topology, each.sends(), block_mb / each.demand.chunks))
        for each in best
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trees:
    """Multicast of chunks inside one host.

    Attributes
    ----------
    own : by (position, chunk), links of the tree in the host's topology, from the root on.
    after : by rail, chunk by chunk in order of arrival, the same for its incoming chunks.
    sends : of the own chunks (chunk number ``position * chunks + chunk``).
    there_us : (ranks, chunks a block x ranks), arrival of each own chunk at each GPU.
    """

    own: list[list[int]]
    after: list[list[list[int]]]
    sends: Sends
    there_us: np.ndarray


class _Insides:
    """Trees and schedules inside the hosts, computed once for equal hosts."""

    def __init__(
        self,
        hosts: tuple[HostTopology, ...],
        rails: tuple[Rail, ...],
        chunks: int,
        chunk_mb: float,
    ) -> None:
        self.chunks, self.chunk_mb = chunks, chunk_mb
        size = len(hosts[0].ranks)
        self.carried = _on_rails(rails, size, chunks)
        incoming = [len(lane) * (len(hosts) - 1) for lane in self.carried]
        known: dict[tuple[object, ...], _Trees] = {}
        self.trees: list[_Trees] = []
        for host in hosts:
            key = (
                host.inside.links,
                tuple((s.links, s.beta_us_per_mb) for s in host.inside.shared),
            )
            if key not in known:
                known[key] = _trees(host.inside, rails, incoming, chunks, chunk_mb)
            self.trees.append(known[key])
        # A rail sends chunks in the order in which they have reached its GPU at all hosts.
        self.ready_us: list[np.ndarray] = []
        for j, rail in enumerate(rails):
            ready = np.max([t.there_us[rail.gpu, self.carried[j]] for t in self.trees], axis=0)
            order = np.argsort(ready, kind="stable")
            self.carried[j] = self.carried[j][order]
            self.ready_us.append(ready[order])


def _on_rails(rails: tuple[Rail, ...], size: int, chunks: int) -> list[np.ndarray]:
    """For every rail, the chunks of a host (position * chunks + chunk) that it carries."""
    alike = len({(len(rail.served), rail.beta_us_per_mb) for rail in rails}) == 1
    if alike and sum(len(rail.served) for rail in rails) == size:
        return [
            np.array([gpu * chunks + k for gpu in rail.served for k in range(chunks)])
            for rail in rails
        ]
    rate = np.array([1.0 / rail.beta_us_per_mb for rail in rails])
    ends = np.rint(np.cumsum(rate) / rate.sum() * size * chunks).astype(np.int64)
    return np.split(np.arange(size * chunks), ends[:-1])


def _trees(
    inside: Topology, rails: tuple[Rail, ...], incoming: list[int], chunks: int, chunk_mb: float
) -> _Trees:
    """Pack the host's own chunks and those incoming at the rails, all together."""
    size = inside.ranks
    gates = [rail.gpu for rail in rails]
    origin = np.repeat([*range(size), *gates], [chunks] * size + incoming).astype(np.int32)
    targets = np.arange(size) != origin[:, None]
    own = size * chunks
    if size == 1:
        links: list[list[int]] = [[] for _ in origin]
        sends = Sends.of((), (), ())
        there = np.zeros((1, own))
    else:
        deliveries = Deliveries(ranks=size, origin=origin, targets=targets)
        packing = pack(inside, deliveries, chunk_mb, settings=_SETTINGS)
        tree = rounded(inside, packing, deliveries, exact=False)
        links = _in_order(inside, packing, tree, origin)
        sends, there = _spread(
            inside,
            Deliveries(ranks=size, origin=origin[:own], targets=targets[:own]),
            links[:own],
            chunk_mb,
        )
    ends = np.cumsum([own, *incoming])
    after = [links[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    return _Trees(own=links[:own], after=after, sends=sends, there_us=there)


def _in_order(
    inside: Topology, packing: Packing, tree: np.ndarray, origin: np.ndarray
) -> list[list[int]]:
    """Links of every chunk's tree, each after its parent."""
    through = tree_routes(packing, tree)
    made: list[list[int]] = []
    known: dict[tuple[int, int], list[int]] = {}
    for chunk, root in enumerate(origin.tolist()):
        key = (root, int(tree[chunk]))
        if key not in known:
            rest = through.link[through.first[chunk] : through.first[chunk + 1]].tolist()
            reached, ordered = {root}, []
            while rest:
                link = next(k for k in rest if inside.links[k].src in reached)
                rest.remove(link)
                ordered.append(link)
                reached.add(inside.links[link].dst)
            known[key] = ordered
        made.append(known[key])
    return made


def _spread(
    inside: Topology, deliveries: Deliveries, links: list[list[int]], chunk_mb: float
) -> tuple[Sends, np.ndarray]:
    """Schedule the host's own chunks; return the sends, and the arrivals at each GPU."""
    first = np.cumsum([0, *map(len, links)])
    flat = np.array([k for some in links for k in some], dtype=np.int32)
    through = Routes(first=first.astype(np.int64), link=flat)
    sends, _ = in_order(inside, deliveries, chunk_mb, through, batch_share=0.5)
    there = np.zeros((inside.ranks, deliveries.chunks))
    there[sends.dst, sends.chunk] = with_arrivals(inside, sends, chunk_mb).arrive_us
    return sends, there


class _Gather:
    """An allgather: growths between hosts, trees inside."""

    def __init__(
        self,
        topology: Topology,
        hosts: tuple[HostTopology, ...],
        rails: tuple[Rail, ...],
        insides: _Insides,
        share: float,
    ) -> None:
        self._hosts, self._rails, self._insides = hosts, rails, insides
        self.demand = Demand(
            collective=Collective.ALLGATHER, ranks=topology.ranks, chunks=insides.chunks
        )
        self._growths = [
            _between(len(hosts), rail, len(lane), insides.chunk_mb, share, ready)
            for rail, lane, ready in zip(rails, insides.carried, insides.ready_us, strict=True)
        ]

    def estimate_us(self) -> float:
        """Predicted end of the multicast in every host, without contention by its own chunks."""
        latest = max(growth.total_us for growth in self._growths)
        seen: list[_Trees] = []
        for number, trees in enumerate(self._insides.trees):
            if any(trees is other for other in seen):
                continue
            seen.append(trees)
            rows = [
                row
                for j, growth in enumerate(self._growths)
                for row in self._spreading(j, growth, number)
            ]
            latest = max(latest, self._spread_us(self._hosts[number], sorted(rows)))
        return latest

    def _spread_us(self, host: HostTopology, rows: list[_Row]) -> float:
        """Last arrival of the multicast of incoming chunks; in order, one message a link."""
        inside, place = host.inside, {rank: k for k, rank in enumerate(host.ranks)}
        free: dict[int, float] = {}
        there: dict[tuple[int, int], float] = {}
        latest = 0.0
        uses = _uses(inside)
        for key, same in itertools.groupby(rows, key=lambda row: row[0]):
            batch = list(same)
            _, _, src, dst = batch[0]
            link = inside.link_index[place[src], place[dst]]
            mb = len(batch) * self._insides.chunk_mb
            alpha = inside.links[link].alpha_us
            start = max(there.get((item, src), key[0]) for _, item, _, _ in batch)
            start = max(start, *(free.get(resource, 0.0) for resource, _ in uses[link]))
            for resource, beta in uses[link]:
                free[resource] = start + alpha + beta * mb
            end = start + alpha + max(beta for _, beta in uses[link]) * mb
            latest = max(latest, end)
            for _, item, _, _ in batch:
                there[item, dst] = end
        return latest

    def sends(self) -> Sends:
        """Return all sends, by planned time."""
        rows: list[_Row] = []
        for number, host in enumerate(self._hosts):
            rows += self._own(number, host)
        for j, growth in enumerate(self._growths):
            rows += self._crossing(j, growth)
            for number in range(len(self._hosts)):
                rows += self._spreading(j, growth, number)
        rows.sort()
        keys = [key for key, _, _, _ in rows]
        fresh = np.array([k == 0 or keys[k] != keys[k - 1] for k in range(len(keys))], dtype=bool)
        return Sends.of(
            *([row[i] for row in rows] for i in (1, 2, 3)),
            message=np.cumsum(fresh) - 1,
            start_us=[key[0] for key in keys],
        )

    def _own(self, number: int, host: HostTopology) -> Iterator[_Row]:
        sends = self._insides.trees[number].sends
        columns = (sends.chunk, sends.src, sends.dst, sends.message, sends.start_us)
        for chunk, src, dst, message, start in zip(*(c.tolist() for c in columns), strict=True):
            key = (start, -1, number, message, 0, 0)
            yield key, self._item(host, chunk), host.ranks[src], host.ranks[dst]

    def _item(self, host: HostTopology, chunk: int) -> int:
        gpu, k = divmod(chunk, self._insides.chunks)
        return host.ranks[gpu] * self._insides.chunks + k

    def _crossing(self, j: int, growth: Growth) -> Iterator[_Row]:
        """Messages of rail j between hosts."""
        gpu = self._rails[j].gpu
        for h, host in enumerate(self._hosts):
            for s, m, item in self._crossings(j, growth, h):
                to = self._hosts[(h + s + 1) % len(self._hosts)]
                key = (float(growth.start_us[m]), 0, j, m, h, 0)
                yield key, item, host.ranks[gpu], to.ranks[gpu]

    def _spreading(self, j: int, growth: Growth, number: int) -> Iterator[_Row]:
        """Multicast inside a host of the chunks that arrive on rail j."""
        host, gpu, trees = self._hosts[number], self._rails[j].gpu, self._insides.trees[number]
        for came, (m, item) in enumerate(self._arrivals(j, growth, number)):
            depth = {gpu: 0}
            for k in trees.after[j][came]:
                link = host.inside.links[k]
                deep = depth[link.dst] = depth[link.src] + 1
                key = (float(growth.end_us[m]), deep, j, m, number, k)
                yield key, item, host.ranks[link.src], host.ranks[link.dst]

    def _crossings(self, j: int, growth: Growth, h: int) -> Iterator[tuple[int, int, int]]:
        """(class, message, item) of all sends of host h on rail j."""
        lane = self._insides.carried[j].tolist()
        columns = (growth.link_class, growth.block, growth.chunk, growth.message)
        for s, block, chunk, m in zip(*(c.tolist() for c in columns), strict=True):
            host = self._hosts[(h + block) % len(self._hosts)]
            yield s, m, self._item(host, lane[chunk])

    def _arrivals(self, j: int, growth: Growth, number: int) -> Iterator[tuple[int, int]]:
        """(message, item) of all arrivals on rail j at a host, in order."""
        lane = self._insides.carried[j].tolist()
        columns = (growth.link_class, growth.block, growth.chunk, growth.message)
        for s, block, chunk, m in zip(*(c.tolist() for c in columns), strict=True):
            host = self._hosts[(number - s - 1 + block) % len(self._hosts)]
            yield m, self._item(host, lane[chunk])


def _uses(inside: Topology) -> list[list[tuple[int, float]]]:
    """For every link, the resources that it holds, with their betas."""
    links = len(inside.links)
    made = [[(k, link.beta_us_per_mb)] for k, link in enumerate(inside.links)]
    for index, shared in enumerate(inside.shared):
        for link in shared.links:
            made[link].append((links + index, shared.beta_us_per_mb))
    return made


def _between(
    hosts: int, rail: Rail, chunks: int, chunk_mb: float, share: float, ready_us: np.ndarray
) -> Growth:
    """Growth of one host's state over one NIC that leads to all others."""
    ring = np.arange(hosts)
    steps = ring[1:]
    classes = LinkClasses(
        dst=steps,
        alpha_us=np.full(hosts - 1, rail.alpha_us),
        held=((ring[None, :] + steps[:, None]) % hosts).astype(np.int32),
        uses=np.full((1, hosts - 1), rail.beta_us_per_mb),
        times=np.ones((1, hosts - 1), dtype=np.int64),
    )
    nic = LinkGroup(classes=np.arange(hosts - 1), rate=1 / rail.beta_us_per_mb)
    level = Level(groups=(nic,), part=ring, parts=hosts, us_per_mb=0.0)
    return grow(
        classes, (level,), chunks=chunks, chunk_mb=chunk_mb, batch_share=share, ready_us=ready_us
    )


def host_schedules(request: Request) -> Iterator[Schedule]:
    """Schedules between and inside equal hosts, pipelined: `hierarchy`."""
    method = request.method
    if method.chunks is not None:
        raise ProgramError("chooses its own chunks")
    check_size(request)
    for aim in request.aims:
        block_mb = max(aim, 1) / BYTES_PER_MB / request.ranks
        if method.effort == "quick":
            found = hierarchical_plans(request.topology, request.collective, block_mb, chunks=(4,))
        else:
            found = hierarchical_plans(request.topology, request.collective, block_mb)
        for demand, sends in found:
            yield realize(demand, sends)
