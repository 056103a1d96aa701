"""Messages with their dependencies, and their start times: the scheduling side of synthesis.

`Work` is a directed acyclic graph of messages. `list_schedule` schedules them one by one under the
full cost model (`cost_model.FULL`): a message holds every resource r of its route for
``alpha + beta_r * MB`` from its start, and arrives at ``start + alpha + max(beta_r) * MB``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from headrace.collectives.plan.generators.taccl.routing import ChunkCosts
from headrace.collectives.plan.ir.sends import Sends

_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class Work:
    """Messages 0 to n - 1; every list has one entry a message.

    Attributes
    ----------
    link : index into the topology's links.
    chunks : the chunks of the message.
    reduce : whether they are combined at the receiver.
    before : messages that it waits for.
    """

    costs: ChunkCosts
    link: list[int]
    chunks: list[tuple[int, ...]]
    reduce: list[bool]
    before: list[list[int]]

    @property
    def size(self) -> int:
        """Number of messages."""
        return len(self.link)

    @cached_property
    def lats(self) -> list[float]:
        """Time of every message from start to arrival, in us (5.17)."""
        alpha, beta = self.costs.alpha.tolist(), self.costs.beta.tolist()
        rows = zip(self.link, self.chunks, strict=True)
        return [alpha[link] + beta[link] * len(chunks) for link, chunks in rows]

    @cached_property
    def holds(self) -> list[list[tuple[int, float]]]:
        """Resources that every message holds, each with the time in us."""
        alpha, route = self.costs.alpha.tolist(), self.costs.route
        holds_of: dict[tuple[int, int], list[tuple[int, float]]] = {}
        holds: list[list[tuple[int, float]]] = []
        for link, chunks in zip(self.link, self.chunks, strict=True):
            key = (link, len(chunks))
            if key not in holds_of:
                holds_of[key] = [(r, alpha[link] + us * len(chunks)) for r, us in route[link]]
            holds.append(holds_of[key])
        return holds

    @cached_property
    def after(self) -> list[list[int]]:
        """The messages that wait for each."""
        dependents: list[list[int]] = [[] for _ in self.before]
        for at, row in enumerate(self.before):
            for predecessor in row:
                dependents[predecessor].append(at)
        return dependents

    @cached_property
    def order(self) -> list[int]:
        """The messages, each after those it waits for; those of a cycle are left out."""
        pending = [len(row) for row in self.before]
        order = [at for at, count in enumerate(pending) if not count]
        for at in order:
            for dependent in self.after[at]:
                pending[dependent] -= 1
                if not pending[dependent]:
                    order.append(dependent)
        return order

    @property
    def is_acyclic(self) -> bool:
        """Return whether the wait-for graph has no cycle: batches can create one."""
        return len(self.order) == self.size

    def reversed(self) -> "Work":
        """Return the same work run backwards in time."""
        return replace(self, before=self.after)

    @cached_property
    def paths(self) -> tuple[list[float], list[float]]:
        """The longest path until each message starts, and from its start to the end, in us."""
        lats, order = self.lats, self.order
        assert self.is_acyclic, "the wait-for graph of the messages has a cycle"
        until, onward = [0.0] * self.size, list(lats)
        for at in order:
            reach = until[at] + lats[at]
            for dependent in self.after[at]:
                until[dependent] = max(until[dependent], reach)
        for at in reversed(order):
            longest_us = max((onward[dependent] for dependent in self.after[at]), default=0.0)
            onward[at] = lats[at] + longest_us
        return until, onward

    def unavoidable_us(self, batched: np.ndarray) -> float:
        """Return a lower bound of these routes, in us, with batches on `batched` links only.

        The load of every resource (alpha left out on those links), and the longest path.
        """
        load = [0.0] * self.costs.resources
        route, alpha = self.costs.route, np.where(batched, 0.0, self.costs.alpha).tolist()
        for link, chunks in zip(self.link, self.chunks, strict=True):
            for resource, us in route[link]:
                load[resource] += alpha[link] + us * len(chunks)
        return max([*load, *self.paths[1]], default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkTimeline:
    """Start times of messages, in the order in which they were scheduled.

    Attributes
    ----------
    work : the messages.
    start_us : of every message.
    order : message numbers; equal starts in the order in which they were scheduled.
    total_us : arrival of the last message.
    """

    work: Work
    start_us: list[float]
    order: list[int]
    total_us: float

    def sends(self) -> Sends:
        """Return the sends, message by message, with the times at which they start and arrive."""
        work, costs = self.work, self.work.costs
        number = np.empty(work.size, np.int64)
        number[self.order] = np.arange(work.size)
        counts = [len(work.chunks[at]) for at in self.order]
        rows = np.repeat(np.array(self.order, np.int64), counts)
        links = np.array(work.link, np.int64)[rows]
        return Sends.of(
            [chunk for at in self.order for chunk in work.chunks[at]],
            costs.src[links],
            costs.dst[links],
            reduce=np.array(work.reduce, bool)[rows],
            message=number[rows],
            start_us=np.array(self.start_us)[rows],
            arrive_us=(np.array(self.start_us) + work.lats)[rows],
        )


def list_schedule(work: Work, key: Sequence[float], *, by_time: bool = True) -> WorkTimeline:
    """Schedule messages one by one, each as early as those scheduled before allow.

    Parameters
    ----------
    key : of messages that could be scheduled next, the one with the lowest key goes first.
    by_time : of messages that are ready, the one that can start earliest goes first, and `key`
        decides among those. The result is the full cost model's for this order. Else
        `key` decides alone.
    """
    return _by_time(work, key) if by_time else _by_rule(work, key)


def _by_rule(work: Work, key: Sequence[float]) -> WorkTimeline:
    holds, lats, after = work.holds, work.lats, work.after
    pending = [len(row) for row in work.before]
    avail, start = [0.0] * work.size, [0.0] * work.size
    free = [0.0] * work.costs.resources
    placed: list[int] = []
    heap = [(key[at], at) for at, count in enumerate(pending) if not count]
    heapify(heap)
    while heap:
        _, at = heappop(heap)
        begin = max([avail[at], *(free[resource] for resource, _ in holds[at])])
        start[at] = begin
        placed.append(at)
        for resource, us in holds[at]:
            free[resource] = begin + us
        for dependent in after[at]:
            avail[dependent] = max(avail[dependent], begin + lats[at])
            pending[dependent] -= 1
            if not pending[dependent]:
                heappush(heap, (key[dependent], dependent))
    return _timeline(work, start, placed)


def _timeline(work: Work, start: list[float], placed: list[int]) -> WorkTimeline:
    placed.sort(key=start.__getitem__)  # stable
    total = max((begin + lat for begin, lat in zip(start, work.lats, strict=True)), default=0.0)
    return WorkTimeline(work=work, start_us=start, order=placed, total_us=total)


def _by_time(work: Work, key: Sequence[float]) -> WorkTimeline:
    """Advance time; a message whose resource is busy is queued there until it is free."""
    holds, lats, after = work.holds, work.lats, work.after
    pending = [len(row) for row in work.before]
    avail, start = [0.0] * work.size, [0.0] * work.size
    resources = work.costs.resources
    free = [0.0] * resources
    parked: list[list[tuple[float, int]]] = [[] for _ in range(resources)]
    placed: list[int] = []
    # Events: (time, resource that is free again) or (time, resources + message that is ready).
    events = [(0.0, resources + at) for at, count in enumerate(pending) if not count]
    heapify(events)
    while events:
        now = events[0][0] + _SLACK
        waiting: list[tuple[float, int, int]] = []
        while events and events[0][0] <= now:
            _, what = heappop(events)
            if what >= resources:
                heappush(waiting, (key[what - resources], what - resources, -1))
            elif parked[what] and free[what] <= now:
                heappush(waiting, (*heappop(parked[what]), what))
        while waiting:
            rank, at, source = heappop(waiting)
            begin, row = avail[at], holds[at]
            for resource, _ in row:
                until = free[resource]
                if until > begin:
                    if until > now:
                        heappush(parked[resource], (rank, at))
                        break
                    begin = until
            else:
                start[at] = begin
                placed.append(at)
                for resource, us in row:
                    free[resource] = begin + us
                    heappush(events, (begin + us, resource))
                end = begin + lats[at]
                for dependent in after[at]:
                    if avail[dependent] < end:
                        avail[dependent] = end
                    pending[dependent] -= 1
                    if not pending[dependent]:
                        heappush(events, (avail[dependent], resources + dependent))
                continue
            if source >= 0 and parked[source] and free[source] <= now:
                heappush(waiting, (*heappop(parked[source]), source))
    return _timeline(work, start, placed)


def spreading(costs: ChunkCosts, trees: np.ndarray) -> Work:
    """Return the work of spreading chunks along `trees`, one chunk a message."""
    return _along(costs, trees, costs.src)


def combining(costs: ChunkCosts, trees: np.ndarray) -> Work:
    """Return the work of combining chunks along `trees` run backwards (5.7).

    `trees` is over the transposed topology, whose links have the same numbers; `costs` are those
    of the topology itself.
    """
    work = _along(costs, trees, costs.dst).reversed()
    return replace(work, reduce=[True] * work.size)


def _along(costs: ChunkCosts, trees: np.ndarray, tail: np.ndarray) -> Work:
    """Sends from the roots on; `tail` is the end of each link near the root."""
    rows, ranks = np.nonzero(trees >= 0)
    links = trees[rows, ranks]
    number = np.full(trees.shape, -1, np.int64)
    number[rows, ranks] = np.arange(len(rows))
    return Work(
        costs=costs,
        link=links.tolist(),
        chunks=[(chunk,) for chunk in rows.tolist()],
        reduce=[False] * len(links),
        before=[[at] if at >= 0 else [] for at in number[rows, tail[links]].tolist()],
    )


def chained(first: Work, second: Work) -> Work:
    """Return both works at once; a chunk's part in `second` waits for all of it in `first`."""
    shift = first.size
    src, dst = first.costs.src.tolist(), first.costs.dst.tolist()
    before = list(first.before)
    leaves = {(chunk, src[first.link[at]]) for at in range(shift) for chunk in first.chunks[at]}
    ends: dict[int, list[int]] = {}
    for at in range(shift):
        for chunk in first.chunks[at]:
            if (chunk, dst[first.link[at]]) not in leaves:
                ends.setdefault(chunk, []).append(at)
    comes = {
        (chunk, dst[link])
        for link, chunks in zip(second.link, second.chunks, strict=True)
        for chunk in chunks
    }
    for at in range(second.size):
        begins = [c for c in second.chunks[at] if (c, src[second.link[at]]) not in comes]
        waits = sorted({end for chunk in begins for end in ends.get(chunk, ())})
        before.append([*waits, *(predecessor + shift for predecessor in second.before[at])])
    return Work(
        costs=first.costs,
        link=first.link + second.link,
        chunks=first.chunks + second.chunks,
        reduce=first.reduce + second.reduce,
        before=before,
    )


def own_first(work: Work, origin: np.ndarray, crossing: np.ndarray) -> Work:
    """Return `work` with a sender's own chunks before others' on its links between nodes.

    That is a sketch's `enforce_ordering`. Where chunks are combined it is mirrored: chunks that end
    at the receiver come last.
    """
    costs = work.costs
    before = [list(row) for row in work.before]
    lanes: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}
    for at, (link, reduce) in enumerate(zip(work.link, work.reduce, strict=True)):
        if crossing[link]:
            end = int(costs.dst[link] if reduce else costs.src[link])
            own = all(int(origin[chunk]) == end for chunk in work.chunks[at])
            lanes.setdefault((link, reduce), ([], []))[0 if own != reduce else 1].append(at)
    for first, second in lanes.values():
        for late in second:
            before[late] += first
    return replace(work, before=before)


def merged(work: Work, batches: Sequence[Sequence[int]]) -> Work:
    """Return `work` with each of `batches` (messages of one link) as one message."""
    number = list(range(work.size))
    for batch in batches:
        for at in batch:
            number[at] = batch[0]
    representatives = [at for at in range(work.size) if number[at] == at]
    place = {at: index for index, at in enumerate(representatives)}
    members = {at: [at] for at in representatives} | {batch[0]: list(batch) for batch in batches}
    waits = [
        dict.fromkeys(o for at in members[k] for o in work.before[at]) for k in representatives
    ]
    return Work(
        costs=work.costs,
        link=[work.link[at] for at in representatives],
        chunks=[tuple(c for at in members[k] for c in work.chunks[at]) for k in representatives],
        reduce=[work.reduce[at] for at in representatives],
        before=[list(dict.fromkeys(place[number[at]] for at in row)) for row in waits],
    )
