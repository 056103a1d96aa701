"""Bottleneck cut of a topology for a collective: drawn in red.

Cuts looked at: around single ranks, hosts and what shares a way out; in small topologies around
every set of ranks; then local search by moves of one rank. Capacity across is over-estimated
as in `cuts`, so the time across a cut is a lower bound by itself, seldom above the plan's own
(flows see several cuts at once).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import STANDARD, Demand
from headrace.collectives.plan.bound.cuts import LargeTopology
from headrace.collectives.plan.bound.terms import cut_shares
from headrace.topology import BYTES_PER_MB, Topology

_EVERY_SET = 10
"""Up to so many ranks every set is tried."""

_MOVE_RANKS, _STARTS = 64, 4
"""Up to so many ranks single ranks are moved, from so many of the best cuts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """No plan takes less than `us`: `mb` must get from `ranks` to all others.

    Attributes
    ----------
    ranks : the sending side of the cut.
    mb : what must cross it.
    mb_per_us : the capacity across (an upper estimate).
    us : how long that takes, the least alpha across included.
    links : indices of the links across.
    shared : names of the shared capacities that serve nothing but them.
    """

    ranks: tuple[int, ...]
    mb: float
    mb_per_us: float
    us: float
    links: tuple[int, ...]
    shared: tuple[str, ...]


def bottleneck(topology: Topology, demand: Demand, total_bytes: int) -> Bottleneck | None:
    """Return the slowest cut found; None where nothing has to cross any, or it is not known.

    Demands that are not blocks alike (all_to_all_v, custom) are not cut.
    """
    if topology.ranks < 2 or demand.collective not in STANDARD:
        return None
    search = _Search(topology, demand)
    best = search.best()
    if best is None or search.value(best) <= 0.0:
        return None
    out = _rate(search, best)
    if out is None:
        return None
    mb = search.need(best) * total_bytes / BYTES_PER_MB
    ends = topology.columns
    across = np.flatnonzero(best[ends.src] & ~best[ends.dst])
    crossing = set(across.tolist())
    us_per_mb, alpha_us = out
    return Bottleneck(
        ranks=tuple(np.flatnonzero(best).tolist()),
        mb=mb,
        mb_per_us=1.0 / us_per_mb,
        us=mb * us_per_mb + alpha_us,
        links=tuple(across.tolist()),
        shared=tuple(s.name for s in topology.shared if s.links and crossing.issuperset(s.links)),
    )


def _rate(search: "_Search", inside: np.ndarray) -> tuple[float, float] | None:
    out = search.large.cuts(inside.astype(np.int64))[1][1]
    return None if out is None else (out.us_per_mb, out.alpha_us)


class _Search:
    def __init__(self, topology: Topology, demand: Demand) -> None:
        self.large = LargeTopology(topology)
        self._topology, self._demand = topology, demand
        self._known: dict[bytes, float] = {}

    def best(self) -> np.ndarray | None:
        cuts = [(value, inside) for value, inside in self._candidates() if value > 0.0]
        if not cuts:
            return None
        # stable: equal values keep their order, so equal input gives an equal picture
        cuts.sort(key=lambda row: -row[0])
        if self._topology.ranks > _MOVE_RANKS:
            return cuts[0][1]
        climbed = [self._climb(inside) for _, inside in cuts[:_STARTS]]
        return max(climbed, key=self.value)

    def _candidates(self) -> Iterator[tuple[float, np.ndarray]]:
        """Cuts with the us for each MB of the whole data."""
        n = self._topology.ranks
        for _, label in self.large.partitions():
            into, out = self.large.cuts(label)
            for part in range(int(label.max()) + 1):
                inside = label == part
                for side, rate in ((inside, out[part]), (~inside, into[part])):
                    if rate is not None:
                        yield self.need(side) * rate.us_per_mb, side
        if n <= _EVERY_SET:
            for bits in range(1, (1 << n) - 1):
                inside = np.array([bool(bits >> rank & 1) for rank in range(n)])
                yield self.value(inside), inside

    def value(self, inside: np.ndarray) -> float:
        """The us that each MB of the whole data takes across, without alpha."""
        if (key := inside.tobytes()) not in self._known:
            rate = _rate(self, inside)
            self._known[key] = 0.0 if rate is None else self.need(inside) * rate[0]
        return self._known[key]

    def _climb(self, inside: np.ndarray) -> np.ndarray:
        while True:
            value, better = self.value(inside), None
            for rank in range(len(inside)):
                flipped = inside.copy()
                flipped[rank] = not flipped[rank]
                if 0 < flipped.sum() < len(flipped) and self.value(flipped) > value * (1 + 1e-9):
                    value, better = self.value(flipped), flipped
            if better is None:
                return inside
            inside = better

    def need(self, inside: np.ndarray) -> float:
        """Bytes that must leave the set, as a fraction of the total bytes."""
        size, rooted = int(inside.sum()), bool(inside[self._demand.root])
        return cut_shares(len(inside), self._demand.collective, size, rooted)[1]
