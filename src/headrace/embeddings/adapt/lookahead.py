"""Lookahead by the room in the caches, and by batches that have arrived: pure.

The rows of the lookahead's batches fit the fullest cache: more of them make decisions slower and
save no fetch, as those that have no room leave first whose next use is farthest. Where readers are
late, trainers go on with what has arrived.
"""

from dataclasses import dataclass, replace

from headrace.embeddings.adapt.seen import JobChange, JobChanges, SeenBatch

_SETTLED = 8
"""Decisions without a change that end a series of them."""

_TOLD = 0.1
"""Part of the lookahead that a series of changes has to exceed to be told."""

FULL = "the rows of the batches to come fill the caches"
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
    """

    lookahead: int
    most: int
    series: _Series | None = None


def follow_room(
    state: LookaheadState, seen: SeenBatch, prefetch: int
) -> tuple[LookaheadState, JobChanges]:
    """Return the next state, of which the lookahead is at least `prefetch`, and what to tell."""
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
    if seen.distinct > 1 and state.lookahead > prefetch:
        return -1, FULL
    # a batch of some more rows, too: it would be one too many now and then
    if state.lookahead < state.most and seen.ahead and seen.distinct + 1.25 * seen.added <= 1:
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
