"""State machine of adaptation, as a pure function.

``decide(state, observation) -> (state, action)``. The coordinator carries actions out and reports
their outcome in its next observation; nothing here waits, measures or uses threads.

::

    watching --steps changed--> diagnosing --explained--> planning --swapped--> settling <--.
       |  ^                        |   ^                     ^                  |     |     |
       |  |                        |   | steps changed,      |                  |     v     |
       |  `- faster, or no report -'   | whatever goes on    |                  |  finetuning
       |                           |                         |                  v
       |                           `-slower, unexplained--> probing <-- far from what was expected
       `--ports changed, seen in two looks------------> planning

A look gathers the rates of connections in a window; a port found changed in two routine looks in a
row sets adaptation off as well, because a host that recovers after its load was moved away makes
steps little faster. Planning and Finetune's plans take time, in which training, and this, go on: a
change of the steps cancels them, and diagnosis begins anew.

Ranks poll for requests, so their windows of statistics begin at different times. A diagnosis waits
until all hold a whole step: in part of one, connections that have not sent yet appear idle, and
those that wait for others appear slow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.job.steps import Change


class AdaptationPhase(StrEnum):
    """Phase of adaptation; the values are those of the adaptation log."""

    WATCHING = "watching"
    DIAGNOSING = "diagnosing"
    PLANNING = "planning"
    SETTLING = "settling"
    FINETUNING = "finetuning"
    REVERTING = "reverting"
    PROBING = "probing"


class Action(StrEnum):
    """Action for the coordinator; all but WAIT cancel planning.

    WAIT: nothing, until the next observation. RESET: begin a new window of statistics. LOOK: end
    the window and find the ports that have changed in it. ACCEPT: take the present state of the
    network as the baseline. PLAN: have Quicktune and the templates plan for the network as it is
    now. FINETUNE: have some masters moved. Both swap if that is better. REVERT: swap back to the
    plan that had the shortest steps. PROBE: measure the network between two steps.
    """

    WAIT = "wait"
    RESET = "reset"
    LOOK = "look"
    ACCEPT = "accept"
    PLAN = "plan"
    FINETUNE = "finetune"
    REVERT = "revert"
    PROBE = "probe"


class ActionOutcome(StrEnum):
    """Outcome of an action: another plan in force, none better found, failure, or a measurement."""

    SWAPPED = "swapped"
    KEPT = "kept"
    FAILED = "failed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Constants, with their reasons.

    Attributes
    ----------
    judge_steps : steps under a new plan before it is judged: their median is to outweigh the two
        that connections used for the first time may delay.
    look_every_s : between routine looks; one costs every rank well under a millisecond. Half of
        that while the network differs from the measured one: what got slow may recover.
    look_steps : a window shorter than this many steps may miss connections that take turns.
    diagnose_steps : the same after a change of the steps, which has waited long enough.
    confirmations : routine looks in a row that have to find the same port slower, or faster, as
        nothing else confirms them.
    eased : one look is enough if it found ports faster while steps became this much shorter.
    max_unexplained : looks after steps became slower that explain nothing, before the network is
        measured again: a few more steps may show the cause, or that it has passed.
    worse, sigmas : steps so much longer than the best so far, and by so many of the standard
        deviations of a step, are a reason to go back. (Medians of five steps differ by 0.8.)
    finetune_rounds : Finetune has a stop rule of its own; this one is for plans that oscillate.
    better, stale : so many rounds of Finetune in a row without steps that much shorter end it.
    not_tuned : steps that became so much shorter when Finetune moved a few masters did so for
        another reason.
    above_expected : steps this many times as long as expected call for measuring again, unless
        other plans have made them shorter by `helped`. Between plans of different kinds the
        simulator errs by up to a fifth where cores are short.
    probe_every_s : probing stops training for seconds; it should take up to a percent or so.
    """

    judge_steps: int = 5
    look_every_s: float = 2.0
    look_steps: int = 3
    diagnose_steps: int = 1
    confirmations: int = 2
    eased: float = 0.08
    max_unexplained: int = 3
    worse: float = 0.08
    sigmas: float = 1.5
    finetune_rounds: int = 8
    better: float = 0.01
    stale: int = 2
    not_tuned: float = 0.12
    above_expected: float = 1.25
    helped: float = 0.1
    probe_every_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Input of a decision: measurements and results since the last one.

    Attributes
    ----------
    now_s : a steady clock.
    window_s : time for which all ranks' windows of statistics have been open.
    steps : since the last swap, reset of the clock, or change.
    step_s : median of the latest steps; None before the first.
    reference_s : baseline for steps: their time before, under this plan or one that hardly
        differs; None: not known.
    scatter : standard deviation of a step over its time, before adaptation set off.
    suspect : the latest step was beyond the limit; one more makes it a change.
    change : steps began to take another time.
    found : result of a look: ports and the factors that they changed by; None if none was made.
    outcome : of the last action, if it has one, and has ended.
    expected_s : predicted time of a step with the plan in force; None: not known.
    altered : whether the network is estimated to differ from the measured one.
    tunable : whether the plan in force has masters that Finetune could move.
    """

    now_s: float
    window_s: float = 0.0
    steps: int = 0
    step_s: float | None = None
    reference_s: float | None = None
    scatter: float = 0.0
    suspect: bool = False
    change: Change | None = None
    found: Mapping[str, float] | None = None
    outcome: ActionOutcome | None = None
    expected_s: float | None = None
    altered: bool = False
    tunable: bool = False

    @property
    def window_steps(self) -> float:
        """Approximate number of steps in the windows; 0 before the first."""
        return self.window_s / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptationState:
    """Phase of adaptation, and its memory.

    Attributes
    ----------
    looking : whether a look is under way.
    alert : whether the window was begun because a step was suspect.
    suspected : the ports that the last routine looks all found changed, and whether to slower.
    repeats : number of such looks in a row; while diagnosing, of looks that explained nothing.
    change : of the steps, which set adaptation off; None if a look did.
    began_s, best_s : time of steps when it set off, and the shortest since.
    rounds, stale : plans tried since, and those in a row without gain.
    probed_s : time of the last measurement of the network.
    """

    phase: AdaptationPhase = AdaptationPhase.WATCHING
    limits: Limits = field(default_factory=Limits)
    looking: bool = False
    alert: bool = False
    suspected: frozenset[tuple[str, bool]] = frozenset()
    repeats: int = 0
    change: Change | None = None
    began_s: float | None = None
    best_s: float | None = None
    rounds: int = 0
    stale: int = 0
    probed_s: float | None = None


def decide(state: AdaptationState, seen: Observation) -> tuple[AdaptationState, Action]:
    """Return the next state and action."""
    if seen.change is not None:
        began = _diagnosis(state, seen.change)
        # where a suspect step began the window, it holds nothing but what came after the change
        return _diagnosing(began, seen) if state.alert else (began, Action.RESET)
    return _DECIDE[state.phase](state, seen)


_Decided = tuple[AdaptationState, Action]


def _diagnosis(state: AdaptationState, change: Change) -> AdaptationState:
    return replace(_fresh(state, change.after_s), phase=AdaptationPhase.DIAGNOSING, change=change)


def _watching(state: AdaptationState, seen: Observation) -> _Decided:
    limits = state.limits
    if state.looking:
        return _looked(replace(state, looking=False), seen)
    if seen.suspect and not state.alert:
        # if the next step confirms it, the window holds nothing but the change
        return replace(state, alert=True), Action.RESET
    state = replace(state, alert=seen.suspect)
    every_s = limits.look_every_s / (2 if seen.altered else 1)
    if seen.window_s >= every_s and seen.window_steps >= limits.look_steps:
        return _look(state)
    return state, Action.WAIT


def _looked(state: AdaptationState, seen: Observation) -> _Decided:
    """Judge a routine look."""
    if seen.found is None:  # the ranks did not report in time
        return state, Action.WAIT
    suspects = frozenset((port, factor < 1) for port, factor in seen.found.items())
    again = state.suspected & suspects
    repeats = state.repeats + 1 if again else min(1, len(suspects))
    state = replace(state, repeats=repeats, suspected=again or suspects)
    eased = (
        seen.step_s is not None
        and seen.reference_s is not None
        and seen.step_s < seen.reference_s * (1 - state.limits.eased)
        and any(factor > 1 for factor in seen.found.values())
    )
    if repeats >= state.limits.confirmations or eased:
        return _plan(_fresh(state, seen.step_s))
    # the baseline stays, for the next look to confirm this one
    return state, Action.WAIT if repeats else Action.ACCEPT


def _diagnosing(state: AdaptationState, seen: Observation) -> _Decided:
    if not state.looking:
        limits = state.limits
        needed = limits.judge_steps if state.repeats else limits.diagnose_steps
        return _look(state) if seen.window_steps >= needed else (state, Action.WAIT)
    state = replace(state, looking=False)
    if seen.found is None:
        return _watch(state)  # the ranks did not report in time
    slower = state.change is not None and state.change.slower
    # Faster, and no port explains it: most likely what had become slow is as before. If not, the
    # plan made for that is reverted.
    if seen.found or (seen.altered and not slower):
        return _plan(state)
    state = replace(state, repeats=state.repeats + 1)
    if not slower:
        return _watch(state)
    if state.repeats < state.limits.max_unexplained:
        return state, Action.WAIT
    return _probe(state, seen) or _watch(state)


def _planning(state: AdaptationState, seen: Observation) -> _Decided:
    if seen.outcome is ActionOutcome.KEPT:
        return _finished(state, seen)
    return _awaited(state, seen) or _watch(state)


def _awaited(state: AdaptationState, seen: Observation) -> _Decided | None:
    """Wait for the action's outcome and then for steps of its plan; None if it has none."""
    match seen.outcome:
        case None:
            return state, Action.WAIT
        case ActionOutcome.SWAPPED:
            return replace(state, phase=AdaptationPhase.SETTLING), Action.WAIT
        case _:
            return None


def _judging(state: AdaptationState, seen: Observation) -> _Decided:
    """Judge a plan once there are enough steps of it: go on with Finetune, or back."""
    limits = state.limits
    if seen.steps < limits.judge_steps or seen.step_s is None:
        return state, Action.WAIT
    if seen.reference_s is not None and seen.step_s < seen.reference_s * (1 - limits.not_tuned):
        change = Change(before_s=seen.reference_s, after_s=seen.step_s)
        return _diagnosing(_diagnosis(state, change), seen)
    worse = 1 + max(limits.worse, limits.sigmas * seen.scatter)
    if state.best_s is not None and seen.step_s > state.best_s * worse:
        return replace(state, phase=AdaptationPhase.REVERTING), Action.REVERT
    gained = state.best_s is None or seen.step_s < state.best_s * (1 - limits.better)
    best_s = seen.step_s if state.best_s is None else min(seen.step_s, state.best_s)
    stale = 0 if gained else state.stale + 1
    state = replace(state, best_s=best_s, rounds=state.rounds + 1, stale=stale)
    if not seen.tunable or stale >= limits.stale or state.rounds > limits.finetune_rounds:
        return _finished(state, seen)
    return replace(state, phase=AdaptationPhase.FINETUNING), Action.FINETUNE


def _finetuning(state: AdaptationState, seen: Observation) -> _Decided:
    if seen.found:  # a changed port, not Finetune, made steps shorter or longer
        return _plan(_fresh(state, seen.step_s))
    return _awaited(state, seen) or _finished(state, seen)


def _reverting(state: AdaptationState, seen: Observation) -> _Decided:
    under_way = seen.outcome is None and seen.steps < state.limits.judge_steps
    if under_way or seen.outcome is ActionOutcome.SWAPPED:
        return state, Action.WAIT
    return _finished(state, seen)


def _probing(state: AdaptationState, seen: Observation) -> _Decided:
    if seen.outcome is ActionOutcome.MEASURED:
        # plans made before are for a network that is gone: the next is not compared with them
        return _plan(replace(state, best_s=None))
    return _watch(state)


def _finished(state: AdaptationState, seen: Observation) -> _Decided:
    """End planning: watch on, or probe if steps take far longer than predicted."""
    limits = state.limits
    late = (
        seen.expected_s is not None
        and seen.step_s is not None
        and seen.step_s > seen.expected_s * limits.above_expected
        and (state.began_s is None or seen.step_s > state.began_s * (1 - limits.helped))
    )
    return (_probe(state, seen) if late else None) or _watch(state)


def _plan(state: AdaptationState) -> _Decided:
    return replace(state, phase=AdaptationPhase.PLANNING), Action.PLAN


def _look(state: AdaptationState) -> _Decided:
    return replace(state, looking=True), Action.LOOK


def _probe(state: AdaptationState, seen: Observation) -> _Decided | None:
    """Probe the network, unless that was done less than `probe_every_s` ago."""
    if state.probed_s is not None and seen.now_s - state.probed_s < state.limits.probe_every_s:
        return None
    return replace(state, phase=AdaptationPhase.PROBING, probed_s=seen.now_s), Action.PROBE


def _watch(state: AdaptationState) -> _Decided:
    return replace(_fresh(state, None), phase=AdaptationPhase.WATCHING), Action.ACCEPT


def _fresh(state: AdaptationState, step_s: float | None) -> AdaptationState:
    """Clear the memory; any plan has to beat steps of `step_s`."""
    return replace(
        state,
        looking=False,
        alert=False,
        suspected=frozenset(),
        repeats=0,
        change=None,
        began_s=step_s,
        best_s=step_s,
        rounds=0,
        stale=0,
    )


_DECIDE: Mapping[AdaptationPhase, Callable[[AdaptationState, Observation], _Decided]] = {
    AdaptationPhase.WATCHING: _watching,
    AdaptationPhase.DIAGNOSING: _diagnosing,
    AdaptationPhase.PLANNING: _planning,
    AdaptationPhase.SETTLING: _judging,
    AdaptationPhase.FINETUNING: _finetuning,
    AdaptationPhase.REVERTING: _reverting,
    AdaptationPhase.PROBING: _probing,
}
