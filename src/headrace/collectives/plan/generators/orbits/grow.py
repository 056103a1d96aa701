"""Allgather on a symmetric topology: grow one rank's state, message by message.

By symmetry all ranks hold the same blocks under their own names for them. So the whole search is
about one rank: what it holds (block e, chunk k), and which link class brings what is missing. The
sender of class s holds as ``held[s, e]`` what the receiver calls e.

An event loop under the full cost model. Whenever links are free, each group of classes (those that
share capacities) takes from the chunks that it can bring now:

- *Levels.* Where the slow links bound the time, they bring every block just once into the part of
  the network that faster links join (a host), and the fast ones spread it there. See `levels`.
- *Fair shares.* Chunks that several groups can bring are split by their rates: all stay busy.
- *Batches.* A message pays alpha once. A message takes at most a share of what is left to
  bring: messages grow while blocks spread, and shrink towards the end, so that the faster levels
  are not left with everything at last. Where all links are alike they stay in step instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from headrace.collectives.plan.cost.events import SAME_MOMENT
from headrace.collectives.plan.generators.orbits.group import LinkClasses
from headrace.collectives.plan.generators.orbits.levels import Level, LinkGroup

_SWEEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Growth:
    """Sends of one rank in an allgather.

    Attributes
    ----------
    link_class, block, chunk, message : int64, one row a chunk sent, by the sender's names.
    start_us, end_us : (messages,) float64, when each begins and arrives; they are numbered as they
        begin.
    """

    link_class: np.ndarray
    block: np.ndarray
    chunk: np.ndarray
    message: np.ndarray
    start_us: np.ndarray
    end_us: np.ndarray

    @property
    def total_us(self) -> float:
        """Time of the last arrival."""
        return float(self.end_us.max(initial=0.0))


class Clock:
    """Event loop of one rank, whose resources stand for those of all.

    Attributes
    ----------
    now, limit : the present time in us; later times up to `limit` are the same moment.
    start_us, end_us : of every message sent so far, its begin and its arrival.
    """

    def __init__(self, classes: LinkClasses) -> None:
        self._classes = classes
        self._on = [np.flatnonzero(column) for column in classes.times.T]
        self._free = np.zeros(len(classes.uses))
        self._times = [0.0]
        self._arrivals: list[tuple[float, int]] = []
        self.now = self.limit = 0.0
        self.start_us: list[float] = []
        self.end_us: list[float] = []

    def moments(self) -> Iterator[list[int]]:
        """Go on to each moment at which a message may begin; yield those that arrive then."""
        while self._times:
            self.now = heappop(self._times)
            while self._times and self._times[0] <= self.now * SAME_MOMENT:
                self.now = heappop(self._times)
            self.limit = self.now * SAME_MOMENT
            arrived: list[int] = []
            while self._arrivals and self._arrivals[0][0] <= self.limit:
                arrived.append(heappop(self._arrivals)[1])
            yield arrived

    def free_at(self, s: int) -> float:
        """Return when the resources of class `s` are free."""
        return float(self._free[self._on[s]].max())

    def is_free(self, s: int) -> bool:
        """Return whether they are free now."""
        return self.free_at(s) <= self.limit

    def send(self, s: int, mb: float) -> None:
        """Begin a message of `mb` over class `s`."""
        on = self._on[s]
        busy = self._classes.times[on, s] * self._classes.alpha_us[s]
        busy = busy + self._classes.uses[on, s] * mb
        self._free[on] = self.now + busy
        there = self.now + float(busy.max())
        heappush(self._arrivals, (there, len(self.end_us)))
        self.start_us.append(self.now)
        self.end_us.append(there)
        for time in {there, *self._free[on].tolist()}:
            heappush(self._times, time)


class Grower:
    """Finds an allgather of `chunks` chunks a block, each of `chunk_mb`; `run` returns it, once.

    Parameters
    ----------
    levels : from `levels_of`, the slowest first.
    batch_share : largest share of a level's remaining items in one message.
    step : on the last level, the most that a message may take longer than the shortest of those
        that could begin with it.
    """

    def __init__(
        self,
        classes: LinkClasses,
        levels: tuple[Level, ...],
        *,
        chunks: int,
        chunk_mb: float,
        batch_share: float = 1.0,
        step: float = np.inf,
    ) -> None:
        self._classes, self._levels = classes, levels
        self._chunks, self._mb, self._share, self._step = chunks, chunk_mb, batch_share, step
        self._here = np.zeros((classes.held.shape[1], chunks), dtype=bool)
        self._here[0] = True
        # Chunks in each part of the network below each level, or on their way to it.
        self._due = [np.zeros((level.parts, chunks), dtype=bool) for level in levels]
        for level, due in zip(levels, self._due, strict=True):
            due[level.part[0]] = True
        self._clock = Clock(classes)
        self._rows: list[tuple[int, np.ndarray, np.ndarray]] = []

    def run(self) -> Growth:
        """Return the growth."""
        for arrived in self._clock.moments():
            for message in arrived:
                _, e, k = self._rows[message]
                self._here[e, k] = True
            for s, e, k in self._chosen():
                self._rows.append((s, e, k))
                self._clock.send(s, len(e) * self._mb)
        assert all(due.all() for due in self._due), "levels cover every rank"
        return self._growth()

    def _growth(self) -> Growth:
        lengths = [len(e) for _, e, _ in self._rows]
        s = np.repeat([s for s, _, _ in self._rows], lengths).astype(np.int64)
        e, k = (np.concatenate([row[column] for row in self._rows]) for column in (1, 2))
        return Growth(
            link_class=s,
            block=self._classes.held[s, e].astype(np.int64),
            chunk=k,
            message=np.repeat(np.arange(len(lengths)), lengths).astype(np.int64),
            start_us=np.array(self._clock.start_us),
            end_us=np.array(self._clock.end_us),
        )

    def _chosen(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Messages that begin now: (class, receiver's blocks, chunks); marks their items as due."""
        started: list[tuple[int, np.ndarray, np.ndarray]] = []
        for level, due in zip(self._levels, self._due, strict=True):
            open_ = ~due[level.part]  # no chunk twice into one part
            if open_.any() and any(self._may_start(group) for group in level.groups):
                started += self._split(level, int((~due).sum()), open_)
        return started

    def _split(
        self, level: Level, left: int, open_: np.ndarray
    ) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Split the items that can be brought now among the groups of a level.

        `left` are the items that the level still has to bring.
        """
        picks = [self._pick(group, open_) for group in level.groups]
        some = np.stack([mask for _, mask in picks])
        idle = [s >= 0 and bool(mask.any()) for s, mask in picks]
        if not any(idle):
            return []
        e, k = np.nonzero(some.any(axis=0))
        if level.parts < len(self._here):  # one of each part
            _, first = np.unique(level.part[e] * self._chunks + k, return_index=True)
            first.sort()
            e, k = e[first], k[first]
        options = some[:, e, k].T  # (items, groups)
        kinds, kind, count = np.unique(options, axis=0, return_inverse=True, return_counts=True)
        rate = np.array([group.rate for group in level.groups]) / self._mb
        start = np.array([self._start(group) for group in level.groups])
        fair = _fair_counts(count, kinds, rate, start)
        limit = self._limits(level, left, fair.sum(axis=0), rate, idle)
        order = np.lexsort((e, k))  # groups take items by chunk
        queue = [order[kind.ravel()[order] == number] for number in range(len(count))]
        started: list[tuple[int, np.ndarray, np.ndarray]] = []
        for g, (s, _) in enumerate(picks):
            mine = np.concatenate(
                [
                    queue[kind][fair[kind, :g].sum() : fair[kind, : g + 1].sum()]
                    for kind in np.argsort(kinds.sum(axis=1), kind="stable").tolist()
                ]
            )[: limit[g]]
            if idle[g] and len(mine):
                for each, due in zip(self._levels, self._due, strict=True):
                    due[each.part[e[mine]], k[mine]] = True
                started.append((s, e[mine], k[mine]))
        return started

    def _pick(self, group: LinkGroup, open_: np.ndarray) -> tuple[int, np.ndarray]:
        """The free class with the most items, and these; of a busy group -1 and all its items."""
        held, some = self._classes.held, np.zeros_like(open_)
        if not self._may_start(group):
            for s in group.classes.tolist():
                some |= self._here[held[s]]
            return -1, some & open_
        best, most = -1, 0
        for s in filter(self._clock.is_free, group.classes.tolist()):
            items = self._here[held[s]] & open_
            size = int(np.count_nonzero(items))
            if size > most:
                best, most, some = s, size, items
        return best, some

    def _may_start(self, group: LinkGroup) -> bool:
        return any(self._clock.is_free(s) for s in group.classes.tolist())

    def _start(self, group: LinkGroup) -> float:
        """Time at which the group's next class is free."""
        return max(self._clock.now, min(self._clock.free_at(s) for s in group.classes.tolist()))

    def _limits(
        self, level: Level, left: int, fair: np.ndarray, rate: np.ndarray, idle: list[bool]
    ) -> list[int]:
        """Largest message of each group, in items."""
        longest = self._share * left / rate.sum()
        if level is self._levels[-1] and np.isfinite(self._step):
            takes = [fair[g] / rate[g] for g in range(len(rate)) if idle[g] and fair[g]]
            longest = min(longest, self._step * min(takes, default=0.0))
        return [max(1, round(longest * r)) for r in rate.tolist()]


def _fair_counts(
    count: np.ndarray, allowed: np.ndarray, rate: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Return the number of items of each kind for each link, int64 (kinds, links).

    Iterated water-filling, kind by kind, makes the links' ends as equal as the kinds allow. Then
    fractions are rounded, each kind's in turn.

    Parameters
    ----------
    count : (kinds,), items of each kind.
    allowed : (kinds, links) bool, the links that can take a kind; at least one each.
    rate : (links,), items per unit of time.
    start : (links,), earliest start of each.
    """
    poured = np.zeros(allowed.shape)
    for _ in range(_SWEEPS if len(count) > 1 else 1):
        before = poured.copy()
        for kind in range(len(count)):
            poured[kind] = 0.0
            ends = start + poured.sum(axis=0) / rate
            links = np.flatnonzero(allowed[kind])
            poured[kind, links] = _pour(float(count[kind]), rate[links], ends[links])
        if np.abs(poured - before).max() < 1e-6:
            break
    floors = np.floor(poured + 1e-6).astype(np.int64)
    for kind in np.argsort(allowed.sum(axis=1), kind="stable").tolist():
        remainder = poured[kind] - floors[kind]
        for _ in range(int(count[kind] - floors[kind].sum())):
            ends = start + (floors.sum(axis=0) + 1) / rate
            links = np.flatnonzero(allowed[kind])
            best = links[np.lexsort((-remainder[links], np.round(ends[links], 9)))[0]]
            floors[kind, best] += 1
            remainder[best] -= 1.0
    return floors


def _pour(amount: float, rate: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Fill the lowest first: amounts that make the ends reached equal."""
    order = np.argsort(ends, kind="stable")
    width = np.cumsum(rate[order])
    level = (amount + np.cumsum(rate[order] * ends[order])) / width
    # The level if the first k are filled; right for the last k whose ends are below it.
    inside = level >= ends[order] - 1e-12
    at = float(level[np.flatnonzero(inside)[-1]])
    return np.maximum(0.0, at - ends) * rate
