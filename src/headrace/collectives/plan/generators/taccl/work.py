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
    before, after : messages that it waits for; that wait for it.
    """

    costs: ChunkCosts
    link: list[int]
    chunks: list[tuple[int, ...]]
    reduce: list[bool]
    before: list[list[int]]
    after: list[list[int]]

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
        known: dict[tuple[int, int], list[tuple[int, float]]] = {}
        made: list[list[tuple[int, float]]] = []
        for link, chunks in zip(self.link, self.chunks, strict=True):
            key = (link, len(chunks))
            if key not in known:
                known[key] = [(r, alpha[link] + us * len(chunks)) for r, us in route[link]]
            made.append(known[key])
        return made

    def order(self) -> list[int]:
        """Return the messages so that each comes after those it waits for."""
        pending = [len(row) for row in self.before]
        made = [at for at, count in enumerate(pending) if not count]
        for at in made:
            for other in self.after[at]:
                pending[other] -= 1
                if not pending[other]:
                    made.append(other)
        assert len(made) == self.size, "the wait-for graph of the messages has a cycle"
        return made

    def reversed(self) -> "Work":
        """Return the same work run backwards in time."""
        return Work(
            costs=self.costs,
            link=self.link,
            chunks=self.chunks,
            reduce=self.reduce,
            before=self.after,
            after=self.before,
        )

    @cached_property
    def paths(self) -> tuple[list[float], list[float]]:
        """The longest path until each message starts, and from its start to the end, in us."""
        lats, order = self.lats, self.order()
        until, onward = [0.0] * self.size, list(lats)
        for at in order:
            reach = until[at] + lats[at]
            for other in self.after[at]:
                if until[other] < reach:
                    until[other] = reach
        for at in reversed(order):
            rest = max((onward[other] for other in self.after[at]), default=0.0)
            onward[at] = lats[at] + rest
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
        for other in after[at]:
            avail[other] = max(avail[other], begin + lats[at])
            pending[other] -= 1
            if not pending[other]:
                heappush(heap, (key[other], other))
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
                for other in after[at]:
                    if avail[other] < end:
                        avail[other] = end
                    pending[other] -= 1
                    if not pending[other]:
                        heappush(events, (avail[other], resources + other))
                continue
            if source >= 0 and parked[source] and free[source] <= now:
                heappush(waiting, (*heappop(parked[source]), source))
    return _timeline(work, start, placed)


def spreading(costs: ChunkCosts, trees: np.ndarray) -> Work:
    """Return the work of spreading chunks along `trees`, one chunk a message."""
    before, after, links, chunks = _along(trees, costs.src)
    return Work(
        costs=costs,
        link=links,
        chunks=chunks,
        reduce=[False] * len(links),
        before=before,
        after=after,
    )


def combining(costs: ChunkCosts, trees: np.ndarray) -> Work:
    """Return the work of combining chunks along `trees` run backwards (5.7).

    `trees` is over the transposed topology, whose links have the same numbers; `costs` are those
    of the topology itself.
    """
    before, after, links, chunks = _along(trees, costs.dst)
    return Work(
        costs=costs,
        link=links,
        chunks=chunks,
        reduce=[True] * len(links),
        before=after,
        after=before,
    )


def _along(
    trees: np.ndarray, tail: np.ndarray
) -> tuple[list[list[int]], list[list[int]], list[int], list[tuple[int, ...]]]:
    """Predecessors and successors of each send; `tail` is its end near the root."""
    rows, ranks = np.nonzero(trees >= 0)
    links = trees[rows, ranks]
    number = np.full(trees.shape, -1, np.int64)
    number[rows, ranks] = np.arange(len(rows))
    parents = number[rows, tail[links]].tolist()
    before: list[list[int]] = [[at] if at >= 0 else [] for at in parents]
    after: list[list[int]] = [[] for _ in before]
    for at, parent in enumerate(parents):
        if parent >= 0:
            after[parent].append(at)
    return before, after, links.tolist(), [(chunk,) for chunk in rows.tolist()]


def chained(first: Work, second: Work) -> Work:
    """Return both works at once; a chunk's part in `second` waits for all of it in `first`."""
    shift = first.size
    src, dst = first.costs.src.tolist(), first.costs.dst.tolist()
    before = [list(row) for row in first.before]
    after = [list(row) for row in first.after]
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
        for end in waits:
            after[end].append(at + shift)
        before.append([*waits, *(other + shift for other in second.before[at])])
        after.append([other + shift for other in second.after[at]])
    return Work(
        costs=first.costs,
        link=first.link + second.link,
        chunks=first.chunks + second.chunks,
        reduce=first.reduce + second.reduce,
        before=before,
        after=after,
    )


def own_first(work: Work, origin: np.ndarray, crossing: np.ndarray) -> Work:
    """Return `work` with a sender's own chunks before others' on its links between nodes.

    That is a sketch's `enforce_ordering`. Where chunks are combined it is mirrored: chunks that end
    at the receiver come last.
    """
    costs = work.costs
    before = [list(row) for row in work.before]
    after = [list(row) for row in work.after]
    lanes: dict[tuple[int, bool], tuple[list[int], list[int]]] = {}
    for at, (link, reduce) in enumerate(zip(work.link, work.reduce, strict=True)):
        if crossing[link]:
            end = int(costs.dst[link] if reduce else costs.src[link])
            own = all(int(origin[chunk]) == end for chunk in work.chunks[at])
            lanes.setdefault((link, reduce), ([], []))[0 if own != reduce else 1].append(at)
    for first, second in lanes.values():
        for early in first:
            for late in second:
                before[late].append(early)
                after[early].append(late)
    return replace(work, before=before, after=after)


def merged(work: Work, batches: Sequence[Sequence[int]]) -> Work:
    """Return `work` with each of `batches` (messages of one link) as one message."""
    number = list(range(work.size))
    for batch in batches:
        for at in batch:
            number[at] = batch[0]
    kept = [at for at in range(work.size) if number[at] == at]
    place = {at: index for index, at in enumerate(kept)}
    chunks: list[list[int]] = [[] for _ in kept]
    before: list[dict[int, None]] = [{} for _ in kept]
    after: list[dict[int, None]] = [{} for _ in kept]
    members: list[list[int]] = [[at] for at in kept]
    for batch in batches:
        members[place[batch[0]]] = list(batch)
    for index, row in enumerate(members):
        for at in row:
            chunks[index].extend(work.chunks[at])
            for other in work.before[at]:
                before[index][place[number[other]]] = None
            for other in work.after[at]:
                after[index][place[number[other]]] = None
    return Work(
        costs=work.costs,
        link=[work.link[at] for at in kept],
        chunks=[tuple(row) for row in chunks],
        reduce=[work.reduce[at] for at in kept],
        before=[list(row) for row in before],
        after=[list(row) for row in after],
    )
