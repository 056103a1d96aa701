"""Choice of lookahead, caches, synchronisation, numbers of processes, and commits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.plan.commits import (
    FAILURES_S,
    UNPLANNED,
    commit_times,
    planned_commits,
)
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


def plan_embeddings(
    profile: EmbeddingProfile,
    *,
    row_bytes: int,
    gradient_bytes: int | None = None,
    dense_bytes: int = 0,
    cache_bytes: int | None = None,
    servers: int | None = None,
    readers: int | None = None,
    synchronisation: Synchronisation | None = None,
    costs: StepCosts | None = None,
    commit_every: int | None = None,
    failures_s: float = FAILURES_S,
) -> EmbeddingPlan:
    """Return the plan with the longest lookahead that the caches have room for (5.3).

    A longer lookahead never fetches more rows. It is at most that of the profile. What is not given
    is what has the shortest predicted step; without costs, one server, one reader, and the targeted
    synchronisation, which moves least between a step and the next.

    Parameters
    ----------
    row_bytes, gradient_bytes : of a row with its optimizer's state, and without (None: it has
        none).
    dense_bytes : of the gradients of the model's dense part.
    cache_bytes : of each trainer's cache; None: as many as that lookahead needs.
    costs : None: no times are predicted.
    commit_every : batches between commits.
    failures_s : between losses of a process, the mean.

    Raises
    ------
    EmbeddingError : the caches have no room for a batch; a number is out of range.
    """
    row = RowBytes(gradient_bytes=gradient_bytes or row_bytes, row_bytes=row_bytes)
    lookahead, cache_bytes = _lookahead(profile, row_bytes, cache_bytes)
    kinds = [synchronisation] if synchronisation else [*RUNNABLE]
    if any(kind not in RUNNABLE for kind in kinds):
        names = ", ".join(kind.value for kind in RUNNABLE)
        raise EmbeddingError(f"synchronisation is {kinds[0].value}, needs one of {names}")
    choices = [_design(profile, kind, lookahead, row, dense_bytes) for kind in kinds]
    choice = choices[0]
    time = commits = None
    if costs is not None:
        choice, servers, readers, time = _shortest(profile, choices, costs, servers, readers)
        every = commit_every or planned_commits(
            profile, lookahead, row, costs,
            servers=servers, step_s=time.step_s, failures_s=failures_s,
        ).every  # fmt: skip
        commits = commit_times(
            profile, lookahead, every, row, costs,
            servers=servers, step_s=time.step_s, failures_s=failures_s,
        )  # fmt: skip
        commit_every = every if commit_every is None else commit_every
    rows = choice.rows
    critical = rows.critical_gradients + rows.critical_rows
    return EmbeddingPlan(
        batch=profile.batch,
        trainers=profile.trainers,
        servers=1 if servers is None else servers,
        readers=1 if readers is None else readers,
        lookahead=lookahead,
        prefetch=min(PREFETCH, lookahead),
        cache_bytes=cache_bytes,
        row_bytes=row_bytes,
        gradient_bytes=row.gradient_bytes,
        dense_bytes=dense_bytes,
        commit_every=UNPLANNED if commit_every is None else commit_every,
        synchronisation=choice.synchronisation,
        rows=profile.rows,
        fetched_rows=rows.fetched,
        resident_rows=profile.resident(lookahead),
        exchanged_rows=critical + rows.delayed_gradients + rows.delayed_rows,
        critical_rows=critical,
        moved=choice.moved,
        costs=costs,
        time=time,
        commits=commits,
    )


def _lookahead(
    profile: EmbeddingProfile, row_bytes: int, cache_bytes: int | None
) -> tuple[int, int]:
    """Return the lookahead, and the bytes of a cache."""
    lookahead = profile.lookahead
    if cache_bytes is None:
        return lookahead, math.ceil(planned_slots(profile, lookahead)) * row_bytes
    slots = cache_bytes // row_bytes
    while lookahead and planned_slots(profile, lookahead) > slots:
        lookahead -= 1
    if not lookahead:
        least = math.ceil(planned_slots(profile, 1)) * row_bytes
        raise EmbeddingError(
            f"a cache of {size(cache_bytes)} has no room for the rows of a batch: it needs "
            f"{size(least)}"
        )
    return lookahead, cache_bytes


def planned_slots(profile: EmbeddingProfile, lookahead: int) -> float:
    """Return the slots that a cache needs at a lookahead, and the prefetch that is planned."""
    prefetch = min(PREFETCH, lookahead)
    return needed_slots(profile.resident(lookahead), profile.fetched(lookahead), prefetch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Design:
    """A synchronisation, and what its step moves."""

    synchronisation: Synchronisation
    rows: StepRows
    moved: StepBytes


def _design(
    profile: EmbeddingProfile,
    synchronisation: Synchronisation,
    lookahead: int,
    row: RowBytes,
    dense_bytes: int,
) -> _Design:
    rows = profile.step_rows(synchronisation, lookahead)
    moved = step_bytes(profile, rows, row, dense_bytes=dense_bytes)
    return _Design(synchronisation=synchronisation, rows=rows, moved=moved)


def _shortest(
    profile: EmbeddingProfile,
    designs: Sequence[_Design],
    costs: StepCosts,
    servers: int | None,
    readers: int | None,
) -> tuple[_Design, int, int, PredictedStep]:
    """Return the design and numbers of servers and readers with the shortest step.

    Of those that are as short, the one with the fewest processes, and then the fewest bytes.
    """

    def choices() -> Iterator[tuple[_Design, int, int, PredictedStep]]:
        for design in designs:
            for server_count in _numbers(servers):
                for reader_count in _numbers(readers):
                    time = predicted_step(
                        profile,
                        design.rows,
                        design.moved,
                        costs,
                        servers=server_count,
                        readers=reader_count,
                    )
                    yield design, server_count, reader_count, time

    every = [*choices()]
    shortest_s = min(time.step_s for *_, time in every)
    near = [choice for choice in every if choice[-1].step_s <= _NEAR * shortest_s]
    return min(near, key=lambda choice: (choice[1] + choice[2], choice[0].moved.of_trainers))


def _numbers(count: int | None) -> Sequence[int]:
    """Return the numbers of processes to try."""
    return range(1, _MOST_PROCESSES + 1) if count is None else (count,)
