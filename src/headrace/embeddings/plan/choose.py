"""Choice of lookahead, caches, synchronisation, numbers of processes, and commits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.commits import FAILURES_S, UNPLANNED, CommittedJob, CommitTimes
from headrace.embeddings.plan.plan import RUNNABLE, EmbeddingPlan
from headrace.embeddings.plan.step import PredictedStep, StepCosts, predicted_step
from headrace.embeddings.plan.traffic import RowBytes, StepBytes, step_bytes
from headrace.embeddings.profile import EmbeddingProfile, StepRows, Synchronisation
from headrace.embeddings.room import needed_slots
from headrace.units import size

PREFETCH = 4
"""Batches between a row's fetch and its use. Two hide a fetch of up to a step's duration; the
others bridge a step that is slower to fetch, or faster to compute, than its neighbours."""

_MOST_PROCESSES = 8
"""Servers or readers that are tried."""

_NEAR = 1.01
"""Steps this near the shortest count as equal: fewer processes, or less on the wire, decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequirements:
    """Sizes of a job's rows, and what of its plan is fixed; what is None is chosen.

    Attributes
    ----------
    row_bytes, gradient_bytes : of a row with its optimizer's state, and without (None: it has
        none).
    dense_bytes : of the gradients of the model's dense part.
    cache_bytes : of each trainer's cache; None: as many as the profile's lookahead needs.
    servers, readers : numbers of processes.
    synchronisation : between the caches.
    commit_every : batches between commits.
    failures_s : between losses of a process, the mean.
    """

    row_bytes: int
    gradient_bytes: int | None = None
    dense_bytes: int = 0
    cache_bytes: int | None = None
    servers: int | None = None
    readers: int | None = None
    synchronisation: Synchronisation | None = None
    commit_every: int | None = None
    failures_s: float = FAILURES_S

    @property
    def row(self) -> RowBytes:
        """Bytes of a row."""
        return RowBytes(
            gradient_bytes=self.gradient_bytes or self.row_bytes, row_bytes=self.row_bytes
        )


def plan_embeddings(
    profile: EmbeddingProfile, job: JobRequirements, costs: StepCosts | None = None
) -> EmbeddingPlan:
    """Return the plan with the longest lookahead that the caches have room for (5.3).

    A longer lookahead never fetches more rows. It is at most that of the profile. What the job
    leaves open is what has the shortest predicted step; without costs, one server, one reader, and
    the targeted synchronisation, which moves least between a step and the next.

    Parameters
    ----------
    costs : None: no times are predicted.

    Raises
    ------
    EmbeddingError : the caches have no room for a batch; a number is out of range.
    """
    lookahead, cache_bytes = _lookahead(profile, job)
    designs = _designs(profile, lookahead, job)
    if costs is None:
        servers, readers = _numbers(job.servers)[0], _numbers(job.readers)[0]
        choice, commits = _Choice(designs[0], servers, readers), None
    else:
        choice = _shortest(profile, designs, costs, job)
        commits = _commits(profile, lookahead, costs, job, choice)
    commit_every = job.commit_every
    if commit_every is None:
        commit_every = UNPLANNED if commits is None else commits.every
    rows = choice.design.rows
    return EmbeddingPlan(
        batch=profile.batch,
        trainers=profile.trainers,
        servers=choice.servers,
        readers=choice.readers,
        lookahead=lookahead,
        prefetch=min(PREFETCH, lookahead),
        cache_bytes=cache_bytes,
        row_bytes=job.row.row_bytes,
        gradient_bytes=job.row.gradient_bytes,
        dense_bytes=job.dense_bytes,
        commit_every=commit_every,
        synchronisation=choice.design.synchronisation,
        rows=profile.rows,
        fetched_rows=rows.fetched,
        resident_rows=profile.resident(lookahead),
        exchanged_rows=rows.exchanged,
        critical_rows=rows.critical,
        moved=choice.design.moved,
        costs=costs,
        time=choice.time,
        commits=commits,
    )


def _lookahead(profile: EmbeddingProfile, job: JobRequirements) -> tuple[int, int]:
    """Return the lookahead, and the bytes of a cache."""
    lookahead = profile.lookahead
    if job.cache_bytes is None:
        return lookahead, math.ceil(planned_slots(profile, lookahead)) * job.row_bytes
    slots = job.cache_bytes // job.row_bytes
    while lookahead and planned_slots(profile, lookahead) > slots:
        lookahead -= 1
    if not lookahead:
        least = math.ceil(planned_slots(profile, 1)) * job.row_bytes
        raise EmbeddingError(
            f"a cache of {size(job.cache_bytes)} has no room for the rows of a batch: it needs "
            f"{size(least)}"
        )
    return lookahead, job.cache_bytes


def planned_slots(profile: EmbeddingProfile, lookahead: int) -> float:
    """Return the slots that a cache needs at a lookahead, and the prefetch that is planned."""
    prefetch = min(PREFETCH, lookahead)
    return needed_slots(profile.resident(lookahead), profile.fetched(lookahead), prefetch)


class _Design(NamedTuple):
    """A synchronisation, and what its step moves."""

    synchronisation: Synchronisation
    rows: StepRows
    moved: StepBytes


class _Choice(NamedTuple):
    """A design, and the processes that serve it; its predicted step."""

    design: _Design
    servers: int
    readers: int
    time: PredictedStep | None = None


def _designs(profile: EmbeddingProfile, lookahead: int, job: JobRequirements) -> list[_Design]:
    """Return a design of each synchronisation to choose from."""
    kinds = [*RUNNABLE] if job.synchronisation is None else [job.synchronisation]
    if any(kind not in RUNNABLE for kind in kinds):
        names = ", ".join(kind.value for kind in RUNNABLE)
        raise EmbeddingError(f"synchronisation is {kinds[0].value}, needs one of {names}")
    designs: list[_Design] = []
    for kind in kinds:
        rows = profile.step_rows(kind, lookahead)
        moved = step_bytes(profile, rows, job.row, dense_bytes=job.dense_bytes)
        designs.append(_Design(kind, rows, moved))
    return designs


def _shortest(
    profile: EmbeddingProfile, designs: Sequence[_Design], costs: StepCosts, job: JobRequirements
) -> _Choice:
    """Return the design and numbers of servers and readers with the shortest step.

    Of those that are as short, the one with the fewest processes, and then the fewest bytes.
    """
    timed: list[tuple[float, _Choice]] = []
    for design, servers, readers in product(designs, _numbers(job.servers), _numbers(job.readers)):
        time = predicted_step(
            profile, design.rows, design.moved, costs, servers=servers, readers=readers
        )
        timed.append((time.step_s, _Choice(design, servers, readers, time)))
    shortest_s = min(step_s for step_s, _ in timed)
    near = [choice for step_s, choice in timed if step_s <= _NEAR * shortest_s]
    return min(
        near,
        key=lambda choice: (choice.servers + choice.readers, choice.design.moved.of_trainers),
    )


def _numbers(count: int | None) -> Sequence[int]:
    """Return the numbers of processes to try."""
    return range(1, _MOST_PROCESSES + 1) if count is None else (count,)


def _commits(
    profile: EmbeddingProfile,
    lookahead: int,
    costs: StepCosts,
    job: JobRequirements,
    choice: _Choice,
) -> CommitTimes:
    """Return the predicted cost of commits, those that cost least if the job leaves them open."""
    assert choice.time is not None
    committed = CommittedJob(
        profile=profile,
        lookahead=lookahead,
        row=job.row,
        costs=costs,
        servers=choice.servers,
        step_s=choice.time.step_s,
        failures_s=job.failures_s,
    )
    return committed.times(job.commit_every) if job.commit_every else committed.cheapest()
