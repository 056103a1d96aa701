"""Flows, trees, volumes and distances that bound each collective (see `bound`)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.plan.bound.cuts import LargeTopology, is_large, partitions
from headrace.collectives.plan.flows.rates import Flows, Rate
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.errors import SymmetryError
from headrace.topology import Topology
from headrace.topology.refinement import automorphism_generators
from headrace.topology.symmetry import orbits, translations

_ALL_PAIRS_RANKS = 12
"""Up to so many ranks allreduce tries every pair, beyond only those with rank 0.

Every cut separates rank 0 from some rank, so without shared capacities its pairs find the smallest;
with them another pair may give a stronger bound, at n/2 times the work.
"""

_FLOWS_TIMES_LINKS = 250_000
"""Approximate limit on the number of flows solved, times the links."""

_TREE_LINKS = 8_000
_TREE_RANKS = 80
"""Up to so many links and ranks trees are packed."""


class Share(NamedTuple):
    """A term before the size is known: `share` of the total bytes has to pass at `rate`."""

    name: str
    share: float
    rate: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The terms of one collective on one topology, by kind; the last kind is latency.

    Attributes
    ----------
    formula : the terms computed, in words.
    """

    kinds: tuple[tuple[Share, ...], ...]
    formula: str


_Pairs = list[tuple[int, int]]

_CUT = "max over pairs (s, t) of M / flow(s -> t) + alpha"
_FLOWS = {
    Collective.ALLREDUCE: _CUT,
    Collective.BROADCAST: "max over t of M / flow(root -> t) + alpha",
    Collective.REDUCE: "max over s of M / flow(s -> root) + alpha",
    Collective.ALLGATHER: "max over t of (M/N) / flow(each -> t at once) + alpha",
    Collective.REDUCE_SCATTER: "max over s of (M/N) / flow(s -> each at once) + alpha",
    Collective.GATHER: "(M/N) / flow(each -> root at once) + alpha",
    Collective.SCATTER: "(M/N) / flow(root -> each at once) + alpha",
    Collective.ALL_TO_ALL: "(M/N) / flow(each -> each at once) + alpha",
}
_TREES = {
    Collective.BROADCAST: "M / (trees from the root) + alpha",
    Collective.REDUCE: "M / (trees to the root) + alpha",
    Collective.ALLGATHER: "(M/N) / (trees from each at once) + alpha",
    Collective.REDUCE_SCATTER: "(M/N) / (trees to each at once) + alpha",
}
_VOLUMES = {
    Collective.ALLREDUCE: "2({n}-1) M / {egress} + alpha",
    Collective.GATHER: "{ranks} M / {egress} + alpha",
    Collective.SCATTER: "{ranks} M / {egress} + alpha",
    Collective.ALL_TO_ALL: "{pairs} M / {egress} + alpha",
}
_DISTANCES = {
    Collective.BROADCAST: " from the root",
    Collective.SCATTER: " from the root",
    Collective.REDUCE: " to the root",
    Collective.GATHER: " to the root",
}


_flows = lru_cache(maxsize=32)(Flows)
_large = lru_cache(maxsize=32)(LargeTopology)


@lru_cache(maxsize=256)
def kinds(topology: Topology, demand: Demand) -> Kinds:
    """Return the terms of `demand`'s collective for 1 MB in all.

    Raises
    ------
    TopologyError : for a pair that cannot reach each other.
    """
    if topology.ranks == 1:
        return Kinds(kinds=(), formula="one rank needs no time")
    has_flows = demand.collective in _FLOWS
    if has_flows and is_large(topology, all_pairs=demand.collective is Collective.ALL_TO_ALL):
        bounds, formula = _of_large(topology, demand)
    else:
        bounds, formula = (_of_flows if has_flows else _of_deliveries)(topology, demand)
        if _flows(topology).struck:
            formula += "; a time limit ended the packing of trees or paths"
    return Kinds(kinds=tuple(tuple(kind) for kind in bounds if kind), formula=formula)


def _of_flows(topology: Topology, demand: Demand) -> tuple[list[list[Share]], str]:
    n, collective, root = topology.ranks, demand.collective, demand.root
    flows = _flows(topology)
    pairs = _pairs(n, collective, root)
    flows.require(pairs, collective.value)
    moves_everything = collective in (Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE)
    together = _together(n, collective, pairs)
    distinct = _distinct(topology, collective, together)
    solved = _spread(distinct, max(8, _FLOWS_TIMES_LINKS // len(topology.links)))
    group = translations(topology) if collective is Collective.ALL_TO_ALL else None
    share = 1.0 if moves_everything else 1.0 / n
    flow = [
        Share(
            f"flow {name}", share, flows.rate(e) if group is None else _all_pairs(flows, n, group)
        )
        for name, e in solved
    ]
    few = ""
    if len(distinct) < len(together):
        few += f" (one of each of {len(distinct)} orbits)"
    if len(solved) < len(distinct):
        few += f" ({len(solved)} of {len(distinct)})"
    parts = [f"{_FLOWS[collective]}{few}"]
    trees: list[Share] = []
    if collective in _TREES and _packable(topology, collective):
        trees = [Share("trees", 1.0, _trees(topology, collective, root))]
        parts.append(_TREES[collective])
    volume = [Share("volume", _group_share(np.arange(n), collective, root), flows.egress())]
    parts.append(_volume_formula(collective, "N", "egress"))
    groups: list[Share] = []
    for name, label in partitions(topology):
        crossing = _group_share(label, collective, root)
        groups.append(Share(f"volume of {name}", crossing, flows.egress(label)))
        parts.append(_volume_formula(collective, name, f"egress between {name}"))
    latency = [_farthest(flows, pairs)]
    parts.append(f"largest distance in alpha{_DISTANCES.get(collective, '')}")
    return [flow, trees, volume, groups, latency], "; ".join(parts)


def _of_large(topology: Topology, demand: Demand) -> tuple[list[list[Share]], str]:
    """Cuts instead of flows, no trees, distances from one rank: valid, if weaker."""
    n, collective, root = topology.ranks, demand.collective, demand.root
    large = _large(topology)
    large.require(collective.value)
    cuts: list[Share] = []
    names: list[str] = []
    for name, label in large.partitions():
        sizes = np.bincount(label)
        into, out = large.cuts(label)
        for part in np.flatnonzero(sizes < n).tolist():
            needs = cut_shares(n, collective, int(sizes[part]), int(label[root]) == part)
            for direction, need, rate in zip(
                ("into", "out of"), needs, (into[part], out[part]), strict=True
            ):
                if need > 0.0 and rate is not None:
                    cuts.append(Share(f"cut {direction} {name} {part}", need, rate))
        names.append(name)
    volume = [Share("volume", _group_share(np.arange(n), collective, root), large.egress())]
    groups = [
        Share(f"volume of {name}", _group_share(label, collective, root), large.egress(label))
        for name, label in large.partitions()
        if 1 < label.max() + 1 < n
    ]
    parts = [
        f"cuts around {', '.join(names)}: what must cross / (capacity across) + alpha",
        _volume_formula(collective, "N", "capacity"),
        _volume_formula(collective, "parts", "capacity between parts"),
    ]
    if collective is Collective.ALL_TO_ALL and (hops := large.hops()) is not None:
        volume.append(Share("hops", hops / n, large.egress()))
        parts.append("(M/N) * sum of hops over pairs / capacity + alpha")
    source = root if collective in _DISTANCES else 0
    latency = large.latency(source, inward=collective in (Collective.REDUCE, Collective.GATHER))
    parts.append(f"distances in alpha of rank {source}")
    return [cuts, volume, groups, [Share(latency[0], 0.0, latency[1])]], "; ".join(parts)


def _of_deliveries(topology: Topology, demand: Demand) -> tuple[list[list[Share]], str]:
    """Any demand, by its chunks: their holders and targets."""
    deliveries = _carried(demand)
    flows = _flows(topology)
    pairs = [
        (int(deliveries.origin[c]), int(t))
        for c, t in zip(*np.nonzero(deliveries.targets), strict=True)
    ]
    if not pairs:
        return [[Share("latency", 0.0, Rate(us_per_mb=0.0, alpha_us=0.0))]], "none"
    chunk_bytes = demand.chunk_bytes(1_000_000_000) / 1e9
    flows.require(sorted(set(pairs)), demand.collective.value)
    flow: list[Share] = []
    ends = np.array(pairs)
    for side, word in ((1, "into"), (0, "out of")):
        for rank in np.unique(ends[:, side]).tolist():
            mine = ends[:, side] == rank
            if side == 0:  # a chunk that several want leaves once
                chunks = np.flatnonzero(
                    (deliveries.origin == rank) & deliveries.targets.any(axis=1)
                )
                rows = [(rank, int(np.flatnonzero(deliveries.targets[c])[0])) for c in chunks]
                if (deliveries.targets[chunks].sum(axis=1) > 1).any():
                    continue
            else:
                rows = [(int(s), int(t)) for s, t in ends[mine]]
            different, counts = np.unique(np.array(rows), axis=0, return_counts=True)
            rate = flows.rate([(int(s), int(t)) for s, t in different], counts.tolist())
            flow.append(Share(f"flow {word} {rank}", chunk_bytes, rate))
    trees: list[Share] = []
    if topology.ranks <= _TREE_RANKS and len(topology.links) <= _TREE_LINKS:
        rate = flows.trees(deliveries, np.ones(deliveries.chunks))
        trees.append(Share("trees", chunk_bytes, rate))
    latency = [_farthest(flows, sorted(set(pairs)))]
    formula = (
        "max over t of chunks / flow(their origins -> t at once) + alpha; max over s of chunks / "
        "flow(s -> their targets at once) + alpha; chunks / (trees or paths of all at once) + "
        "alpha; largest distance in alpha from a chunk's origin to a target"
    )
    return [flow, trees, latency], formula


def _farthest(flows: Flows, pairs: _Pairs) -> Share:
    """The latency of the pair that is farthest apart in alpha; of equal ones the first."""
    ends = np.array(pairs)
    far = flows.distance_us[ends[:, 0], ends[:, 1]]
    s, t = pairs[int(far.argmax())]
    return Share(f"latency {s} -> {t}", 0.0, Rate(us_per_mb=0.0, alpha_us=float(far.max())))


def _packable(topology: Topology, collective: Collective) -> bool:
    # From a single source trees attain the smallest cut (Edmonds 1973), unless links share.
    single = collective in (Collective.BROADCAST, Collective.REDUCE) and not topology.shared
    return topology.ranks <= _TREE_RANKS and len(topology.links) <= _TREE_LINKS and not single


def _carried(demand: Demand) -> Deliveries:
    """Return the deliveries that every schedule must contain, one row an item.

    An item that one rank holds and others want as it is, is carried to all of them. Of one that
    is combined, one contribution is carried to one rank. Items that several ranks hold need not
    be carried at all.
    """
    holders: dict[int, dict[int, set[int]]] = {}  # item -> contributor -> its initial holders
    values: dict[int, set[int]] = {}
    for rank in range(demand.ranks):
        for _, item, mask in demand.initial(rank):
            values.setdefault(item, set()).add(mask)
            for contributor in _ranks_of(mask):
                holders.setdefault(item, {}).setdefault(contributor, set()).add(rank)
    required: dict[int, list[tuple[int, int]]] = {}
    for rank in range(demand.ranks):
        for _, item, mask in demand.final(rank):
            required.setdefault(item, []).append((mask, rank))
    rows: list[tuple[int, list[int]]] = []
    for item, wants in sorted(required.items()):
        unique = [
            (next(iter(who)), mask, rank)
            for mask, rank in wants
            for contributor in _ranks_of(mask)
            if len(who := holders[item][contributor]) == 1 and rank not in who
        ]
        if not unique:
            continue
        if len({mask for _, mask, _ in unique}) == 1 and unique[0][1] in values[item]:
            rows.append((unique[0][0], [rank for _, _, rank in unique]))
        else:
            rows.append((unique[-1][0], [unique[-1][2]]))
    targets = np.zeros((len(rows), demand.ranks), dtype=bool)
    for row, (_, ranks) in enumerate(rows):
        targets[row, ranks] = True
    origin = np.array([rank for rank, _ in rows], dtype=np.int32)
    return Deliveries(ranks=demand.ranks, origin=origin, targets=targets)


def _ranks_of(mask: int) -> list[int]:
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def _trees(topology: Topology, collective: Collective, root: int) -> Rate:
    """The rate at which all of the collective's bytes can go down trees."""
    flows, every = _flows(topology), np.arange(topology.ranks)
    combining = collective in (Collective.REDUCE, Collective.REDUCE_SCATTER)
    if collective in (Collective.BROADCAST, Collective.REDUCE):
        origin, group = np.array([root], dtype=np.int32), None
    else:
        origin, group = every.astype(np.int32), translations(topology)
    deliveries = Deliveries(ranks=topology.ranks, origin=origin, targets=every != origin[:, None])
    weights = np.full(len(origin), 1.0 / len(origin))
    return flows.trees(deliveries, weights, combining=combining, symmetry=group)


def _all_pairs(flows: Flows, n: int, group: np.ndarray) -> Rate:
    """The rate of all pairs at once, where a group makes one source stand for all."""
    origin, to = (ends.reshape(-1) for ends in np.indices((n, n)))
    targets = (np.arange(n) == to[:, None]) & (to != origin)[:, None]
    deliveries = Deliveries(ranks=n, origin=origin.astype(np.int32), targets=targets)
    return flows.trees(deliveries, np.ones(n * n), symmetry=group)


def _distinct(
    topology: Topology, collective: Collective, together: list[tuple[str, _Pairs]]
) -> list[tuple[str, _Pairs]]:
    """One of each orbit under the topology's automorphisms; with a root all are kept.

    All, too, where ranks have too many symmetries to search for: a star of some two hundred.
    """
    n = topology.ranks
    if len(together) < 2 or collective in ROOTED:
        return together
    try:
        generators, _ = automorphism_generators(topology)
    except SymmetryError:
        return together
    if collective is Collective.ALLREDUCE:
        moved = [(perm[:, None] * n + perm[None, :]).reshape(-1) for perm in generators]
        label = orbits(n * n, moved)
        names = [int(label[pairs[0][0] * n + pairs[0][1]]) for _, pairs in together]
    else:
        names = orbits(n, generators).tolist()
    first = {name: place for place, name in reversed(list(enumerate(names)))}
    return [together[place] for place in sorted(first.values())]


def _spread(together: list[tuple[str, _Pairs]], most: int) -> list[tuple[str, _Pairs]]:
    """At most so many, evenly spread over all."""
    if len(together) <= most:
        return together
    picked = np.unique(np.linspace(0, len(together) - 1, most).round().astype(int))
    return [together[k] for k in picked.tolist()]


def _pairs(n: int, collective: Collective, root: int) -> _Pairs:
    """Every (s, t) where something of s must reach t."""
    everyone = range(n)
    match collective:
        case Collective.BROADCAST | Collective.SCATTER:
            return [(root, t) for t in everyone if t != root]
        case Collective.REDUCE | Collective.GATHER:
            return [(s, root) for s in everyone if s != root]
        case _:
            return [(s, t) for s in everyone for t in everyone if s != t]


def _together(n: int, collective: Collective, pairs: _Pairs) -> list[tuple[str, _Pairs]]:
    """The pairs whose flows are of different bytes, so that they must fit at once."""
    match collective:
        case Collective.ALLGATHER:
            return [(f"into {r}", [(s, r) for s in range(n) if s != r]) for r in range(n)]
        case Collective.REDUCE_SCATTER:
            return [(f"out of {r}", [(r, t) for t in range(n) if t != r]) for r in range(n)]
        case Collective.GATHER:
            return [("into the root", pairs)]
        case Collective.SCATTER:
            return [("out of the root", pairs)]
        case Collective.ALL_TO_ALL:
            return [("of all pairs", pairs)]
        case _:
            if collective is Collective.ALLREDUCE and n > _ALL_PAIRS_RANKS:
                pairs = [pair for pair in pairs if 0 in pair]
            return [(f"{s} -> {t}", [(s, t)]) for s, t in pairs]


def _group_share(label: np.ndarray, collective: Collective, root: int) -> float:
    """Amount that sends between the groups of `label` must move, as a multiple of the total bytes.

    A group has a byte once its ranks together have it: groups behave like ranks.
    """
    sizes = np.bincount(label)
    n, groups = int(sizes.sum()), int((sizes > 0).sum())
    match collective:
        case Collective.ALLREDUCE:
            return 2.0 * (groups - 1)
        case Collective.GATHER | Collective.SCATTER:
            return (n - int(sizes[label[root]])) / n
        case Collective.ALL_TO_ALL:
            return (n * n - float((sizes.astype(float) ** 2).sum())) / n
        case _:
            return groups - 1.0


def cut_shares(n: int, collective: Collective, size: int, rooted: bool) -> tuple[float, float]:
    """Return the shares of all bytes that must enter and leave a set of `size` ranks.

    Parameters
    ----------
    rooted : the root is one of them.
    """
    outside, mine = (n - size) / n, size / n
    match collective:
        case Collective.ALLREDUCE:
            return 1.0, 1.0
        case Collective.BROADCAST:
            return (0.0, 1.0) if rooted else (1.0, 0.0)
        case Collective.REDUCE:
            return (1.0, 0.0) if rooted else (0.0, 1.0)
        case Collective.SCATTER:
            return (0.0, outside) if rooted else (mine, 0.0)
        case Collective.GATHER:
            return (outside, 0.0) if rooted else (0.0, mine)
        case Collective.ALLGATHER:
            return outside, mine
        case Collective.REDUCE_SCATTER:
            return mine, outside
        case _:
            return size * outside, size * outside


def _volume_formula(collective: Collective, n: str, egress: str) -> str:
    ranks = "(N-1)/N" if n == "N" else "(share outside the root's)"
    pairs = "(N-1)" if n == "N" else "(N - sum of sizes^2 / N)"
    form = _VOLUMES.get(collective, "({n}-1) M / {egress} + alpha")
    return form.format(n=n, egress=egress, ranks=ranks, pairs=pairs)
