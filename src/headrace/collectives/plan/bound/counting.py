"""Lower bound on the time of whole chunks by counting them across cuts.

It holds under the full cost model (`cost_model`), for chunks of one size that are forwarded as a
whole. Let K chunks have to get into a set S of ranks. By T a link across has delivered at most

    m(T) = floor((T - head - alpha) / (beta * chunk))

of them: the *head* is the time until the first can be at the link's source, and alpha is paid at
least once. A shared capacity delivers so many over all its links. Summed over links (and
capacities, where those allow less), ``m(T) >= K``.

A chunk that crosses once must do so a *tail* before T: its time, hop by hop, from where it enters
to the farthest rank in S that wants it. Let m'(T) be the number that can, counted with the tail.
If x chunks cross more often, ``K + x <= m(T)`` and ``K - x <= m'(T)``, so

    m(T) + m'(T) >= 2 K.

The smallest T that satisfies both is the bound.

Flows ignore both the rounding (seven 1 MB chunks over links of 23, 23, 46 and 46 us/MB take 69
us, not 53.67) and the spreading of the last chunk inside its host.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import shortest_path

from headrace.collectives.plan.bound.cuts import partitions
from headrace.collectives.plan.cost.resources import slowest_betas
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.topology import Topology

_EXACTLY = 1e-9  # a whole number of chunks, but for rounding
_CLOSE = 1e-10  # relative; times of single chunks are farther apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A cut: `chunks` have to get into (or out of) a set of ranks, which takes `us`."""

    name: str
    chunks: int
    us: float


def most_urgent_cut(topology: Topology, deliveries: Deliveries, chunk_mb: float) -> Count:
    """Return the cut around or beside a rank, host or group that binds whole chunks most.

    Parameters
    ----------
    chunk_mb : size of every chunk in MB; above 0.
    """
    counting = _Counting(topology, deliveries, chunk_mb)
    n = topology.ranks
    if not deliveries.targets.any():
        return Count(name="nowhere", chunks=0, us=0.0)
    cut_name, us = counting.farthest()
    best = Count(name=cut_name, chunks=1, us=us)
    for name, label in (("rank", np.arange(n)), *partitions(topology)):
        for part in np.unique(label).tolist():
            inside = label == part
            for cut_name, cut in (("into", inside), ("out of", ~inside)):
                chunks, us = counting.into(cut)
                if us > best.us * (1 + 1e-12):
                    best = Count(name=f"{cut_name} {name} {part}", chunks=chunks, us=us)
    return best


class _Counting:
    def __init__(self, topology: Topology, deliveries: Deliveries, chunk_mb: float) -> None:
        links = topology.columns
        self._n = topology.ranks
        self._mb = chunk_mb
        self._src, self._dst = links.src, links.dst
        self._alpha, self._beta = links.alpha_us, links.beta_us_per_mb
        self._shared = topology.shared
        self._shares: list[list[int]] = [[] for _ in topology.links]  # by link: capacities
        for number, shared in enumerate(topology.shared):
            for link in set(shared.links):
                self._shares[link].append(number)
        hop = self._alpha + slowest_betas(topology) * chunk_mb
        graph = sparse.csr_array((hop, (self._src, self._dst)), shape=(self._n, self._n))
        self._far = np.asarray(shortest_path(graph, method="D"))
        # Chunks of equal origin and targets are counted together.
        rows = np.column_stack([deliveries.origin, deliveries.targets.astype(np.int64)])
        origins, counts = np.unique(
            rows[deliveries.targets.any(axis=1)], axis=0, return_counts=True
        )
        self._origin, self._targets = origins[:, 0].astype(np.int64), origins[:, 1:].astype(bool)
        self._counts = counts

    def into(self, inside: np.ndarray) -> tuple[int, float]:
        """Return the number of chunks that must get into the ranks `inside`, and the time in us."""
        members = np.flatnonzero(inside)
        outside = np.flatnonzero(~inside[self._origin])
        missing = self._targets[np.ix_(outside, members)]
        incomplete = missing.any(axis=1)
        comes, missing = outside[incomplete], missing[incomplete]
        chunks = int(self._counts[comes].sum())
        across = np.flatnonzero(~inside[self._src] & inside[self._dst])
        if not chunks or not len(across):
            return chunks, 0.0
        head = self._far[np.unique(self._origin[comes])].min(axis=0)[self._src[across]]
        tail = np.full(self._n, np.inf)
        far = self._far[:, members]
        for ranks in np.unique(missing, axis=0):
            tail = np.minimum(tail, far[:, ranks].max(axis=1))
        spent = head + self._alpha[across]
        chunk_us = self._beta[across] * self._mb
        cuts = (_Cut(spent, chunk_us), _Cut(spent + tail[self._dst[across]], chunk_us))
        sharing: dict[int, list[int]] = {}
        for place, link in enumerate(across.tolist()):
            for shared in self._shares[link]:
                sharing.setdefault(shared, []).append(place)
        for shared, places in sorted(sharing.items()):
            for cut in cuts:
                cut.share(places, self._shared[shared].beta_us_per_mb * self._mb)
        return chunks, _smallest(*cuts, chunks)

    def farthest(self) -> tuple[str, float]:
        """The longest path, hop by hop, of a chunk to a target."""
        far = np.where(self._targets, self._far[self._origin], 0.0)
        row, target = np.unravel_index(int(far.argmax()), far.shape)
        return f"{int(self._origin[row])} -> {int(target)}", float(far[row, target])


def _smallest(all_cross: "_Cut", once: "_Cut", chunks: int) -> float:
    """The smallest T in which `chunks` cross and reach their targets."""

    def enough(us: float) -> bool:
        most = all_cross.within(us)
        return most >= chunks and most + once.within(us) >= 2 * chunks

    low, high = 0.0, all_cross.first_us()
    if not math.isfinite(high):
        return 0.0
    while not enough(high):
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    # The exact T is the time of a delivery: that nearest to the bisection's.
    served = np.concatenate([all_cross.served_us(high), once.served_us(high)])
    return float(served[np.abs(served - high).argmin()])


class _Cut:
    """Links across a cut, and groups of them that share a capacity.

    Attributes
    ----------
    spent : (links,) us that pass before a link can have delivered anything.
    each : (links,) us for a chunk.
    """

    def __init__(self, spent: np.ndarray, chunk_us: np.ndarray) -> None:
        # A group delivers at most as many as its parts, and as its own capacity allows.
        self._spent: list[float] = spent.tolist()
        self._each: list[float] = chunk_us.tolist()
        self._members = [frozenset((link,)) for link in range(len(spent))]
        self._parts: dict[int, list[int]] = {}
        self._outer = list(range(len(spent)))

    def share(self, links: list[int], chunk_us: float) -> None:
        """Add a capacity, unless it overlaps with an earlier one: then it is left out."""
        parts = sorted({self._outer[link] for link in links})
        mine = frozenset(links)
        if frozenset().union(*(self._members[part] for part in parts)) != mine:
            return
        if len(parts) == 1:  # the same links again
            self._each[parts[0]] = max(self._each[parts[0]], chunk_us)
            return
        self._parts[len(self._members)] = parts
        for link in links:
            self._outer[link] = len(self._members)
        self._members.append(mine)
        self._spent.append(min(self._spent[part] for part in parts))
        self._each.append(chunk_us)

    def first_us(self) -> float:
        """Earliest delivery of a chunk, in us; infinite if there is none."""
        return min(
            spent + chunk_us for spent, chunk_us in zip(self._spent, self._each, strict=True)
        )

    def within(self, us: float) -> int:
        """Largest number of chunks delivered by time `us`."""
        spent, chunk_us = self._columns
        served = np.floor(np.maximum((us - spent) / chunk_us, 0.0) + _EXACTLY)
        for group, parts in self._parts.items():
            served[group] = min(served[group], served[parts].sum())
        return int(served[self._outermost].sum())

    def served_us(self, us: float) -> np.ndarray:
        """The delivery time of every link or group that is nearest to `us`."""
        spent, chunk_us = self._columns
        usable = np.isfinite(spent)
        spent, chunk_us = spent[usable], chunk_us[usable]
        return spent + chunk_us * np.maximum(1, np.rint((us - spent) / chunk_us))

    @cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self._spent), np.array(self._each)

    @cached_property
    def _outermost(self) -> np.ndarray:
        return np.unique(self._outer)
