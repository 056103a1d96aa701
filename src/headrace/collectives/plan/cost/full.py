"""Predict the time of a program under the full cost model, message by message.

A message is the unit. It begins when all that its steps wait for has ended, the message before it
in its lane has begun, and every resource of its route is free: the link, and every shared capacity
that the link is part of. It holds each resource r for ``alpha + beta_r * MB`` and is there as a
whole after ``alpha + max over r of beta_r * MB`` (TACCL 5.17, 5.18, with several resources).

Combining is free, but has its turn. A message received ahead of its turn is kept beside the slot,
in buffers of its connection: its transfer does not wait for another message that is combined into
the same slot before it. Each of its parts is *taken* when the message has arrived, and the
parts before it in its slot and in its lane have been taken; readers of the slot wait for that. So
every dependency of the program is kept, and sums are the same in every run; the buffers are assumed
to be large enough.

The schedule is work-conserving: whenever resources become free, of the messages that could begin
the one with the lowest number does, then the next that still can, and so on. Times closer than a
billionth of themselves are equal: the order in which costs are summed must not decide which message
goes first.
"""

from heapq import heapify, heappop, heappush

import numpy as np

from headrace.collectives.plan.cost.pieces import RECV, SEND, links_of, mates_of
from headrace.collectives.plan.cost.resources import Route, resource_routes
from headrace.collectives.program import Op, Program
from headrace.topology import BYTES_PER_MB, Topology

_SAME_MOMENT = 1e-9


class Messages:
    """A program as a graph of nodes: its messages by number, then its local steps.

    In programs that combine a third kind follows: of every receive, that it has been taken.

    Attributes
    ----------
    count : number of messages.
    node : of every step its node.
    taken : of every step the node that others wait for: its own, or that of its taking.
    lane, link : of every message its send lane, and its link in the topology.
    mb : size of every node in MB; taking costs nothing.
    waits : of every node the number of others that it waits for.
    unlocks : of every node those that wait for it.
    behind : of every message the next in its lane; -1 if it is the last.
    """

    def __init__(self, program: Program, topology: Topology, total_bytes: int) -> None:
        steps = program.steps
        lane = steps["lane"].astype(np.int64)
        lane_start = np.searchsorted(lane, np.arange(len(program.lanes["rank"]) + 1))
        mate = mates_of(program, lane_start)
        sends = np.flatnonzero(program.lanes["direction"][lane] == SEND)
        local = np.flatnonzero(mate < 0)
        # One lane's steps of one number are one message, whatever the numbers of other lanes.
        number = steps["message"][sends].astype(np.int64) * len(lane_start) + lane[sends]
        _, first, inverse = np.unique(number, return_index=True, return_inverse=True)
        self.count = len(first)
        self.node = np.empty(len(lane), dtype=np.int64)
        self.node[sends] = inverse
        self.node[mate[sends]] = inverse
        self.node[local] = self.count + np.arange(len(local))
        self.lane = lane[sends][first]
        self.link = links_of(program, topology)[sends][first]
        chunk_mb = program.demand.chunk_bytes(total_bytes) / BYTES_PER_MB
        covered = np.bincount(inverse, weights=steps["count"][sends], minlength=self.count)
        self.mb = np.concatenate([covered, steps["count"][local]]) * chunk_mb
        self.behind = self._queue(first)
        self._connect(program, lane, local)

    def _connect(self, program: Program, lane: np.ndarray, local: np.ndarray) -> None:
        step, on = program.dependencies["step"], program.dependencies["on"]
        combines = program.steps["op"] == Op.RECV_REDUCE
        waiting, self.taken = self.node[step], self.node
        in_turn = local[1:][np.diff(lane[local]) == 0]
        later, earlier = [self.node[in_turn]], [self.node[in_turn - 1]]
        nodes = self.count + len(local)
        if combines.any():
            receives = np.flatnonzero(program.lanes["direction"][lane] == RECV)
            self.taken = self.node.copy()
            self.taken[receives] = nodes + np.arange(len(receives))
            follows = np.flatnonzero(np.diff(lane[receives]) == 0)
            later += [self.taken[receives], nodes + 1 + follows]
            earlier += [self.node[receives], nodes + follows]
            waiting = np.where(combines[step] & combines[on], self.taken[step], waiting)
            nodes += len(receives)
        later.append(waiting)
        earlier.append(self.taken[on])
        after, before = np.concatenate(later), np.concatenate(earlier)
        edges = np.sort((before * nodes + after)[before != after])
        edges = edges[np.append(True, np.diff(edges) != 0)[: len(edges)]]
        before, after = edges // max(1, nodes), edges % max(1, nodes)
        self.waits: list[int] = np.bincount(after, minlength=nodes).tolist()
        ends = np.searchsorted(before, np.arange(nodes + 1)).tolist()
        flat: list[int] = after.tolist()
        self.unlocks = [flat[ends[k] : ends[k + 1]] for k in range(nodes)]
        self.mb = np.append(self.mb, np.zeros(nodes - len(self.mb)))

    def _queue(self, first_step: np.ndarray) -> np.ndarray:
        """Return the next message of every message in its lane; -1 for the last."""
        order = np.argsort(first_step)  # steps are grouped by lane
        same = np.diff(self.lane[order]) == 0
        behind = np.full(self.count, -1, dtype=np.int64)
        behind[order[:-1][same]] = order[1:][same]
        return behind


def run_messages(
    messages: Messages, topology: Topology, local_us_per_mb: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and end of every node, in us; -1 for those that never run."""
    made, resources = resource_routes(topology, messages.link.tolist())
    alpha = [topology.links[link].alpha_us for link in messages.link.tolist()]
    holds = _holds(messages, made, alpha)
    run = _Run(messages, holds, resources, (messages.mb[messages.count :] * local_us_per_mb))
    run.until_done()
    return np.array(run.begin), np.array(run.end)


def _holds(
    messages: Messages, made: dict[int, Route], alpha: list[float]
) -> list[list[tuple[int, float]]]:
    """For every message its resources, and the us for which it holds each."""
    known: dict[tuple[int, float], list[tuple[int, float]]] = {}
    holds: list[list[tuple[int, float]]] = []
    for link, mb, fixed in zip(messages.link.tolist(), messages.mb.tolist(), alpha, strict=False):
        if (link, mb) not in known:
            known[link, mb] = [(resource, fixed + beta * mb) for resource, beta in made[link]]
        holds.append(known[link, mb])
    return holds


class _Run:
    """The event loop. Only the heads of lanes are candidates."""

    def __init__(
        self,
        messages: Messages,
        holds: list[list[tuple[int, float]]],
        resources: int,
        local_us: np.ndarray,
    ) -> None:
        self._count, self._unlocks = messages.count, messages.unlocks
        self._behind: list[int] = messages.behind.tolist()
        self._holds = holds
        self._takes = [max(us for _, us in held) for held in holds]
        self._local_us: list[float] = local_us.tolist()
        self._waits = list(messages.waits)
        for message in self._behind:  # one more: to become the head of the lane
            if message >= 0:
                self._waits[message] += 1
        self._free = [0.0] * resources
        self._queue: list[list[int]] = [[] for _ in range(resources)]
        self._events: list[tuple[float, int]] = []
        """(time, node that ends), or (time, -1 - resource that becomes free)."""
        self._ready = [k for k in range(messages.count) if not self._waits[k]]
        heapify(self._ready)
        nodes = messages.count + len(self._local_us)
        self.begin, self.end = [-1.0] * nodes, [-1.0] * nodes

    def until_done(self) -> None:
        events, queue, free = self._events, self._queue, self._free
        for node in [k for k in range(self._count, len(self.end)) if not self._waits[k]]:
            self.begin[node] = 0.0
            if self._local_us[node - self._count] > 0.0:
                heappush(events, (self._local_us[node - self._count], node))
            else:
                self._finish(node, 0.0)
        self._start_all(0.0)
        while events:
            now = events[0][0]
            limit = now * (1.0 + _SAME_MOMENT)
            while events and events[0][0] <= limit:
                now, what = heappop(events)
                if what >= 0:
                    self._finish(what, now)
                elif queue[-1 - what] and free[-1 - what] <= limit:
                    heappush(self._ready, heappop(queue[-1 - what]))
            self._start_all(now)

    def _start_all(self, now: float) -> None:
        """Begin all messages that can begin, lowest number first."""
        ready, free, queue, events = self._ready, self._free, self._queue, self._events
        limit = now * (1.0 + _SAME_MOMENT)
        while ready:
            message = heappop(ready)
            held = self._holds[message]
            scarce, until = -1, limit
            for resource, _ in held:
                if free[resource] > until:
                    scarce, until = resource, free[resource]
            if scarce >= 0:
                if not queue[scarce]:
                    heappush(events, (until, -1 - scarce))
                heappush(queue[scarce], message)
                # Another resource may have activated it, which the next message may take instead.
                for resource, _ in held:
                    if free[resource] <= limit and queue[resource]:
                        heappush(ready, heappop(queue[resource]))
                continue
            self.begin[message] = now
            for resource, us in held:
                free[resource] = now + us
                if queue[resource]:
                    heappush(events, (now + us, -1 - resource))
            heappush(events, (now + self._takes[message], message))
            behind = self._behind[message]
            if behind >= 0:
                self._waits[behind] -= 1
                if not self._waits[behind]:
                    heappush(ready, behind)

    def _finish(self, node: int, now: float) -> None:
        """End a node; local steps that take no time follow at once, before any message begins."""
        done = [node]
        while done:
            node = done.pop()
            self.end[node] = now
            for later in self._unlocks[node]:
                self._waits[later] -= 1
                if self._waits[later]:
                    continue
                if later < self._count:
                    heappush(self._ready, later)
                    continue
                self.begin[later] = now
                us = self._local_us[later - self._count]
                if us > 0.0:
                    heappush(self._events, (now + us, later))
                else:
                    done.append(later)
