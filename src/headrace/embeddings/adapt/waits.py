"""Prefetch, parts kept ready and the limit of the lookahead, by waits for rows: pure.

Where trainers wait for rows, one of the three is raised on trial, and kept if that made waits
shorter. Which one helps depends on what is slow, and how evenly: a link, a server, the readers. A
prefetch that the caches have no room for needs no rule: a decision delays its fetches to when slots
are free, and where a smaller one would have fetched rows sooner, that one on trial is undone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from headrace.embeddings.adapt.lookahead import LookaheadState
from headrace.embeddings.adapt.seen import JobChanges, SeenBatch, SeenStep
from headrace.embeddings.changes import JobChange
from headrace.embeddings.room import MOST_LOOKAHEAD

_STEPS = 16
"""Of a mean: fewer differ from the next ones by chance."""

_WAITING = 0.05
"""Part of the steps' time that waits have to exceed: of an even job they are below a hundredth."""

_CONFIRMATIONS = 3
"""Means in a row above that: a pause of the machine is in one or two."""

_SHORTER = 0.8
"""Waits after a change over those before it, at most, for it to be kept."""

_MOST_PREFETCH = 16
_MOST_READY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    name: str
    before: int
    share: float  # of waits in steps, before it


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitState:
    """Memory between observations.

    Attributes
    ----------
    prefetch : batches between a row's fetch and its use, in force.
    ready : parts of batches that are decided ahead of prefetched ones.
    steps : since the last mean.
    since : first batch whose step counts.
    confirmed : means in a row in which trainers waited.
    tried : names that did not help.
    """

    prefetch: int
    ready: int
    steps: tuple[SeenStep, ...] = ()
    since: int = 0
    confirmed: int = 0
    tried: frozenset[str] = frozenset()
    trial: _Trial | None = None
    gave_up: bool = False


_Both = tuple[WaitState, LookaheadState]
_Changed = tuple[WaitState, LookaheadState, JobChanges]


def follow_waits(state: WaitState, lookahead: LookaheadState, seen: SeenBatch) -> _Changed:
    """Return the next states, whose lookahead is only limited here, and the changes."""
    told: JobChanges = ()
    for step in seen.steps:
        if step.batch < state.since:
            continue
        state = replace(state, steps=(*state.steps, step))
        if len(state.steps) == _STEPS:
            share = _share(state.steps)
            state, lookahead, more = _look(replace(state, steps=()), lookahead, seen, share)
            told += more
    return state, lookahead, told


def _share(steps: tuple[SeenStep, ...]) -> float:
    """Return the part of waits in steps, without the step of the longest one."""
    longest = max(range(len(steps)), key=lambda number: steps[number].wait_s)
    others = [step for number, step in enumerate(steps) if number != longest]
    return sum(step.wait_s for step in others) / max(1e-9, sum(step.step_s for step in others))


def _change(name: str, before: int, after: int, seen: SeenBatch, reason: str) -> JobChange:
    return JobChange(name=name, before=before, after=after, batch=seen.batch, reason=reason)


def _look(state: WaitState, lookahead: LookaheadState, seen: SeenBatch, share: float) -> _Changed:
    """Judge a trial, or begin one where trainers wait."""
    if state.trial is not None:
        return _judge(state, state.trial, lookahead, seen, share)
    if share <= _WAITING:
        calm = share <= _WAITING / 2
        state = replace(
            state,
            confirmed=0,
            tried=frozenset[str]() if calm else state.tried,
            gave_up=state.gave_up and not calm,
        )
        return state, lookahead, ()
    state = replace(state, confirmed=state.confirmed + 1)
    if state.confirmed < _CONFIRMATIONS:
        return state, lookahead, ()
    waiting = f"trainers wait {share:z.0%} of a step for rows"
    for name, raised in _RAISED.items():
        before = _value(state, lookahead, name)
        after = before if name in state.tried else raised(state, lookahead, seen)
        if after > before:
            state = replace(state, trial=_Trial(name=name, before=before, share=share))
            return (
                *_with(state, lookahead, seen, name, after),
                (_change(name, before, after, seen, waiting),),
            )
    if state.gave_up:
        return state, lookahead, ()
    reason = f"{waiting}, and nothing that can change helps: more servers or larger caches do"
    return replace(state, gave_up=True), lookahead, (_change("none", 0, 0, seen, reason),)


def _judge(
    state: WaitState, trial: _Trial, lookahead: LookaheadState, seen: SeenBatch, share: float
) -> _Changed:
    state = replace(state, trial=None, confirmed=0)
    if share <= _SHORTER * trial.share:
        return replace(state, tried=frozenset[str]()), lookahead, ()
    before = _value(state, lookahead, trial.name)
    state = replace(state, tried=state.tried | {trial.name})
    reason = f"it did not help: trainers wait {share:z.0%} of a step, {trial.share:z.0%} before"
    return (
        *_with(state, lookahead, seen, trial.name, trial.before),
        (_change(trial.name, before, trial.before, seen, reason),),
    )


def _value(state: WaitState, lookahead: LookaheadState, name: str) -> int:
    return {"prefetch": state.prefetch, "ready": state.ready, "lookahead limit": lookahead.most}[
        name
    ]


def _with(
    state: WaitState, lookahead: LookaheadState, seen: SeenBatch, name: str, value: int
) -> _Both:
    """Return the states with a value, whose steps count from when it has effect."""
    if name == "lookahead limit":
        # the window grows by one batch a decision, and rows are fetched less often behind it
        return (
            replace(state, since=seen.arriving + 2 * value),
            replace(lookahead, most=value, lookahead=min(lookahead.lookahead, value)),
        )
    state = replace(state, since=seen.batch + state.ready + 2 * state.prefetch)
    if name == "prefetch":
        return replace(state, prefetch=value), lookahead
    return replace(state, ready=value), lookahead


def _more_prefetch(state: WaitState, lookahead: LookaheadState, seen: SeenBatch) -> int:
    del seen
    return max(state.prefetch, min(state.prefetch + 1, _MOST_PREFETCH, lookahead.lookahead))


def _more_ready(state: WaitState, lookahead: LookaheadState, seen: SeenBatch) -> int:
    """Return more where decisions come in bursts: the last one had no room, or is behind."""
    del lookahead
    return state.ready if seen.ahead else min(2 * state.ready, _MOST_READY)


def _more_lookahead(state: WaitState, lookahead: LookaheadState, seen: SeenBatch) -> int:
    del state
    at_limit = lookahead.lookahead >= lookahead.most and seen.slot_share <= 1
    raised = min(ceil(1.25 * lookahead.most), MOST_LOOKAHEAD)
    return max(raised, lookahead.most) if at_limit else lookahead.most


_Raised = Callable[[WaitState, LookaheadState, SeenBatch], int]
_RAISED: Mapping[str, _Raised] = {
    "prefetch": _more_prefetch,
    "ready": _more_ready,
    "lookahead limit": _more_lookahead,
}
"""Values by their names, in the order of their trials: the first ones have effect soonest."""
