"""Lookahead by the room in the caches, and by batches that have arrived: pure.

A lookahead is too long where rows leave the fullest cache for want of room. Those leave whose next
use is farthest, which a shorter one would not have kept either: it fetches as few, and decides
faster. Where readers are late, trainers go on with what has arrived.
"""

from dataclasses import dataclass, replace

from headrace.embeddings.adapt.seen import JobChanges, SeenBatch
from headrace.embeddings.changes import JobChange

_SETTLED = 8
"""Decisions without a change that end a series of them; and those in a row that have room before
the lookahead grows: one batch of fewer rows than others is no room."""

_TOLD = 0.1
"""Part of the lookahead that a series of changes has to exceed to be told."""

FULL = "the caches have no room for the rows of as many batches"
LATE = "the readers are late: trainers go on with batches that have arrived"
ROOM = "the caches have room for the rows of more batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """Changes one after the other, for one reason, that began at a lookahead."""

    reason: str
    before: int
    settled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadState:
    """Memory between observations.

    Attributes
    ----------
    lookahead : in force.
    most : limit of it: the plan's.
    roomy : decisions in a row whose caches had room for more.
    """

    lookahead: int
    most: int
    roomy: int = 0
    series: _Series | None = None


def follow_room(
    state: LookaheadState, seen: SeenBatch, prefetch: int
) -> tuple[LookaheadState, JobChanges]:
    """Return the next state, of which the lookahead is at least `prefetch`, and what to tell."""
    state = replace(state, roomy=state.roomy + 1 if seen.slot_share <= 1 else 0)
    change, reason = _change(state, seen, prefetch)
    series = state.series
    told: JobChanges = ()
    if series is not None and (change == 0 or reason != series.reason):
        series = replace(series, settled=series.settled + 1)
        if change != 0 or series.settled == _SETTLED:
            told, series = _told(state, series, seen), None
    if change != 0:
        if series is None:
            series = _Series(reason=reason, before=state.lookahead)
        series = replace(series, settled=0)
    return replace(state, lookahead=state.lookahead + change, series=series), told


def _change(state: LookaheadState, seen: SeenBatch, prefetch: int) -> tuple[int, str]:
    if state.lookahead < prefetch:
        return prefetch - state.lookahead, ROOM
    if seen.late and state.lookahead > prefetch:
        return -1, LATE
    if seen.short and state.lookahead > prefetch:
        return -1, FULL
    if state.lookahead < state.most and seen.ahead and state.roomy >= _SETTLED:
        return 1, ROOM
    return 0, ""


def _told(state: LookaheadState, series: _Series, seen: SeenBatch) -> JobChanges:
    if abs(state.lookahead - series.before) <= _TOLD * series.before:
        return ()
    change = JobChange(
        name="lookahead",
        before=series.before,
        after=state.lookahead,
        batch=seen.batch,
        reason=series.reason,
    )
    return (change,)
