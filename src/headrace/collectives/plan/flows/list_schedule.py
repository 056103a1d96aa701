"""List scheduling in plain Python: every chunk down its route, the most urgent first.

The native engine's heuristic without restarts: for tests, for hints to exact solvers, and where
there is no native module.
"""

import heapq

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.events import SAME_MOMENT
from headrace.collectives.plan.cost.resources import resource_routes
from headrace.collectives.plan.engine import Routes
from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.topology import Topology


def in_order(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    through: Routes,
    *,
    batch_share: float = 0.0,
) -> tuple[Sends, float]:
    """Send every chunk down its route under the full cost model; return sends and total in us.

    Whenever resources are free, of the sends that could start the one with the most remaining work
    goes first: the load left on the busiest resource it needs, plus the longest path down its tree.

    Parameters
    ----------
    through : links of every chunk, each after the one that leads to it; they form a tree or path.
    batch_share : largest message, as a share of the chunks that the link is still expected to
        carry; 0 sends every chunk by itself.

    Raises
    ------
    ProgramError : if a route does not reach a target, or uses a link before it reaches its source.
    """
    return _ListSchedule(topology, deliveries, chunk_mb, through, batch_share).run()


def needed(
    deliveries: Deliveries, chunk: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> np.ndarray:
    """Return which sends lead to a target: bool, in any order; a rank gets a chunk at most once."""
    into = {(int(c), int(d)): row for row, (c, d) in enumerate(zip(chunk, dst, strict=True))}
    keep = np.zeros(len(chunk), dtype=bool)
    for c, rank in zip(*np.nonzero(deliveries.targets), strict=True):
        at = (int(c), int(rank))
        while at in into and not keep[into[at]]:
            keep[into[at]] = True
            at = (int(c), int(src[into[at]]))
    return keep


class _ListSchedule:
    """Sends are rows of the routes: a chunk over one link."""

    def __init__(
        self,
        topology: Topology,
        deliveries: Deliveries,
        chunk_mb: float,
        through: Routes,
        batch_share: float,
    ) -> None:
        used = sorted(set(through.link.tolist()))
        self._ways, self._resources = resource_routes(topology, used, keep_links=True)
        links = topology.links
        self._mb, self._share = chunk_mb, batch_share
        self._link: list[int] = through.link.tolist()
        self._ends = {k: (links[k].src, links[k].dst) for k in used}
        self._alpha = {k: links[k].alpha_us for k in used}
        self._takes = {
            k: links[k].alpha_us + chunk_mb * max(beta for _, beta in self._ways[k]) for k in used
        }
        self._chunk: list[int] = []
        self._behind: list[list[int]] = []
        self._starts: list[int] = []
        for chunk in range(deliveries.chunks):
            self._chain(deliveries, through, chunk)
        # Length of the path down, and its last rank: each origin starts with another neighbour.
        count = len(self._link)
        self._tail, self._turn = [0.0] * count, [0] * count
        for send in reversed(range(count)):
            behind = max(self._behind[send], key=lambda k: self._tail[k], default=-1)
            self._tail[send] = self._takes[self._link[send]]
            if behind >= 0:
                self._tail[send] += self._tail[behind]
                self._turn[send] = self._turn[behind]
            else:
                last, origin = self._ends[self._link[send]][1], deliveries.origin[self._chunk[send]]
                self._turn[send] = int(last - origin) % deliveries.ranks

    def _chain(self, deliveries: Deliveries, through: Routes, chunk: int) -> None:
        leads: dict[int, int] = {int(deliveries.origin[chunk]): -1}
        for send in range(int(through.first[chunk]), int(through.first[chunk + 1])):
            src, dst = self._ends[self._link[send]]
            if src not in leads or dst in leads:
                raise ProgramError(
                    f"route of chunk {chunk}: link {src} -> {dst} does not continue a tree from "
                    f"rank {int(deliveries.origin[chunk])}"
                )
            self._chunk.append(chunk)
            self._behind.append([])
            if leads[src] < 0:
                self._starts.append(send)
            else:
                self._behind[leads[src]].append(send)
            leads[dst] = send
        lost = next(
            (t for t in np.flatnonzero(deliveries.targets[chunk]) if int(t) not in leads), -1
        )
        if lost >= 0:
            raise ProgramError(f"route of chunk {chunk} does not reach rank {int(lost)}")

    def run(self) -> tuple[Sends, float]:
        self._free = [0.0] * self._resources
        self._left = [0.0] * self._resources
        self._expected = dict.fromkeys(self._ends, 0)
        for link in self._link:
            self._expected[link] += 1
            for resource, beta in self._ways[link]:
                self._left[resource] += self._alpha[link] + beta * self._mb
        self._ready: dict[int, list[tuple[float, int, int]]] = {link: [] for link in self._ends}
        # The same in columns, by place among the links, for the tests of all links at every event.
        self._links = np.array(list(self._ends), dtype=np.int64)
        self._place = {link: place for place, link in enumerate(self._ends)}
        self._waits = np.zeros(len(self._ends), dtype=bool)
        self._busy = np.append(np.zeros(self._resources), -np.inf)  # the last one is a placeholder
        widest = max(map(len, self._ways.values()), default=0)
        self._needs = np.full((len(self._ends), widest), self._resources)
        for place, link in enumerate(self._ends):
            needs = [resource for resource, _ in self._ways[link]]
            self._needs[place, : len(needs)] = needs
        for send in self._starts:
            self._push(send)
        # (when, sends that arrive; none: a resource is free again)
        events: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
        messages: list[tuple[float, tuple[int, ...]]] = []
        total, order = 0.0, 0
        while events:
            now = events[0][0] * SAME_MOMENT
            while events and events[0][0] <= now:
                for send in heapq.heappop(events)[2]:
                    for other in self._behind[send]:
                        self._push(other)
            for link in self._urgent(now):
                if any(self._free[resource] > now for resource, _ in self._ways[link]):
                    continue
                message, frees, arrives = self._start(link, now)
                messages.append((now, message))
                for when in frees:
                    order += 1
                    heapq.heappush(events, (when, order, ()))
                order += 1
                heapq.heappush(events, (arrives, order, message))
                total = max(total, arrives)
        return self._sends(messages), total

    def _push(self, send: int) -> None:
        row = (-self._tail[send], self._turn[send], send)
        heapq.heappush(self._ready[self._link[send]], row)
        self._waits[self._place[self._link[send]]] = True

    def _urgent(self, now: float) -> list[int]:
        """Links with a send ready and all resources free, the most urgent first."""
        can = self._waits & (self._busy[self._needs] <= now).all(axis=1)
        rows: list[tuple[float, int, int, int]] = []
        for link in self._links[can].tolist():
            tail, turn, send = self._ready[link][0]
            left = max(self._left[r] for r, _ in self._ways[link])
            rows.append((tail - left, turn, send, link))
        return [row[-1] for row in sorted(rows)]

    def _start(self, link: int, now: float) -> tuple[tuple[int, ...], set[float], float]:
        """Start a message; return its sends, the times that free resources, and its arrival."""
        ready = self._ready[link]
        count = min(len(ready), max(1, int(self._share * self._expected[link])))
        message = tuple(heapq.heappop(ready)[2] for _ in range(count))
        self._waits[self._place[link]] = bool(ready)
        self._expected[link] -= count
        frees: set[float] = set()
        for resource, beta in self._ways[link]:
            busy = self._alpha[link] + beta * self._mb * count
            self._free[resource] = self._busy[resource] = now + busy
            self._left[resource] -= busy
            frees.add(now + busy)
        return message, frees, max(frees)

    def _sends(self, messages: list[tuple[float, tuple[int, ...]]]) -> Sends:
        order = [send for _, message in messages for send in message]
        counts = [len(message) for _, message in messages]
        ends = np.array([self._ends[self._link[k]] for k in order], dtype=np.int32).reshape(-1, 2)
        return Sends.of(
            [self._chunk[k] for k in order],
            *ends.T,
            message=np.repeat(np.arange(len(messages)), counts),
            start_us=np.repeat(np.array([when for when, _ in messages], dtype=float), counts),
        )
