"""Contiguity and exact scheduling (TACCL 5.5.3, equations 5.16 to 5.21).

Batches are variables on links between nodes only (5.4.2). A link's order is given,
so chunks that travel together are neighbours in it: ``is_together[c, o, r]`` is the product of the
``joined`` variables between them. That turns the quadratic number of binaries and of constraints
into a linear one; 5.17's sum over ``is_together`` becomes a running count along the batch. Every
big-M comes from the times between which a heuristic schedule lets each message start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from headrace.collectives.plan.generators.taccl.batch import propose
from headrace.collectives.plan.generators.taccl.order import order_messages
from headrace.collectives.plan.generators.taccl.work import (
    Work,
    WorkTimeline,
    list_schedule,
    merged,
)
from headrace.solver import LinearModel, Parameters, Result, solve

_QUICK = ("longest-forward-time", "shortest-backward-time")
_ROUNDS = 2
"""Of batching, each from the best timeline of the one before."""


def batched(
    base: WorkTimeline,
    crossing: np.ndarray,
    *,
    interrupt: Callable[[], bool] | None = None,
) -> tuple[WorkTimeline, dict[str, float]]:
    """Try to batch the messages of `base`; return the best timeline and each way's time (us)."""
    best, total_us_of = base, {}
    source = base
    for number in range(_ROUNDS):
        improved = False
        for name, batches in propose(source, crossing):
            work = merged(base.work, batches)
            if not work.is_acyclic:
                continue
            key = _carried(source, batches)
            timeline, _ = order_messages(work, start=key, rules=_QUICK, interrupt=interrupt)
            total_us_of[f"{name}, round {number + 1}"] = timeline.total_us
            if timeline.total_us < best.total_us - 1e-9:
                best, improved = timeline, True
            if interrupt is not None and interrupt():
                return best, total_us_of
        if not improved:
            break
        source = list_schedule(base.work, _spread(base.work, best))
    return best, total_us_of


def _carried(source: WorkTimeline, batches: Sequence[Sequence[int]]) -> list[float]:
    """The starts of the messages that `merged` keeps: of a batch that of its last member."""
    start = list(source.start_us)
    dropped: set[int] = set()
    for batch in batches:
        start[batch[0]] = max(source.start_us[at] for at in batch)
        dropped.update(batch[1:])
    return [start[at] for at in range(len(start)) if at not in dropped]


def _spread(work: Work, best: WorkTimeline) -> list[float]:
    """The starts in `best` for the messages of `work`, chunk by chunk."""
    start = {
        (best.work.link[at], chunk, best.work.reduce[at]): best.start_us[at]
        for at in range(best.work.size)
        for chunk in best.work.chunks[at]
    }
    rows = zip(work.link, work.chunks, work.reduce, strict=True)
    return [start[link, chunks[0], reduce] for link, chunks, reduce in rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleModel:
    """The encoded problem; the messages are those of `work`, one chunk each.

    Attributes
    ----------
    send, arrive : (messages,) variables: start and arrival of every message.
    pairs : (pairs, 2) neighbours on a link between nodes that may travel together.
    joined : (pairs,) their variables.
    held : (message, resource) -> variable: time at which its batch so far frees the resource;
        resource -1 stands for its arrival.
    """

    work: Work
    model: LinearModel
    send: np.ndarray
    arrive: np.ndarray
    pairs: np.ndarray
    joined: np.ndarray
    time: int
    held: dict[tuple[int, int], int]

    def values(self, batches: Sequence[Sequence[int]], timeline: WorkTimeline) -> np.ndarray:
        """Return the variables' values for a timeline of the merged work (see `merged`)."""
        work, solution = self.work, np.zeros(self.model.variables)
        starts, counts = np.array(_spread(work, timeline)), np.ones(work.size)
        place = np.ones(work.size)
        together = {(a, b) for batch in batches for a, b in pairwise(batch)}
        for batch in batches:
            counts[list(batch)] = len(batch)
            place[list(batch)] = np.arange(1, len(batch) + 1)
        links = np.array(work.link)
        alpha, beta = work.costs.alpha[links], work.costs.beta[links]
        solution[self.send] = starts
        solution[self.arrive] = starts + alpha + beta * counts
        for (at, resource), variable in self.held.items():
            us = dict(work.costs.route[work.link[at]]).get(resource, beta[at])
            solution[variable] = starts[at] + alpha[at] + us * place[at]
        for (a, b), variable in zip(self.pairs.tolist(), self.joined.tolist(), strict=True):
            solution[variable] = float((a, b) in together)
        solution[self.time] = float(solution[self.arrive].max(initial=0.0))
        return solution

    def batches(self, values: np.ndarray) -> list[list[int]]:
        """Return the batches of a solution."""
        runs: dict[int, list[int]] = {}
        batches: list[list[int]] = []
        for (a, b), on in zip(self.pairs.tolist(), values[self.joined] > 0.5, strict=True):
            if not on:
                continue
            run = runs.pop(a, None)
            if run is None:
                run = [a]
                batches.append(run)
            run.append(b)
            runs[b] = run
        return batches


_ARRIVAL = -1  # stands for the slowest resource in the keys of running counts


def encode_schedule(order: WorkTimeline, crossing: np.ndarray, horizon: float) -> ScheduleModel:
    """Encode 5.1 to 5.4 and 5.16 to 5.21 for the order that `order` gives (us).

    Parameters
    ----------
    order : a timeline of single chunks; it fixes the order on every link and shared capacity.
    crossing : (links,) bool, where chunks may travel together.
    horizon : upper bound on the end; every start lies between its longest way from the
        beginning and `horizon` less its longest way to the end.
    """
    work, costs, model = order.work, order.work.costs, LinearModel()
    until, onward = (np.array(column) for column in work.paths)
    links = np.array(work.link)
    lat = costs.lat[links]
    latest = np.maximum(horizon - onward, until)
    send = model.add_variables(work.size, lower=until, upper=latest)
    arrive = model.add_variables(work.size, lower=until + lat, upper=latest + lat)
    time = int(model.add_variables(1, upper=horizon, cost=1.0)[0])  # 5.1
    model.add_differences(time, arrive)  # 5.2
    waits = [(at, predecessor) for at in range(work.size) for predecessor in work.before[at]]
    table = np.array(waits, np.int64).reshape(-1, 2)
    model.add_differences(send[table[:, 0]], arrive[table[:, 1]])  # 5.4
    model.add_differences(arrive, send, lat)  # 5.18
    queues = _queues(order)
    pairs = _pairs(order, crossing, queues)
    joined = model.add_binaries(len(pairs))
    at_pair = {(int(a), int(b)): int(j) for (a, b), j in zip(pairs, joined, strict=True)}
    held_pairs: dict[tuple[int, int], int] = {}
    encoded = ScheduleModel(
        work=work,
        model=model,
        send=send,
        arrive=arrive,
        pairs=pairs,
        joined=joined,
        time=time,
        held=held_pairs,
    )
    _together(encoded, until, horizon)
    for resource, queue in enumerate(queues):
        _queue(encoded, resource, queue, at_pair)
    return encoded


def schedule_exactly(
    work: Work, crossing: np.ndarray, best: WorkTimeline, parameters: Parameters
) -> tuple[WorkTimeline, Result]:
    """Solve the exact model; return the best timeline known and the solver's result.

    Parameters
    ----------
    work : the messages, one chunk each.
    best : a schedule of them, some perhaps in batches; it fixes the order on links and shared
        capacities, its end is the horizon, and the solver starts from it.
    """
    number = {
        (link, chunks[0], reduce): at
        for at, (link, chunks, reduce) in enumerate(
            zip(work.link, work.chunks, work.reduce, strict=True)
        )
    }
    members = [
        [number[best.work.link[at], chunk, best.work.reduce[at]] for chunk in best.work.chunks[at]]
        for at in best.order
    ]
    order = WorkTimeline(
        work=work,
        start_us=_spread(work, best),
        order=[at for row in members for at in row],
        total_us=best.total_us,
    )
    encoded = encode_schedule(order, crossing, best.total_us * (1 + 1e-9) + 1e-6)
    # Without pairs the order is the only choice, and the solver only confirms it.
    start = encoded.values([row for row in members if len(row) > 1], order)
    result = solve(encoded.model, replace(parameters, start=start))
    if result.values is None:
        return best, result
    batches = encoded.batches(result.values)
    joined = merged(work, batches)
    if not joined.is_acyclic:
        return best, result
    planned = replace(order, start_us=result.values[encoded.send].tolist())
    reordered, _ = order_messages(joined, start=_carried(planned, batches), rules=())
    return (reordered if reordered.total_us < best.total_us - 1e-9 else best), result


def _queues(order: WorkTimeline) -> list[list[int]]:
    """Messages on every resource, in order: chunk_order and the switches' orders (5.5.2)."""
    queues: list[list[int]] = [[] for _ in range(order.work.costs.resources)]
    route, link = order.work.costs.route, order.work.link
    for at in order.order:
        for resource, _ in route[link[at]]:
            queues[resource].append(at)
    return queues


def _pairs(order: WorkTimeline, crossing: np.ndarray, queues: list[list[int]]) -> np.ndarray:
    """Neighbours on a link between nodes that are adjacent on every resource they share."""
    work = order.work
    follows: list[set[tuple[int, int]]] = [set(pairwise(q)) for q in queues]
    lanes: dict[int, list[int]] = {}
    for at in order.order:
        if crossing[work.link[at]]:
            lanes.setdefault(work.link[at], []).append(at)
    return np.array(
        [
            (a, b)
            for link in sorted(lanes)
            for a, b in pairwise(lanes[link])
            if all((a, b) in follows[resource] for resource, _ in work.costs.route[link])
            and work.reduce[a] == work.reduce[b]
        ],
        np.int64,
    ).reshape(-1, 2)


def _together(encoded: ScheduleModel, until: np.ndarray, horizon: float) -> None:
    """5.16 to 5.18 along the batches."""
    if not len(encoded.pairs):
        return
    model, work, costs = encoded.model, encoded.work, encoded.work.costs
    a, b, j = encoded.pairs[:, 0], encoded.pairs[:, 1], encoded.joined
    # 5.16: a batch starts at once.
    model.add_differences(encoded.send[a], encoded.send[b], binaries=j)
    model.add_differences(encoded.send[b], encoded.send[a])
    # 5.17: the running count of a batch is kept as the time that its chunks so far take.
    links = np.array(work.link)
    involved = np.unique(encoded.pairs)
    keys = [(int(at), r) for at in involved for r in _parts(encoded, int(at))]
    first = np.array([at for at, _ in keys])
    us = np.array([_us(encoded, at, r) for at, r in keys])
    alpha = costs.alpha[links[first]]
    least = until[first] + alpha + us
    run = model.add_variables(len(keys), lower=least, upper=np.maximum(horizon, least))
    encoded.held.update(zip(keys, run.tolist(), strict=True))
    model.add_differences(run, encoded.send[first], alpha + us)
    slow = [k for k, (_, r) in enumerate(keys) if r == _ARRIVAL]
    model.add_differences(encoded.arrive[first[slow]], run[slow])
    # Joined or not, the next of a pair ends a beta later, and an alpha more if it goes by itself:
    # run[b] >= run[a] + beta + alpha * (1 - joined). Without any big-M this is all of 5.17.
    steps = [
        (encoded.held[int(y), r], encoded.held[int(x), r], variable, _us(encoded, int(y), r))
        for x, y, variable in zip(a, b, j, strict=True)
        for r in _parts(encoded, int(y))
    ]
    table = np.array(steps, float)
    extra = costs.alpha[links[np.repeat(b, [len(_parts(encoded, int(y))) for y in b])]]
    rows, ones = np.arange(len(steps)), np.ones(len(steps))
    model.add_rows(
        np.concatenate((rows, rows, rows)),
        np.concatenate((table[:, 0], table[:, 1], table[:, 2])).astype(np.int64),
        np.concatenate((ones, -ones, extra)),
        lower=table[:, 3] + extra,
    )
    # All of a batch arrive at once.
    model.add_differences(encoded.arrive[a], encoded.arrive[b], binaries=j)


def _parts(encoded: ScheduleModel, at: int) -> list[int]:
    return [
        _ARRIVAL,
        *(resource for resource, _ in encoded.work.costs.route[encoded.work.link[at]]),
    ]


def _us(encoded: ScheduleModel, at: int, part: int) -> float:
    costs, link = encoded.work.costs, encoded.work.link[at]
    return float(costs.beta[link]) if part == _ARRIVAL else dict(costs.route[link])[part]


def _queue(
    encoded: ScheduleModel, resource: int, queue: list[int], at_pair: dict[tuple[int, int], int]
) -> None:
    """5.19 on a link, 5.20 and 5.21 on ports and whatever is shared: one message at a time."""
    if len(queue) < 2:
        return
    work, costs, model = encoded.work, encoded.work.costs, encoded.model
    plain: list[tuple[int, int, float]] = []
    ends: list[tuple[int, int, float]] = []
    switched: list[tuple[int, int, int]] = []
    for c, o in pairwise(queue):
        run = encoded.held.get((c, resource))
        if run is None:
            link = work.link[c]
            hold = float(costs.alpha[link]) + dict(costs.route[link])[resource]
            plain.append((int(encoded.send[o]), int(encoded.send[c]), hold))
        elif (c, o) in at_pair:
            switched.append((at_pair[c, o], int(encoded.send[o]), run))
        else:
            ends.append((int(encoded.send[o]), run, 0.0))
    late, early, by = np.array([*plain, *ends], float).reshape(-1, 3).T
    model.add_differences(late.astype(int), early.astype(int), by)
    if switched:
        ids = np.array(switched, np.int64)
        _unless(model, ids[:, 0], ids[:, 1], ids[:, 2])


def _unless(model: LinearModel, binaries: np.ndarray, late: np.ndarray, early: np.ndarray) -> None:
    """Add binary = 0 -> late >= early, with M from the bounds of both."""
    low, high = model.bounds()
    big = np.maximum(high[early] - low[late], 0.0)
    rows, ones = np.arange(len(early)), np.ones(len(early))
    model.add_rows(
        np.concatenate((rows, rows, rows)),
        np.concatenate((late, early, binaries)),
        np.concatenate((ones, -ones, big)),
        lower=0.0,
        count=len(early),
    )
