"""All-to-all on a symmetric topology: every rank the same paths to all others.

A chunk is named by its destination as its holder sees it; a step over class s turns name b into
g_s^-1(b), until it is 0. So a table of the next class for every name is a routing table. Paths are
shortest at prices that balance the capacities' loads; among equal paths the table takes those that
even the loads out. Then each class sends the chunks queued for it in batches, those with the
longest way first.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from headrace.collectives.demand import Collective
from headrace.collectives.plan.generators.orbits.bound import price_rounds, priced_distances
from headrace.collectives.plan.generators.orbits.group import LinkClasses, RegularGroup
from headrace.collectives.plan.generators.orbits.grow import Clock
from headrace.collectives.plan.generators.orbits.plan import SEND_COLUMNS, OrbitPlan

_SHARES = (1.0, 0.5, 0.2)
_MAX_HOPS = 300_000
"""More hops of chunks than this are not planned, but for the least number of chunks."""

_TIGHT = 1.0 + 1e-6
_TIE = 1e-3
"""Share of a class's own cost added to its price: of equally priced paths the shorter wins."""


def exchange_plans(
    group: RegularGroup,
    classes: LinkClasses,
    block_mb: float,
    chunks: tuple[int, ...],
    few: np.ndarray,
) -> Iterator[OrbitPlan]:
    """Return all-to-alls with the chunk counts and several batch sizes.

    Parameters
    ----------
    few : classes that connect all ranks, such as those that an allgather of small blocks uses.
        Paths over these alone are longer, but have fewer messages: for small blocks.
    """
    used = classes.uses[classes.uses.any(axis=1)]
    *_, weight = price_rounds(classes)
    price = weight @ used
    own = classes.alpha_us + used.max(axis=0)
    cost = price / price.max() + _TIE * own / own.max()
    for count in chunks:
        tables = _tables(classes, used, cost, count)
        if count > min(chunks) and sum(int(hops.sum()) for _, hops in tables) > _MAX_HOPS:
            break
        for share in _SHARES:
            yield _plan(group, classes, tables, block_mb, share)
    if len(few) < classes.count:
        some = np.full(classes.count, np.inf)
        some[few] = classes.alpha_us[few] + used[:, few].max(axis=0) * block_mb
        tables = _tables(classes, used, some, 1)
        for share in _SHARES[:2]:
            yield _plan(group, classes, tables, block_mb, share)


def _plan(
    group: RegularGroup,
    classes: LinkClasses,
    tables: list[tuple[np.ndarray, np.ndarray]],
    block_mb: float,
    share: float,
) -> OrbitPlan:
    columns = _Exchange(classes, tables, block_mb / len(tables), share).run()
    return OrbitPlan.of(Collective.ALL_TO_ALL, len(tables), group.generators, columns)


def _tables(
    classes: LinkClasses, used: np.ndarray, cost: np.ndarray, chunks: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every chunk of a block the next class of every name, and the steps left to its end."""
    onward = np.argsort(classes.held, axis=1)
    far = priced_distances(onward, cost)
    order = np.argsort(far, kind="stable").tolist()
    load = np.zeros(len(used))
    tables: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(chunks):
        following = np.full(len(far), -1)
        through = np.ones(len(far))
        for name in reversed(order):
            if name == 0:
                continue
            tight = np.flatnonzero(far[onward[:, name]] + cost <= far[name] * _TIGHT)
            after = load[:, None] + used[:, tight] * through[name]
            busiest = np.where(used[:, tight] > 0, after, 0.0).max(axis=0)
            best = int(tight[np.argmin(np.round(busiest, 9))])
            following[name] = best
            load += used[:, best] * through[name]
            through[onward[best, name]] += through[name]
        hops = np.zeros(len(far), dtype=np.int64)
        for name in order:
            if name:
                hops[name] = hops[onward[following[name], name]] + 1
        tables.append((following, hops))
    return tables


class _Exchange:
    """Event loop as in `grow`; a queue for every class, the longest way left first."""

    def __init__(
        self,
        classes: LinkClasses,
        tables: list[tuple[np.ndarray, np.ndarray]],
        chunk_mb: float,
        share: float,
    ) -> None:
        self._classes, self._mb, self._share = classes, chunk_mb, share
        self._onward = np.argsort(classes.held, axis=1).tolist()
        self._next = [table.tolist() for table, _ in tables]
        self._hops = [hops.tolist() for _, hops in tables]
        self._queue: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(classes.count)]
        self._left = np.zeros(classes.count, dtype=np.int64)
        self._number = 0
        ranks = classes.held.shape[1]
        for chunk in range(len(tables)):
            for name in range(1, ranks):
                self._wait(0, name, chunk)
                at = name
                while at:
                    s = self._next[chunk][at]
                    self._left[s] += 1
                    at = self._onward[s][at]

    def _wait(self, origin: int, name: int, chunk: int) -> None:
        hops = self._hops[chunk][name]
        entry = (-hops, self._number, origin, name, chunk)
        self._number += 1
        heappush(self._queue[self._next[chunk][name]], entry)

    def run(self) -> dict[str, np.ndarray]:
        classes, clock = self._classes, Clock(self._classes)
        sent: list[tuple[int, list[tuple[int, int, int]]]] = []
        for arrived in clock.moments():
            for message in arrived:
                s, items = sent[message]
                onward = self._onward[s]
                for origin, name, chunk in items:
                    if onward[name]:
                        self._wait(onward[origin], onward[name], chunk)
            # Largest remaining load first: it bounds the time.
            ways = [s for s in range(classes.count) if self._queue[s]]
            for s in sorted(ways, key=lambda s: (-self._left[s], -len(self._queue[s]), s)):
                if not clock.is_free(s):
                    continue
                size = max(1, min(len(self._queue[s]), round(self._share * self._left[s])))
                self._left[s] -= size
                sent.append((s, [heappop(self._queue[s])[2:] for _ in range(size)]))
                clock.send(s, size * self._mb)
        return self._columns(sent)

    def _columns(self, sent: list[tuple[int, list[tuple[int, int, int]]]]) -> dict[str, np.ndarray]:
        rows = np.array(
            [
                (self._classes.dst[s], name, origin, chunk, 0, message)
                for message, (s, items) in enumerate(sent)
                for origin, name, chunk in items
            ],
            dtype=np.int64,
        ).reshape(-1, 6)
        return dict(zip(SEND_COLUMNS, rows.T, strict=True))
