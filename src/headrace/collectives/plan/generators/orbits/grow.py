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

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from headrace.collectives.plan.cost.events import SAME_MOMENT
from headrace.collectives.plan.generators.orbits.classes import LinkClasses
from headrace.collectives.plan.generators.orbits.levels import Level, LinkGroup
from headrace.collectives.plan.generators.orbits.shares import fair_counts


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


def grow(
    classes: LinkClasses,
    levels: tuple[Level, ...],
    *,
    chunks: int,
    chunk_mb: float,
    batch_share: float = 1.0,
    step: float = np.inf,
    by_chunk: bool = True,
    ready_us: np.ndarray | None = None,
) -> Growth:
    """Return an allgather of `chunks` chunks a block, each of `chunk_mb`.

    Parameters
    ----------
    levels : from `levels_of`, the slowest first.
    batch_share : largest share of a level's remaining items in one message.
    step : on the last level, the most that a message may take longer than the shortest of those
        that could begin with it.
    by_chunk : whether groups take items by chunk first, or by block.
    ready_us : (chunks,), earliest times at which a rank's own chunks can leave; None: 0.
    """
    return _Growth(classes, levels, chunks, chunk_mb, batch_share, step, by_chunk, ready_us).run()


class _Growth:
    def __init__(
        self,
        classes: LinkClasses,
        levels: tuple[Level, ...],
        chunks: int,
        chunk_mb: float,
        batch_share: float,
        step: float,
        by_chunk: bool,
        ready_us: np.ndarray | None,
    ) -> None:
        self._step, self._by_chunk = step, by_chunk
        self._classes, self._levels = classes, levels
        self._chunks, self._mb, self._share = chunks, chunk_mb, batch_share
        ranks = classes.held.shape[1] if classes.count else 1
        self._here = np.zeros((ranks, chunks), dtype=bool)
        self._here[0] = True
        self._ready = np.zeros(chunks) if ready_us is None else ready_us
        self._since = np.zeros((ranks, chunks), dtype=np.int64)  # message that brought it
        self._due = self._here.copy()  # here or on its way
        self._here[0] = self._ready <= 0.0
        # Chunks that are in each part of the network below each level.
        self._touched = [self._here[: level.parts].copy() for level in levels]
        for level, touched in zip(levels, self._touched, strict=True):
            touched[:] = False
            touched[level.part[0]] = True
        self._free = np.zeros(len(classes.uses))
        self._on = [np.flatnonzero(column) for column in classes.times.T]
        self._rows: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._starts: list[float] = []
        self._ends: list[float] = []

    def run(self) -> Growth:
        arrivals: list[tuple[float, int]] = []
        now = 0.0
        times: list[float] = sorted({0.0, *self._ready.tolist()})
        while times:
            now = heappop(times)
            while times and times[0] <= now * SAME_MOMENT:
                now = heappop(times)
            limit = now * SAME_MOMENT
            self._here[0] |= self._ready <= limit
            while arrivals and arrivals[0][0] <= limit:
                _, message = heappop(arrivals)
                s, e, k = self._rows[message]
                self._here[e, k] = True
                self._since[e, k] = message
            for s, e, k in self._chosen(now):
                mb = len(e) * self._mb
                on = self._on[s]
                busy = self._classes.times[on, s] * self._classes.alpha_us[s]
                busy = busy + self._classes.uses[on, s] * mb
                self._free[on] = now + busy
                there = now + float(busy.max())
                self._starts.append(now)
                self._ends.append(there)
                heappush(arrivals, (there, len(self._rows)))
                self._rows.append((s, e, k))
                for time in {there, *self._free[on].tolist()}:
                    heappush(times, time)
        assert self._due.all(), "levels cover every rank"
        return self._growth()

    def _growth(self) -> Growth:
        lengths = [len(e) for _, e, _ in self._rows]
        s = np.repeat([s for s, _, _ in self._rows] or [0], lengths or [0]).astype(np.int64)
        e = np.concatenate([np.empty(0, np.int64), *(e for _, e, _ in self._rows)])
        k = np.concatenate([np.empty(0, np.int64), *(k for _, _, k in self._rows)])
        return Growth(
            link_class=s,
            block=self._classes.held[s, e].astype(np.int64),
            chunk=k,
            message=np.repeat(np.arange(len(lengths)), lengths).astype(np.int64),
            start_us=np.array(self._starts),
            end_us=np.array(self._ends),
        )

    def _chosen(self, now: float) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Messages that begin now: (class, receiver's blocks, chunks); marks their items as due."""
        started: list[tuple[int, np.ndarray, np.ndarray]] = []
        for depth in range(len(self._levels)):
            open_ = self._open(depth)
            if open_.any():
                started += self._split(depth, open_, now)
        return started

    def _open(self, depth: int) -> np.ndarray:
        """Items that this level may bring: no chunk twice into one part."""
        level = self._levels[depth]
        if level.parts == len(self._here):
            return ~self._due
        return ~self._touched[depth][level.part]

    def _split(
        self, depth: int, open_: np.ndarray, now: float
    ) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Split the items that can be brought now among the groups of a level."""
        level = self._levels[depth]
        if not any(self._may_start(group, now * SAME_MOMENT) for group in level.groups):
            return []
        picks = [self._pick(group, open_, now) for group in level.groups]
        some = np.stack([mask for _, mask in picks])
        idle = [s >= 0 and bool(mask.any()) for s, mask in picks]
        if not any(idle):
            return []
        e, k = np.nonzero(some.any(axis=0))
        e, k = self._one_of_each_part(level, e, k)
        options = some[:, e, k].T  # (items, groups)
        kinds, kind, count = np.unique(options, axis=0, return_inverse=True, return_counts=True)
        rate = np.array([group.rate for group in level.groups]) / self._mb
        start = np.array([self._start(group, now) for group in level.groups])
        fair = fair_counts(count, kinds, rate, start)
        limit = self._limits(depth, fair.sum(axis=0), rate, idle)
        queue = self._queues(kind.ravel(), len(count), e, k)
        started: list[tuple[int, np.ndarray, np.ndarray]] = []
        for g, (s, _) in enumerate(picks):
            mine = np.concatenate(
                [
                    queue[kind][fair[kind, :g].sum() : fair[kind, : g + 1].sum()]
                    for kind in np.argsort(kinds.sum(axis=1), kind="stable").tolist()
                ]
            )[: limit[g]]
            if idle[g] and len(mine):
                self._mark(e[mine], k[mine])
                started.append((s, e[mine], k[mine]))
        return started

    def _pick(self, group: LinkGroup, open_: np.ndarray, now: float) -> tuple[int, np.ndarray]:
        """The free class with the most items, and these; of a busy group -1 and all its items."""
        classes = self._classes
        limit = now * SAME_MOMENT
        if self._may_start(group, limit):
            best, most, mask = -1, 0, np.zeros_like(open_)
            for s in group.classes.tolist():
                if not self._is_free(s, limit):
                    continue
                items = self._here[classes.held[s]] & open_
                size = int(np.count_nonzero(items))
                if size > most:
                    best, most, mask = s, size, items
            return best, mask
        some = np.zeros_like(open_)
        for s in group.classes.tolist():
            some |= self._here[classes.held[s]]
        return -1, some & open_

    def _may_start(self, group: LinkGroup, limit: float) -> bool:
        return any(self._is_free(s, limit) for s in group.classes.tolist())

    def _start(self, group: LinkGroup, now: float) -> float:
        """Time at which the group's next class is free."""
        return max(now, min(float(self._free[self._on[s]].max()) for s in group.classes.tolist()))

    def _one_of_each_part(
        self, level: Level, e: np.ndarray, k: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if level.parts == len(self._here):
            return e, k
        _, first = np.unique(level.part[e] * self._chunks + k, return_index=True)
        first.sort()
        return e[first], k[first]

    def _limits(
        self, depth: int, fair: np.ndarray, rate: np.ndarray, idle: list[bool]
    ) -> list[int]:
        """Largest message of each group, in items."""
        left = self._share * self._left(depth) / rate.sum()
        if depth == len(self._levels) - 1 and np.isfinite(self._step):
            takes = [fair[g] / rate[g] for g in range(len(rate)) if idle[g] and fair[g]]
            left = min(left, self._step * min(takes, default=0.0))
        return [max(1, round(left * r)) for r in rate.tolist()]

    def _queues(
        self, kind: np.ndarray, kinds: int, e: np.ndarray, k: np.ndarray
    ) -> list[np.ndarray]:
        """Items of every kind in the order in which groups take theirs."""
        order = np.lexsort((e, k) if self._by_chunk else (k, e))
        return [order[kind[order] == number] for number in range(kinds)]

    def _left(self, depth: int) -> int:
        level = self._levels[depth]
        if level.parts == len(self._here):
            return int((~self._due).sum())
        return int((~self._touched[depth]).sum())

    def _is_free(self, s: int, limit: float) -> bool:
        return bool(self._free[self._on[s]].max() <= limit)

    def _mark(self, e: np.ndarray, k: np.ndarray) -> None:
        self._due[e, k] = True
        for level, touched in zip(self._levels, self._touched, strict=True):
            touched[level.part[e], k] = True
