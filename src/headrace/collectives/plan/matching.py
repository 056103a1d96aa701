"""Matching over time for any collective: chunk counts, symmetries and routes chosen by trying.

The engine (`plan.search`) searches for one way to cut the data. `match` tries many, first briefly
and then, of those that did best, for longer (successive halving): chunk counts, groups of
symmetries to impose, and, where data has to be relayed, routes from a flow (`plan.packing`).
Reducing collectives are searched for as their duals on the transposed topology and turned round;
an allreduce is a reduce_scatter, and an allgather that is searched for to go with it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.chunks import (
    Deliveries,
    Sends,
    concatenated,
    deliveries_of,
)
from headrace.collectives.plan.search import (
    Routes,
    SearchEngine,
    SearchInterrupted,
    SearchSettings,
)
from headrace.errors import InputError, ProgramError
from headrace.topology import BYTES_PER_MB, Topology, transposed
from headrace.topology.symmetry import (
    automorphism_generators,
    generated_group,
    offset_permutation,
    offset_symmetries,
    translations,
)

if TYPE_CHECKING:
    from headrace.collectives.plan.packing import Packing

__all__ = ["EFFORTS", "Attempt", "Match", "match", "symmetry_groups"]

EFFORTS = {"quick": 3e6, "normal": 4e7, "thorough": 2e8}
"""Chunk deliveries that may be tried out, all restarts together: about 4e6 a second."""

_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_WHOLE_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ROUNDS = ((1.0, 0.4), (0.34, 0.3), (0.1, 0.3))
"""Share of the candidates that is still in each round, and of the effort that it gets."""

_ENOUGH = 1.0002
"""Times a proven bound: nothing is left to gain."""

_SCATTER_SHARE = 0.7
"""Of an allreduce's effort: its reduce_scatter tries all chunk counts, its allgather only one."""

_FEWEST = 12
"""Restarts below which a candidate has had no chance."""

_MOST_IMAGES = 4_000_000
"""Elements of a group times links; beyond, its tables cost more than it saves."""

_MOST_COMMODITIES = 300
"""Origins times sets of targets for which routes are solved for."""

_DUALS = {
    Collective.REDUCE: Collective.BROADCAST,
    Collective.REDUCE_SCATTER: Collective.ALLGATHER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row of what was tried.

    Attributes
    ----------
    chunks : per block.
    symmetry : number of elements of the group imposed, 1 for none.
    routed : along the paths of a flow.
    restarts : in all rounds.
    total_us : the best found; infinite if none, and then `problem` says why.
    """

    chunks: int
    symmetry: int
    routed: bool
    restarts: int
    total_us: float
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Match:
    """The best of `match`.

    Attributes
    ----------
    demand : with the chunk count chosen.
    sends : with `start_us` and `arrive_us`.
    total_us : under the full cost model.
    attempts : what was tried.
    struck : the time limit ended it.
    interrupted : a KeyboardInterrupt ended it; pass it on once this is in safety.
    """

    demand: Demand
    sends: Sends
    total_us: float
    attempts: tuple[Attempt, ...]
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
    """Return the best way found to do `collective` with `total_bytes` (see `Demand.chunk_bytes`).

    Equal arguments give equal results unless the time limit strikes. An interrupt ends the search
    with the best so far, and `Match.interrupted` set, if there is one.

    Parameters
    ----------
    effort : how much to try, a key of `EFFORTS`.
    max_seconds : a safety net.
    chunk_counts : chunks per block to try, fewest first; empty: a standard choice. An allreduce
        has ranks times as many in all.
    bound_us : a proven bound, if known; what attains it ends the search.

    Raises
    ------
    InputError : for an unknown effort or a negative size.
    ProgramError : if ranks cannot reach each other.
    KeyboardInterrupt : if interrupted before anything was found.
    """
    if effort not in EFFORTS or total_bytes < 0 or min(chunk_counts, default=1) < 1:
        raise InputError(
            f"effort is {effort!r}, total_bytes {total_bytes}, chunk_counts {list(chunk_counts)}: "
            f"needs one of {', '.join(EFFORTS)}, at least 0, at least 1 each"
        )
    whole = collective in (Collective.BROADCAST, Collective.REDUCE)
    job = _Job(
        topology=topology,
        total_bytes=total_bytes,
        engine=engine,
        seed=seed,
        work=EFFORTS[effort],
        ends=time.monotonic() + max_seconds,
        chunk_counts=tuple(chunk_counts) or (_WHOLE_CHUNKS if whole else _CHUNKS),
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

    def chunk_mb(self, demand: Demand) -> float:
        # A message of no bytes costs alpha all the same: next to nothing stands for nothing.
        return max(demand.chunk_bytes(self.total_bytes), 1e-3) / BYTES_PER_MB


@dataclass(slots=True, kw_only=True, eq=False)
class _Candidate:
    """A way to cut the data and to search, and how it fares."""

    demand: Demand
    deliveries: Deliveries
    delivery_count: int
    symmetry: np.ndarray | None = None
    routed: bool = False
    routes: Routes | None = None
    restarts: int = 0
    total_us: float = float("inf")
    sends: Sends | None = field(default=None)
    problem: str = ""

    def cost(self, topology: Topology) -> float:
        """What one restart costs, in deliveries of a small case."""
        neighbours = len(topology.links) / topology.ranks
        cost = (
            max(1, self.delivery_count) * (1 + neighbours / 10) * (1 + self.deliveries.chunks / 500)
        )
        relayed = self.delivery_count < self.deliveries.chunks * (topology.ranks - 1)
        return cost * topology.ranks if relayed and not self.routed else cost

    def attempt(self) -> Attempt:
        return Attempt(
            chunks=self.demand.chunks,
            symmetry=1 if self.symmetry is None else len(self.symmetry),
            routed=self.routed,
            restarts=self.restarts,
            total_us=self.total_us,
            problem=self.problem,
        )


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
            f"topology '{job.topology.name}': no way found to do {collective.value}: {best.problem}"
        )
    return Match(
        demand=best.demand,
        sends=best.sends,
        total_us=best.total_us,
        attempts=tuple(c.attempt() for c in candidates),
        struck=ended.struck,
        interrupted=ended.interrupted,
    )


def _rounds(job: _Job, candidates: list[_Candidate], ended: "_Ended") -> None:
    """Search with all candidates, then with those that did best."""
    packed: list[Packing] = []
    for candidate in candidates if len(candidates) > 1 else ():
        if candidate.symmetry is not None and not ended.interrupted:
            # A group may want two links of one port at once wherever it sends: that shows soon.
            _try(job, candidate, 0, _FEWEST, packed, ended)
    if ended.interrupted:
        return
    for number, (share, effort) in enumerate(_ROUNDS):
        # The fewer chunks, the better, where the time is the same: fewer steps.
        candidates.sort(key=lambda c: (c.total_us, c.demand.chunks))
        count = max(1, round(share * len(candidates)))
        runners = [c for c in candidates[:count] if not c.problem]
        for candidate in runners:
            best = min(c.total_us for c in candidates)
            if best <= job.bound_us * _ENOUGH:
                break
            # All get as much to do: the finer the cut, the fewer the restarts.
            each = job.work * effort / len(runners) / candidate.cost(job.topology)
            _try(job, candidate, number, max(_FEWEST, int(each)), packed, ended)
            if ended.interrupted:
                return


@dataclass(slots=True)
class _Ended:
    """What cut the search short."""

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
    """Search on with one candidate."""
    left = job.ends - time.monotonic()
    if left <= 0 and number + candidate.restarts > 0:
        ended.struck = True  # the first round gives everybody a look, however short
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
        found = job.engine.search(
            job.topology,
            candidate.deliveries,
            job.chunk_mb(candidate.demand),
            routes=candidate.routes,
            symmetry=candidate.symmetry,
            backwards=job.backwards,
            before=job.before,
            settings=settings,
        )
    except ProgramError as error:
        candidate.problem = str(error)
        return
    except SearchInterrupted as interrupt:
        found, ended.interrupted = interrupt.found, True
    candidate.restarts += found.restarts
    if found.total_us < candidate.total_us:
        candidate.total_us, candidate.sends = found.total_us, found.sends
    ended.struck |= found.struck


def _candidates(job: _Job, collective: Collective, root: int) -> list[_Candidate]:
    rooted = collective in (Collective.BROADCAST, Collective.SCATTER, Collective.GATHER)
    groups = symmetry_groups(job.topology, root if rooted else None)
    made: list[_Candidate] = []
    for chunks in job.chunk_counts:
        demand = Demand(collective=collective, ranks=job.topology.ranks, chunks=chunks, root=root)
        deliveries = deliveries_of(demand)
        delivery_count = int(deliveries.targets.sum())
        variants = [
            _Candidate(
                demand=demand, deliveries=deliveries, delivery_count=delivery_count, symmetry=group
            )
            for group in (None, *groups)
        ]
        if collective is not Collective.ALLGATHER and _few_kinds(deliveries):
            variants.append(
                _Candidate(
                    demand=demand, deliveries=deliveries, delivery_count=delivery_count, routed=True
                )
            )
        affordable = job.work / _FEWEST / 20
        kept = [v for v in variants if v.cost(job.topology) <= affordable]
        made += kept or ([] if made else variants)
    return made


def _few_kinds(deliveries: Deliveries) -> bool:
    rows = zip(deliveries.origin.tolist(), deliveries.targets, strict=True)
    return len({(origin, targets.tobytes()) for origin, targets in rows}) <= _MOST_COMMODITIES


def _flow_routes(job: _Job, candidate: _Candidate, packed: "list[Packing]") -> Routes:
    """Whole chunks on the paths of one packing, which is kept for all chunk counts."""
    # Only who relays pays for the solver.
    from headrace.collectives.plan.packing import PackSettings, pack
    from headrace.collectives.plan.packing.rounding import rounded, tree_routes

    if not packed:
        mb = job.chunk_mb(candidate.demand)
        left = max(0.1, job.ends - time.monotonic())
        settings = PackSettings(limit_s=left)
        packed.append(pack(job.topology, candidate.deliveries, mb, settings=settings))
    tree = rounded(job.topology, packed[0], candidate.deliveries, exact=False)
    return tree_routes(packed[0], tree)


def symmetry_groups(topology: Topology, fixed: int | None = None) -> tuple[np.ndarray, ...]:
    """Return groups worth imposing on a search, each int32 (elements, ranks); none is trivial.

    The translations; the group of all automorphisms, if it is small; groups of rotations, each
    with a further one than the last.

    Parameters
    ----------
    fixed : a rank that must stay where it is: the root.
    """
    most = max(2, _MOST_IMAGES // max(1, len(topology.links)))
    made: list[np.ndarray] = []
    moving = translations(topology)
    if moving is not None:
        made.append(moving)
    generators, order = automorphism_generators(topology)
    if 1 < order <= min(most, 8 * topology.ranks):
        made.append(generated_group(generators, most))
    rotations: list[np.ndarray] = []
    sizes: set[int] = set()
    for offset, group in sorted(offset_symmetries(topology), key=lambda each: (-each[1], each[0])):
        if group in sizes:
            continue
        sizes.add(group)
        rotation = offset_permutation(topology.ranks, offset, group)
        elements = generated_group([*rotations, rotation], most + 1)
        if len(elements) <= min(most, topology.ranks):
            rotations.append(rotation)
            made.append(elements)
    chosen: dict[bytes, np.ndarray] = {}
    for elements in made:
        kept = elements if fixed is None else elements[elements[:, fixed] == fixed]
        kept = np.ascontiguousarray(kept[np.lexsort(kept.T[::-1])], dtype=np.int32)
        if 1 < len(kept) <= most:
            chosen.setdefault(kept.tobytes(), kept)
    return tuple(chosen.values())


def _reducing(job: _Job, collective: Collective, root: int) -> Match:
    """The dual on the transposed topology, backwards."""
    dual = replace(job, topology=transposed(job.topology), backwards=True)
    there = _carrying(dual, _DUALS[collective], root)
    demand = Demand(
        collective=collective,
        ranks=there.demand.ranks,
        chunks=there.demand.chunks,
        root=root,
    )
    return replace(there, demand=demand)


def _allreduce(job: _Job) -> Match:
    """Scatter, then search for the gather that suits best what there is: it begins chunk by chunk.

    Of two halves that are each at their best, one is in the other's way: nobody waits on purpose.
    """
    now = time.monotonic()
    share = _SCATTER_SHARE
    first = replace(
        job,
        work=job.work * share,
        ends=now + (job.ends - now) * share,
        bound_us=0.0,
    )
    scatter = _reducing(first, Collective.REDUCE_SCATTER, 0)
    ranks, chunks = scatter.demand.ranks, scatter.demand.chunks
    second = replace(
        job,
        work=job.work * (1 - share),
        chunk_counts=(chunks,),
        before=scatter.sends,
    )
    if scatter.interrupted:  # half of it is no use: one look at the other half
        second = replace(second, ends=time.monotonic())
    gather = _carrying(second, Collective.ALLGATHER, 0)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=ranks * chunks)
    both = concatenated(scatter.sends, gather.sends)
    timed = job.engine.retime(job.topology, both, job.chunk_mb(demand))
    return Match(
        demand=demand,
        sends=timed.sends,
        total_us=timed.total_us,
        attempts=(*scatter.attempts, *gather.attempts),
        struck=scatter.struck or (gather.struck and not scatter.interrupted),
        interrupted=scatter.interrupted or gather.interrupted,
    )
