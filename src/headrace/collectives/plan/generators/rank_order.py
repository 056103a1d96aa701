"""Rank order of templates, optimized for the network by local search.

A ring takes its ranks in any order, and so do halving-doubling and trees. Where links differ, or
are missing, most orders use a slow link or a missing one: the best ring is a bottleneck
travelling salesman's tour, over capacities that links share. `best_placement` starts with one
order and swaps two ranks, moves one, or reverses a stretch, under simulated annealing (Kirkpatrick
et al., Science 220, 1983). Where there are no more orders than trials, every order is tried
instead. Orders over missing links come after all others, the fewer missing the better.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, permutations
from math import exp, factorial
from typing import Protocol

import numpy as np

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import SearchEngine
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.limits import check_size
from headrace.collectives.plan.ir.chunks import sends_of
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule, Transfer
from headrace.topology import BYTES_PER_MB, Topology

Make = Callable[[Sequence[int]], Schedule]
"""A template with all arguments bound but the rank order."""

_TRIALS = {"quick": 200, "normal": 2000, "thorough": 40_000}
"""Rank orders evaluated, all templates together."""


class Template(Protocol):
    """Signature of the functions in `templates`."""

    def __call__(self, demand: Demand, *, order: Sequence[int] | None = None) -> Schedule:
        """Return the schedule of `demand`."""
        ...


_CHAIN, _TREES = (16, 64), (8, 32)

_HOT = 0.01
"""Initial temperature, as a share of the best time."""

_FLAT = 64
"""Trials of equal time after which the network is taken to be symmetric."""

_FAR = 1.5
"""Ratio to `beat_us` above which the search ends after a quarter of the trials."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The best order found.

    Attributes
    ----------
    order : the ranks by position in the template.
    schedule : the template's, in this order.
    total_us : under the full cost model.
    """

    order: tuple[int, ...]
    schedule: Schedule
    total_us: float


def joined(schedule: Schedule) -> Schedule:
    """Return `schedule` with consecutive transfers between two ranks joined to one message."""
    transfers = list(schedule.transfers[:1])
    for before, transfer in pairwise(schedule.transfers):
        same = _lane(before) == _lane(transfer) and transfer.src != transfer.dst
        transfers.append(transfer._replace(joined=True) if same else transfer)
    return replace(schedule, transfers=tuple(transfers))


def best_placement(
    topology: Topology,
    make: Make,
    total_bytes: int,
    engine: SearchEngine,
    *,
    start: Sequence[int],
    fixed: int | None = None,
    seed: int = 0,
    trials: int = 1000,
    beat_us: float = float("inf"),
) -> Placement:
    """Return the best rank order found by `trials` changes of `start`.

    The optimum, where `trials` are enough to enumerate all. Equal arguments give equal results.

    Parameters
    ----------
    total_bytes : see `Demand.chunk_bytes`.
    fixed : a rank that keeps its position: the root.
    beat_us : time of the best candidate so far; far above it the search ends early.

    Raises
    ------
    ProgramError : if every order tried needs a link that the topology lacks.
    """
    search = _Search(topology, make, start, max(total_bytes, 1), engine)
    first = np.array(start)
    positions = np.flatnonzero(first != (-1 if fixed is None else fixed))
    if factorial(len(positions)) <= trials:
        orders = map(np.array, permutations(first[positions].tolist()))
        best = min((_with(first, positions, order) for order in orders), key=search.cost)
    else:
        best = _annealed(search, first, positions, np.random.default_rng(seed), trials, beat_us)
    missing, total_us = search.cost(best)
    if missing:
        raise ProgramError(
            f"every order tried needs links that topology '{topology.name}' lacks, for {missing} "
            "sends at least"
        )
    best_order = tuple(best.tolist())
    return Placement(order=best_order, schedule=make(best_order), total_us=total_us)


def placements(request: Request, total_bytes: int, trials: int) -> Iterator[Placement]:
    """Yield the best placement for every template that supports `request` and takes an order.

    Parameters
    ----------
    trials : of all templates together.

    Raises
    ------
    ProgramError : if there is no search engine, no such template, or links missing for all of them.
    """
    method = request.method
    if method.engine is None:
        raise ProgramError("needs a search engine")
    variants = list(_variants(request))
    if not variants:
        raise ProgramError("no template of this collective takes its ranks in any order")
    problems: list[ProgramError] = []
    for make in variants:
        try:
            yield best_placement(
                request.topology,
                make,
                total_bytes,
                method.engine,
                start=request.order,
                fixed=request.root if request.collective in ROOTED else None,
                seed=method.seed,
                trials=trials // len(variants),
                beat_us=request.best_us(total_bytes),
            )
        except ProgramError as error:
            problems.append(error)
    if len(problems) == len(variants):
        raise problems[0]


def _variants(request: Request) -> Iterator[Make]:
    """Every template for each of its chunk counts."""
    rooted = request.collective in (Collective.BROADCAST, Collective.REDUCE)
    is_allreduce = request.collective is Collective.ALLREDUCE
    parts = request.ranks if is_allreduce else 1
    rows = (
        (templates.ring, _CHAIN if rooted else (parts,)),
        (templates.halving_doubling, (parts,)),
        (templates.double_binary_tree, _TREES),
    )
    for template, counts in rows:
        for chunks in counts if request.method.chunks is None else (request.method.chunks,):
            apart = partial(_made, template, request.demand(chunks))
            together = partial(_made, template, request.demand(chunks), join=True)
            try:
                messages = [_message_count(make(request.order)) for make in (apart, together)]
            except ProgramError:  # it does not support this collective
                break
            yield apart
            if messages[1] < messages[0]:
                yield together


def _made(
    template: Template, demand: Demand, order: Sequence[int], *, join: bool = False
) -> Schedule:
    schedule = template(demand, order=order)
    return joined(schedule) if join else schedule


def _message_count(schedule: Schedule) -> int:
    return sum(not transfer.joined for transfer in schedule.transfers)


def _lane(transfer: Transfer) -> tuple[int, int, int, bool]:
    return (transfer.src, transfer.dst, transfer.channel, transfer.reduce)


def _annealed(
    search: "_Search",
    first: np.ndarray,
    positions: np.ndarray,
    random: np.random.Generator,
    trials: int,
    beat_us: float,
) -> np.ndarray:
    """Return the best order visited by simulated annealing from `first` over `positions`."""
    order = best = first
    cost = least = search.cost(first)
    differs = False
    for trial in range(trials):
        changed = _with(order, positions, _changed(order[positions], random))
        changed_us = search.cost(changed)
        differs |= changed_us != cost
        if trial == _FLAT and not differs:
            break
        if trial == trials // 4 and least[1] > _FAR * beat_us:
            break
        temperature = _HOT * least[1] * (1.0 - trial / trials) ** 2
        if changed_us <= cost or (
            changed_us[0] == cost[0] == 0
            and temperature > 0.0
            and random.random() < exp((cost[1] - changed_us[1]) / temperature)
        ):
            order, cost = changed, changed_us
        if changed_us < least:
            best, least = changed, changed_us
    return best


def _with(order: np.ndarray, positions: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    changed = order.copy()
    changed[positions] = ranks
    return changed


def _changed(order: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Swap two, move one, or reverse a stretch."""
    low, high = sorted(random.choice(len(order), 2, replace=False).tolist())
    changed = order.copy()
    match int(random.integers(4)):
        case 0:
            changed[[low, high]] = order[[high, low]]
        case 1:
            changed[low : high + 1] = np.roll(order[low : high + 1], 1)
        case 2:
            changed[low : high + 1] = np.roll(order[low : high + 1], -1)
        case _:
            changed[low : high + 1] = order[low : high + 1][::-1]
    return changed


class _Search:
    """Cost of rank orders: another order has the same sends between renamed ranks."""

    def __init__(
        self,
        topology: Topology,
        make: Make,
        start: Sequence[int],
        total_bytes: int,
        engine: SearchEngine,
    ) -> None:
        schedule = make(start)
        self._topology, self._engine = topology, engine
        self._start = np.array(start)
        self._sends = sends_of(schedule)
        self._chunk_mb = schedule.demand.chunk_bytes(total_bytes) / BYTES_PER_MB
        self._linked = np.zeros((topology.ranks, topology.ranks), dtype=bool)
        self._linked[topology.columns.src, topology.columns.dst] = True

    def cost(self, order: np.ndarray) -> tuple[int, float]:
        """Return the number of sends without a link, and the time in us if there are none."""
        renamed = np.empty_like(order)
        renamed[self._start] = order
        src, dst = renamed[self._sends.src], renamed[self._sends.dst]
        missing = int(np.count_nonzero(~self._linked[src, dst]))
        if missing:
            return missing, 0.0
        sends = replace(self._sends, src=src, dst=dst)
        return 0, self._engine.retime(self._topology, sends, self._chunk_mb).total_us


def rank_order_schedules(request: Request) -> Iterator[Schedule]:
    """Rings, halving-doubling and trees with the rank order optimized: `rank_order`."""
    check_size(request)
    trials = _TRIALS[request.method.effort]
    # Without latency, which a stream hides, the best schedule does not depend on the size.
    for aim in request.aims[-1:] if request.method.model.streaming else request.aims:
        for placement in placements(request, aim, trials):
            request.report(f"{placement.total_us:.4g} us with another order of ranks")
            yield placement.schedule
