"""Time-expanded matching for any collective: chunk count, symmetry, routes by successive halving.

The engine (`plan.search`) searches for one way to cut the data. `match` tries many, first briefly
and then the best of them for longer (successive halving): chunk counts, groups of symmetries to
impose, and, where data has to be relayed, routes from a flow (`plan.packing`). Reducing collectives
are searched for as their duals on the transposed topology, and reversed; an allreduce is a
reduce_scatter, and an allgather searched for given that reduce_scatter.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import (
    Routes,
    SearchEngine,
    SearchInterrupted,
    SearchProblem,
    SearchSettings,
)
from headrace.collectives.plan.generators.limits import check_size, chunk_mb_of, limit_s, per_rank
from headrace.collectives.plan.ir.chunks import Deliveries, Sends, deliveries_of, realize
from headrace.collectives.plan.ir.sends import concatenated
from headrace.collectives.plan.request import Request
from headrace.collectives.program import Schedule
from headrace.errors import InputError, SymmetryError
from headrace.topology import Topology, transposed
from headrace.topology.refinement import automorphism_generators
from headrace.topology.symmetry import (
    generated_group,
    offset_permutation,
    offset_symmetries,
    translations,
)

if TYPE_CHECKING:
    from headrace.collectives.plan.flows import Packing

WORK_LIMITS = {"quick": 3e6, "normal": 4e7, "thorough": 2e8}
"""Work limits: chunk deliveries tried, all restarts together; about 4e6 a second."""

_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_WHOLE_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ROUNDS = ((1.0, 0.4), (0.34, 0.3), (0.1, 0.3))
"""Share of the candidates kept in each round, and of the work that the round gets."""

_ENOUGH = 1.0002
"""Ratio to a proven bound at which the search ends."""

_SCATTER_SHARE = 0.7
"""Of an allreduce's work: its reduce_scatter tries all chunk counts, its allgather only one."""

_FEWEST = 12
"""Fewest restarts of a candidate."""

_MOST_IMAGES = 4_000_000
"""Most elements of a group times links: beyond, its tables cost more than it saves."""

_MOST_COMMODITIES = 300
"""Most pairs of origin and set of targets for which routes are computed."""

_DUALS = {Collective.REDUCE: Collective.BROADCAST, Collective.REDUCE_SCATTER: Collective.ALLGATHER}

_COARSE = (1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match:
    """The best of `match`.

    Attributes
    ----------
    demand : with the chunk count chosen.
    sends : with `start_us` and `arrive_us`.
    total_us : under the full cost model.
    struck : the time limit ended it.
    interrupted : a KeyboardInterrupt ended it; raise it again once the result is stored.
    """

    demand: Demand
    sends: Sends
    total_us: float
    struck: bool = False
    interrupted: bool = False


def match(
    topology: Topology,
    collective: Collective,
    total_bytes: int,
    engine: SearchEngine,
    *,
    root: int = 0,
    seed: int = 0,
    effort: str = "normal",
    max_seconds: float = 8.0,
    chunk_counts: Sequence[int] = (),
    bound_us: float = 0.0,
) -> Match:
    """Return the best sends found for `collective` of `total_bytes` (see `Demand.chunk_bytes`).

    Equal arguments give equal results unless the time limit is reached. An interrupt ends the
    search with the best so far, and `Match.interrupted` set, if there is one.

    Parameters
    ----------
    effort : work limit, a key of `WORK_LIMITS`.
    max_seconds : time limit, as a safety net.
    chunk_counts : chunks per block to try, fewest first; empty: a standard choice. An allreduce
        has ranks times as many in all.
    bound_us : a proven bound, if known; the search ends when it is attained.

    Raises
    ------
    InputError : for an unknown effort or a negative size.
    ProgramError : if ranks cannot reach each other.
    KeyboardInterrupt : if interrupted before anything was found.
    """
    if effort not in WORK_LIMITS or total_bytes < 0 or min(chunk_counts, default=1) < 1:
        raise InputError(
            f"effort is {effort!r}, total_bytes {total_bytes}, chunk_counts {list(chunk_counts)}: "
            f"needs one of {', '.join(WORK_LIMITS)}, at least 0, at least 1 each"
        )
    moves_everything = collective in (Collective.BROADCAST, Collective.REDUCE)
    job = _Job(
        topology=topology,
        total_bytes=total_bytes,
        engine=engine,
        seed=seed,
        work=WORK_LIMITS[effort],
        ends=time.monotonic() + max_seconds,
        chunk_counts=tuple(chunk_counts) or (_WHOLE_CHUNKS if moves_everything else _CHUNKS),
        bound_us=bound_us,
    )
    if collective is Collective.ALLREDUCE:
        return _allreduce(job)
    if collective in _DUALS:
        return _reducing(job, collective, root)
    return _carrying(job, collective, root)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    topology: Topology
    total_bytes: int
    engine: SearchEngine
    seed: int
    work: float
    ends: float
    chunk_counts: tuple[int, ...]
    bound_us: float
    backwards: bool = False
    before: Sends | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Candidate:
    """A chunk count and restrictions of the search, with the best result so far."""

    demand: Demand
    deliveries: Deliveries
    symmetry: np.ndarray | None = None
    routed: bool = False
    routes: Routes | None = None
    searched: bool = False
    total_us: float = float("inf")
    sends: Sends | None = field(default=None)
    problem: str = ""

    def cost(self, topology: Topology) -> float:
        """Estimated work of one restart, in deliveries of a small case."""
        count, chunks = int(self.deliveries.targets.sum()), self.deliveries.chunks
        neighbours = len(topology.links) / topology.ranks
        cost = max(1, count) * (1 + neighbours / 10) * (1 + chunks / 500)
        relayed = count < chunks * (topology.ranks - 1)
        return cost * topology.ranks if relayed and not self.routed else cost


def _carrying(job: _Job, collective: Collective, root: int) -> Match:
    candidates = _candidates(job, collective, root)
    ended = _Ended()
    try:
        _rounds(job, candidates, ended)
    except KeyboardInterrupt:
        if all(c.sends is None for c in candidates):
            raise
        ended.interrupted = True
    candidates.sort(key=lambda c: (c.total_us, c.demand.chunks))
    best = candidates[0]
    if best.sends is None:
        raise ProgramError(
            f"topology '{job.topology.name}': found no schedule of {collective.value}: "
            f"{best.problem}"
        )
    return Match(
        demand=best.demand,
        sends=best.sends,
        total_us=best.total_us,
        struck=ended.struck,
        interrupted=ended.interrupted,
    )


def _rounds(job: _Job, candidates: list[_Candidate], ended: "_Ended") -> None:
    """Successive halving: search with all candidates, then with the best ones."""
    packed: list[Packing] = []
    for candidate in candidates if len(candidates) > 1 else ():
        if candidate.symmetry is not None and not ended.interrupted:
            # A group may use two links of one port at once wherever it sends: few restarts show it.
            _try(job, candidate, 0, _FEWEST, packed, ended)
    for number, (share, effort) in enumerate(_ROUNDS):
        # At equal times, fewer chunks first: fewer steps.
        candidates.sort(key=lambda c: (c.total_us, c.demand.chunks))
        count = max(1, round(share * len(candidates)))
        runners = [c for c in candidates[:count] if not c.problem]
        for candidate in runners:
            best = min(c.total_us for c in candidates)
            if ended.interrupted or best <= job.bound_us * _ENOUGH:
                return
            # Equal work for all: the finer the cut, the fewer restarts.
            expansions = job.work * effort / len(runners) / candidate.cost(job.topology)
            _try(job, candidate, number, max(_FEWEST, int(expansions)), packed, ended)


@dataclass(slots=True)
class _Ended:
    """Reasons why the search ended early."""

    struck: bool = False
    interrupted: bool = False


def _try(
    job: _Job,
    candidate: _Candidate,
    number: int,
    restarts: int,
    packed: "list[Packing]",
    ended: _Ended,
) -> None:
    """Continue the search with one candidate."""
    left = job.ends - time.monotonic()
    if left <= 0 and (number or candidate.searched):
        ended.struck = True  # but the first round searches with every candidate, however short
        return
    if candidate.routed and candidate.routes is None:
        candidate.routes = _flow_routes(job, candidate, packed)
    settings = SearchSettings(
        seed=job.seed + 1009 * number,  # other streams in every round
        restarts=restarts,
        batch_share=1.0,
        limit_s=max(left, 0.05),
        target_us=job.bound_us * _ENOUGH,
    )
    try:
        problem = SearchProblem(
            topology=job.topology,
            deliveries=candidate.deliveries,
            chunk_mb=chunk_mb_of(candidate.demand, job.total_bytes),
            routes=candidate.routes,
            symmetry=candidate.symmetry,
            backwards=job.backwards,
            before=job.before,
        )
        searched = job.engine.search(problem, settings)
    except ProgramError as error:
        candidate.problem = str(error)
        return
    except SearchInterrupted as interrupt:
        searched, ended.interrupted = interrupt.found, True
    candidate.searched |= searched.restarts > 0
    if searched.total_us < candidate.total_us:
        candidate.total_us, candidate.sends = searched.total_us, searched.sends
    ended.struck |= searched.struck


def _candidates(job: _Job, collective: Collective, root: int) -> list[_Candidate]:
    rooted = collective in (Collective.BROADCAST, Collective.SCATTER, Collective.GATHER)
    groups = symmetry_groups(job.topology, root if rooted else None)
    candidates: list[_Candidate] = []
    for chunks in job.chunk_counts:
        demand = Demand(collective=collective, ranks=job.topology.ranks, chunks=chunks, root=root)
        deliveries = deliveries_of(demand)
        variants = [
            _Candidate(demand=demand, deliveries=deliveries, symmetry=group)
            for group in (None, *groups)
        ]
        if collective is not Collective.ALLGATHER and _few_kinds(deliveries):
            variants.append(_Candidate(demand=demand, deliveries=deliveries, routed=True))
        affordable = job.work / _FEWEST / 20
        affordable_variants = [v for v in variants if v.cost(job.topology) <= affordable]
        candidates += affordable_variants or ([] if candidates else variants)
    return candidates


def _few_kinds(deliveries: Deliveries) -> bool:
    rows = zip(deliveries.origin.tolist(), deliveries.targets, strict=True)
    return len({(origin, targets.tobytes()) for origin, targets in rows}) <= _MOST_COMMODITIES


def _flow_routes(job: _Job, candidate: _Candidate, packed: "list[Packing]") -> Routes:
    """Whole chunks on the paths of one packing, which is shared by all chunk counts."""
    # imported here: only routed candidates need the solver
    from headrace.collectives.plan.flows import PackSettings, pack
    from headrace.collectives.plan.flows.rounding import rounded, tree_routes

    if not packed:
        mb = chunk_mb_of(candidate.demand, job.total_bytes)
        settings = PackSettings(limit_s=max(0.1, job.ends - time.monotonic()))
        packed.append(pack(job.topology, candidate.deliveries, mb, settings=settings))
    tree = rounded(job.topology, packed[0], candidate.deliveries, exact=False)
    return tree_routes(packed[0], tree)


def symmetry_groups(topology: Topology, fixed: int | None = None) -> tuple[np.ndarray, ...]:
    """Return groups to impose on a search, each int32 (elements, ranks); none is trivial.

    The translations; the group of all automorphisms, if it is small; groups of rotations, each
    generated by one more than the last.

    Parameters
    ----------
    fixed : a rank that must map to itself: the root.
    """
    most = max(2, _MOST_IMAGES // max(1, len(topology.links)))
    groups: list[np.ndarray] = []
    moving = translations(topology)
    if moving is not None:
        groups.append(moving)
    with suppress(SymmetryError):  # more than can be searched for are more than can be imposed
        generators, order = automorphism_generators(topology)
        if 1 < order <= min(most, 8 * topology.ranks):
            groups.append(generated_group(generators, most))
    rotations: list[np.ndarray] = []
    sizes: set[int] = set()
    for offset, group in sorted(
        offset_symmetries(topology), key=lambda symmetry: (-symmetry[1], symmetry[0])
    ):
        if group in sizes:
            continue
        sizes.add(group)
        rotation = offset_permutation(topology.ranks, offset, group)
        elements = generated_group([*rotations, rotation], most + 1)
        if len(elements) <= min(most, topology.ranks):
            rotations.append(rotation)
            groups.append(elements)
    stabilizers: dict[bytes, np.ndarray] = {}
    for elements in groups:
        stabilizer = elements if fixed is None else elements[elements[:, fixed] == fixed]
        stabilizer = np.ascontiguousarray(
            stabilizer[np.lexsort(stabilizer.T[::-1])], dtype=np.int32
        )
        if 1 < len(stabilizer) <= most:
            stabilizers.setdefault(stabilizer.tobytes(), stabilizer)
    return tuple(stabilizers.values())


def _reducing(job: _Job, collective: Collective, root: int) -> Match:
    """The dual on the transposed topology, reversed."""
    dual = replace(job, topology=transposed(job.topology), backwards=True)
    there = _carrying(dual, _DUALS[collective], root)
    return replace(there, demand=replace(there.demand, collective=collective))


def _allreduce(job: _Job) -> Match:
    """Search for the reduce_scatter, then for the allgather given it, overlapped chunk by chunk.

    Two halves searched for separately would contend, as list scheduling never delays a send.
    """
    now = time.monotonic()
    ends = now + (job.ends - now) * _SCATTER_SHARE
    first = replace(job, work=job.work * _SCATTER_SHARE, ends=ends, bound_us=0.0)
    scatter = _reducing(first, Collective.REDUCE_SCATTER, 0)
    ranks, chunks = scatter.demand.ranks, scatter.demand.chunks
    work = job.work * (1 - _SCATTER_SHARE)
    second = replace(job, work=work, chunk_counts=(chunks,), before=scatter.sends)
    if scatter.interrupted:  # the other half is needed too: only its shortest search
        second = replace(second, ends=time.monotonic())
    gather = _carrying(second, Collective.ALLGATHER, 0)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=ranks * chunks)
    both = concatenated(scatter.sends, gather.sends)
    timed = job.engine.retime(job.topology, both, chunk_mb_of(demand, job.total_bytes))
    return Match(
        demand=demand,
        sends=timed.sends,
        total_us=timed.total_us,
        struck=scatter.struck or (gather.struck and not scatter.interrupted),
        interrupted=scatter.interrupted or gather.interrupted,
    )


def matching_schedules(request: Request) -> Iterator[Schedule]:
    """Randomised time-expanded matching, natively: `matching`."""
    method = request.method
    if method.engine is None:
        raise ProgramError("needs a search engine")
    check_size(request)
    counts = _COARSE if method.effort == "quick" else ()
    if method.chunks is not None:
        counts = (per_rank(request),)
    for aim in request.aims:
        matched = match(
            request.topology,
            request.collective,
            aim,
            method.engine,
            root=request.root,
            seed=method.seed,
            effort=method.effort,
            max_seconds=limit_s(method.effort),
            bound_us=request.bound(request.demand(method.chunks or 1), aim).total_us,
            chunk_counts=counts,
        )
        request.report(f"{matched.total_us:.4g} us with {matched.demand.chunks} chunks a block")
        yield realize(matched.demand, matched.sends)
        if matched.interrupted:
            raise KeyboardInterrupt
