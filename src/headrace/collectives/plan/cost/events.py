"""The event loop of the full cost model: which message begins when its resources are free.

The schedule is work-conserving: whenever resources become free, of the messages that could begin
the one with the lowest number does, then the next that still can, and so on.

Searches that choose what goes next have loops of their own, under the same costs, as the order is
their result, not their input: `native/synthesis` (urgency, messages cut as they start),
`generators.orbits.grow` and `exchange` (one rank's sends stand for all), and
`generators.taccl.work` (a key decides, and a message begins when the last of what it waits for has
ended, not at the event).
"""

from heapq import heapify, heappop, heappush

SAME_MOMENT = 1.0 + 1e-9
"""Times closer than this ratio are equal.

The order in which costs are summed must not decide which message goes first; rounding over a
million sums is ten times less, and no cost is known to as many digits.
"""


class EventLoop:
    """Start and end of every node; only the heads of lanes are candidates.

    Nodes are messages, by number, then local steps.

    Parameters
    ----------
    holds : of every message its resources, and the us for which it holds each.
    resources : number of resources.
    behind : of every message the next in its lane; -1 if it is the last.
    waits : of every node the number of others that it waits for, besides those of its lane.
    unlocks : of every node those that wait for it.
    local_us : of every local step, its time.

    Attributes
    ----------
    begin, end : of every node, in us; -1 for those that never run.
    """

    def __init__(
        self,
        holds: list[list[tuple[int, float]]],
        resources: int,
        *,
        behind: list[int],
        waits: list[int],
        unlocks: list[list[int]],
        local_us: list[float] | None = None,
    ) -> None:
        self._count, self._unlocks, self._behind = len(holds), unlocks, behind
        self._holds = holds
        self._takes = [max(us for _, us in message_holds) for message_holds in holds]
        self._local_us = local_us or []
        self._waits = list(waits)
        for message in self._behind:  # one more: to become the head of the lane
            if message >= 0:
                self._waits[message] += 1
        self._free = [0.0] * resources
        self._queue: list[list[int]] = [[] for _ in range(resources)]
        self._events: list[tuple[float, int]] = []
        """(time, node that ends), or (time, -1 - resource that becomes free)."""
        self._ready = [k for k in range(self._count) if not self._waits[k]]
        heapify(self._ready)
        nodes = self._count + len(self._local_us)
        self.begin, self.end = [-1.0] * nodes, [-1.0] * nodes

    def until_done(self) -> None:
        """Run all nodes; those of a cycle never begin."""
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
            limit = now * SAME_MOMENT
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
        limit = now * SAME_MOMENT
        while ready:
            message = heappop(ready)
            holds = self._holds[message]
            scarce, until = -1, limit
            for resource, _ in holds:
                if free[resource] > until:
                    scarce, until = resource, free[resource]
            if scarce >= 0:
                if not queue[scarce]:
                    heappush(events, (until, -1 - scarce))
                heappush(queue[scarce], message)
                # Another resource may have activated it, which the next message may take instead.
                for resource, _ in holds:
                    if free[resource] <= limit and queue[resource]:
                        heappush(ready, heappop(queue[resource]))
                continue
            self.begin[message] = now
            for resource, us in holds:
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
