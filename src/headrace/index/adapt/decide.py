"""When an index is planned again: a pure `decide(state, observation) -> (state, action)`.

A changed mix of operations, or changed keys, are confirmed by a second look. Then operations are
recorded, a configuration is planned for them, and if that promises enough, leaves are converted to
it. The cost of operations before and after is compared, and the former configuration restored if
they have become slower. Nothing here has a clock or a thread: times are of the observations.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Enum, auto

import numpy as np

from headrace.facades import offered_by, public_value
from headrace.index.adapt.workload import (
    NONE,
    SeenWorkload,
    key_distance,
    merged_workload,
    mix_distance,
)

_REFERENCE = 1000
"""Keys of the reference sample: more would not make a look's own, of some hundred, tell more."""


@offered_by("headrace.index")
class TuningPhase(Enum):
    """State of adaptation."""

    WATCHING = auto()
    RECORDING = auto()
    PLANNING = auto()
    CONVERTING = auto()
    JUDGING = auto()
    REVERTING = auto()


@offered_by("headrace.index")
class TuningAction(Enum):
    """Actions of the thread that follows an index."""

    WAIT = auto()
    RECORD = auto()  # operations
    PLAN = auto()  # a configuration for what was recorded
    CONVERT = auto()  # leaves to the new configuration
    REVERT = auto()  # them to the former one
    ACCEPT = auto()  # watch on with what there is


@offered_by("headrace.index")
class TuningOutcome(Enum):
    """Ends of actions."""

    DONE = auto()
    KEPT = auto()  # planning found nothing that is better by enough
    FAILED = auto()


@public_value("headrace.index")
class TuningLimits:
    """Policy.

    Attributes
    ----------
    operations : of a look below which it tells nothing: an idle index has not changed.
    mix : share of operations that differ from the mix that was planned for. Costs are linear in the
        shares: what is best for a mix loses little where a tenth of the operations differs.
    keys : Kolmogorov-Smirnov distance of the keys, beyond chance.
    confirmations : looks in a row that show a change: a burst within one look is none.
    worse : increase of the mean cost that a conversion is reverted for; on a busy machine that of
        one configuration varies by a tenth and more.
    judge_rounds : looks at a new configuration before it is judged.
    pause_s : least time between the end of a planning and the next; doubled after each that changed
        nothing or was reverted, up to `most_pause_s`, and reset by one that was kept.
    """

    operations: int = 2000
    mix: float = 0.1
    keys: float = 0.2
    confirmations: int = 2
    worse: float = 0.25
    judge_rounds: int = 3
    pause_s: float = 0.5
    most_pause_s: float = 60.0


@public_value("headrace.index")
class SeenActivity:
    """One look at the index.

    Attributes
    ----------
    now_s : time, on any clock.
    workload : operations since the look before.
    outcome : of the action under way, if it has ended.
    """

    now_s: float
    workload: SeenWorkload = NONE
    outcome: TuningOutcome | None = None


@public_value("headrace.index", eq=False)
class TuningState:
    """Memory between observations.

    Attributes
    ----------
    planned_for : workload that the configuration in force was planned for; None: not planned yet.
    pending : operations of looks that were too few to tell.
    repeats : looks in a row that show a change.
    changed : workload of these looks; it becomes `planned_for`.
    judged, rounds : workload since the conversion, and its number of looks.
    pause_s, free_s : current pause, and the time it ends at.
    """

    limits: TuningLimits = field(default_factory=TuningLimits)
    phase: TuningPhase = TuningPhase.WATCHING
    planned_for: SeenWorkload | None = None
    pending: SeenWorkload = NONE
    repeats: int = 0
    changed: SeenWorkload = NONE
    judged: SeenWorkload = NONE
    rounds: int = 0
    pause_s: float = 0.0
    free_s: float = float("-inf")


_Decided = tuple[TuningState, TuningAction]


def decide(state: TuningState, seen: SeenActivity) -> _Decided:
    """Return the next state and action."""
    return _DECIDE[state.phase](state, seen)


def has_changed(state: TuningState, workload: SeenWorkload) -> bool:
    """Return whether a workload differs from the one that was planned for."""
    if state.planned_for is None:
        return True
    return (
        mix_distance(state.planned_for, workload) > state.limits.mix
        or key_distance(state.planned_for, workload) > state.limits.keys
    )


def _watching(state: TuningState, seen: SeenActivity) -> _Decided:
    workload = merged_workload(state.pending, seen.workload)
    if workload.operations < state.limits.operations:
        return replace(state, pending=workload), TuningAction.WAIT
    state = replace(state, pending=NONE)
    if not has_changed(state, workload):
        return replace(_with_keys(state, workload), repeats=0, changed=NONE), TuningAction.WAIT
    # the last look alone: the one before may have begun with the former workload
    state = replace(state, repeats=state.repeats + 1, changed=workload)
    if state.repeats < state.limits.confirmations or seen.now_s < state.free_s:
        return state, TuningAction.WAIT
    return _record(state)


def _with_keys(state: TuningState, workload: SeenWorkload) -> TuningState:
    """Add a look's keys to the sample of what was planned for, until that is large."""
    planned = state.planned_for
    if planned is None or len(planned.sample) >= _REFERENCE:
        return state
    sample = np.sort(np.concatenate([planned.sample, workload.sample]))
    return replace(state, planned_for=replace(planned, sample=sample))


def _record(state: TuningState) -> _Decided:
    begun = replace(state, phase=TuningPhase.RECORDING, planned_for=state.changed, repeats=0)
    return begun, TuningAction.RECORD


def _recording(state: TuningState, seen: SeenActivity) -> _Decided:
    match seen.outcome:
        case None:
            return state, TuningAction.WAIT
        case TuningOutcome.DONE:
            return replace(state, phase=TuningPhase.PLANNING), TuningAction.PLAN
        case _:
            return _end(state, seen, useful=False)


def _planning(state: TuningState, seen: SeenActivity) -> _Decided:
    match seen.outcome:
        case None:
            return state, TuningAction.WAIT
        case TuningOutcome.DONE:
            free_s = seen.now_s + state.limits.pause_s
            return replace(state, phase=TuningPhase.CONVERTING, free_s=free_s), TuningAction.CONVERT
        case _:
            return _end(state, seen, useful=False)


def _converting(state: TuningState, seen: SeenActivity) -> _Decided:
    """Wait for the end; a workload that changes again ends it early."""
    if seen.workload.operations >= state.limits.operations:
        if has_changed(state, seen.workload):
            state = replace(state, repeats=state.repeats + 1, changed=seen.workload)
            if state.repeats >= state.limits.confirmations:
                return _record(state)
        else:
            state = replace(state, repeats=0)
    match seen.outcome:
        case None:
            return state, TuningAction.WAIT
        case TuningOutcome.DONE:
            return replace(
                state, phase=TuningPhase.JUDGING, judged=NONE, rounds=0
            ), TuningAction.WAIT
        case _:
            return _end(state, seen, useful=False)


def _judging(state: TuningState, seen: SeenActivity) -> _Decided:
    if seen.workload.operations < state.limits.operations:
        return state, TuningAction.WAIT
    if has_changed(state, seen.workload):
        return _end(state, seen, useful=True)  # the costs of two workloads are not compared
    state = replace(
        state, judged=merged_workload(state.judged, seen.workload), rounds=state.rounds + 1
    )
    if state.rounds < state.limits.judge_rounds:
        return state, TuningAction.WAIT
    assert state.planned_for is not None
    shares = state.judged.shares
    before, after = state.planned_for.cost_of(shares), state.judged.cost_of(shares)
    if before is not None and after is not None and after > before * (1 + state.limits.worse):
        return replace(state, phase=TuningPhase.REVERTING), TuningAction.REVERT
    return _end(state, seen, useful=True)


def _reverting(state: TuningState, seen: SeenActivity) -> _Decided:
    return (state, TuningAction.WAIT) if seen.outcome is None else _end(state, seen, useful=False)


def _end(state: TuningState, seen: SeenActivity, *, useful: bool) -> _Decided:
    """Watch on; the next planning waits longer if this one was of no use."""
    limits = state.limits
    longer = min(max(2 * state.pause_s, limits.pause_s), limits.most_pause_s)
    pause_s = limits.pause_s if useful else longer
    # of a planning that was of use, the pause has run since its end
    free_s = state.free_s if useful else seen.now_s + pause_s
    ended = replace(
        state,
        phase=TuningPhase.WATCHING,
        repeats=0,
        changed=NONE,
        pending=NONE,
        pause_s=pause_s,
        free_s=free_s,
    )
    return ended, TuningAction.ACCEPT


_DECIDE: Mapping[TuningPhase, Callable[[TuningState, SeenActivity], _Decided]] = {
    TuningPhase.WATCHING: _watching,
    TuningPhase.RECORDING: _recording,
    TuningPhase.PLANNING: _planning,
    TuningPhase.CONVERTING: _converting,
    TuningPhase.JUDGING: _judging,
    TuningPhase.REVERTING: _reverting,
}
