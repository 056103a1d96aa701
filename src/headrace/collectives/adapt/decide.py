"""What to do next: the state machine of adaptation, as a pure function.

``decide(state, observation) -> (state, action)``. The coordinator carries actions out and says
what came of them with its next observation; nothing here waits, measures or knows of threads.

::

    watching --steps changed--> diagnosing --explained--> quicktune --> finetune, until its stop
       |  ^                         |                                            |
       |  |                         `--slower, unexplained--.                    v
       |  `-----------------------------------------------  |  <---- replan, if it finds better
       |                                                    v                    ^
       `--ports changed, seen in two looks--> quicktune    probe ----------------'

A look gathers what connections achieve; a port that is found changed in two routine looks in a row
sets adaptation off as well, because a host that recovers after its load was moved away makes steps
little faster.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from headrace.collectives.adapt.steps import Change

__all__ = ["Action", "Limits", "Observation", "Outcome", "Phase", "State", "decide"]


class Phase(StrEnum):
    """Where adaptation is."""

    WATCHING = "watching"
    DIAGNOSING = "diagnosing"
    QUICKTUNING = "quicktuning"
    FINETUNING = "finetuning"
    REVERTING = "reverting"
    PROBING = "probing"
    REPLANNING = "replanning"


class Action(StrEnum):
    """What the coordinator is to do.

    WAIT: nothing, until there are more steps. RESET: begin a new window of statistics. LOOK: end
    the window and say which ports have changed in it. ACCEPT: take the present state of the
    network as the one to compare with. QUICKTUNE, FINETUNE, REPLAN: look for a better plan and
    swap to it. REVERT: swap back to the plan that had the shortest steps. PROBE: measure the
    network between two steps.
    """

    WAIT = "wait"
    RESET = "reset"
    LOOK = "look"
    ACCEPT = "accept"
    QUICKTUNE = "quicktune"
    FINETUNE = "finetune"
    REVERT = "revert"
    PROBE = "probe"
    REPLAN = "replan"


class Outcome(StrEnum):
    """What came of an action: another plan serves; nothing better was found; it failed."""

    SWAPPED = "swapped"
    KEPT = "kept"
    FAILED = "failed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Constants, with their reasons.

    Attributes
    ----------
    settle_steps : steps under a new plan before it is judged: the first may hold calls of both.
    look_every_s : between routine looks; one costs every rank well under a millisecond.
    look_steps : a window shorter than this many steps may miss connections that take turns.
    looks : routine looks in a row that have to agree, as nothing else confirms them.
    worse : steps so much longer than the best so far are a reason to go back.
    finetune_rounds : Finetune has a stop rule of its own; this one is for plans that oscillate.
    better, stale : so many rounds of Finetune in a row without steps that much shorter end it.
    above_expected : steps this many times as long as expected call for measuring again. Between
        plans of different kinds the simulator errs by up to a fifth where cores are short.
    probe_every_s : probing stops training for seconds; it should take up to a percent or so.
    """

    settle_steps: int = 3
    look_every_s: float = 2.0
    look_steps: int = 3
    looks: int = 2
    worse: float = 0.08
    finetune_rounds: int = 8
    better: float = 0.01
    stale: int = 2
    above_expected: float = 1.25
    probe_every_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the coordinator knows since the last decision.

    Attributes
    ----------
    now_s : a steady clock.
    steps : since the last swap, reset of the clock, or change.
    step_s : median of the latest steps; None before the first.
    suspect : the latest step was beyond the limit; one more makes it a change.
    change : steps began to take another time.
    found : what a look found: ports and the factors that they changed by; None if none was made.
    outcome : of the action asked for last, if that was one that has any.
    expected_s : how long a step should take with the plan in force, if that can be told.
    altered : whether the network is believed to differ from what was measured.
    """

    now_s: float
    steps: int = 0
    step_s: float | None = None
    suspect: bool = False
    change: Change | None = None
    found: Mapping[str, float] | None = None
    outcome: Outcome | None = None
    expected_s: float | None = None
    altered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where adaptation is, and what it remembers.

    Attributes
    ----------
    looked_s, looked_steps : when the window of statistics began.
    looks : routine looks in a row that found a change.
    change : of the steps, which set adaptation off; None if a look did.
    best_s : the shortest steps since.
    rounds, stale : of Finetune, and those in a row that brought nothing.
    replanned : whether all makers of plans have been asked since.
    probed_s : when the network was measured last.
    """

    phase: Phase = Phase.WATCHING
    limits: Limits = field(default_factory=Limits)
    looking: bool = False
    looked_s: float = 0.0
    looks: int = 0
    change: Change | None = None
    best_s: float | None = None
    rounds: int = 0
    stale: int = 0
    replanned: bool = False
    probed_s: float | None = None


def decide(state: State, seen: Observation) -> tuple[State, Action]:
    """Return the next state, and what to do."""
    return _DECIDE[state.phase](state, seen)


_Decided = tuple[State, Action]


def _watching(state: State, seen: Observation) -> _Decided:
    limits = state.limits
    if seen.change is not None:
        started = replace(
            _fresh(state, seen), phase=Phase.DIAGNOSING, change=seen.change, looking=True
        )
        return started, Action.LOOK
    if state.looking and seen.found is not None:
        looks = state.looks + 1 if seen.found else 0
        state = replace(state, looking=False, looks=looks, looked_s=seen.now_s)
        if looks >= limits.looks:
            return replace(_fresh(state, seen), phase=Phase.QUICKTUNING), Action.QUICKTUNE
        # what one look found is compared with the same as before by the next
        return state, Action.WAIT if looks else Action.ACCEPT
    if state.looking:  # the ranks did not answer
        return replace(state, looking=False, looked_s=seen.now_s), Action.WAIT
    if seen.suspect:
        # if the next step confirms it, the window holds nothing but the change
        return replace(state, looked_s=seen.now_s), Action.RESET
    if seen.now_s - state.looked_s >= limits.look_every_s and seen.steps >= limits.look_steps:
        return replace(state, looking=True), Action.LOOK
    return state, Action.WAIT


def _diagnosing(state: State, seen: Observation) -> _Decided:
    if seen.found is None:
        return _watch(state, seen), Action.ACCEPT  # the ranks did not answer
    if seen.found:
        return replace(state, phase=Phase.QUICKTUNING, looking=False), Action.QUICKTUNE
    if state.change is not None and not state.change.slower and seen.altered:
        # most likely what had become slow is as before; if not, its plan goes again
        return replace(state, phase=Phase.QUICKTUNING, looking=False), Action.QUICKTUNE
    if state.change is not None and state.change.slower and _may_probe(state, seen):
        return replace(state, phase=Phase.PROBING, probed_s=seen.now_s), Action.PROBE
    return _watch(state, seen), Action.ACCEPT


def _quicktuning(state: State, seen: Observation) -> _Decided:
    if seen.outcome is None:
        return _settled(state, seen)
    if seen.outcome is Outcome.SWAPPED:
        return state, Action.WAIT
    return _replan(state)


def _finetuning(state: State, seen: Observation) -> _Decided:
    if seen.outcome is None:
        return _settled(state, seen)
    if seen.outcome is Outcome.SWAPPED:
        return state, Action.WAIT
    return _replan(state)


def _settled(state: State, seen: Observation) -> _Decided:
    """Judge a plan once there are enough steps of it: go on with Finetune, or back."""
    limits = state.limits
    if seen.steps < state.limits.settle_steps or seen.step_s is None:
        return state, Action.WAIT
    if _worse(state, seen):
        return replace(state, phase=Phase.REVERTING), Action.REVERT
    gained = state.best_s is None or seen.step_s < state.best_s * (1 - limits.better)
    stale = 0 if gained else state.stale + 1
    state = replace(_best(state, seen), rounds=state.rounds + 1, stale=stale)
    if stale >= limits.stale or state.rounds > limits.finetune_rounds:
        return _replan(state)
    return replace(state, phase=Phase.FINETUNING), Action.FINETUNE


def _reverting(state: State, seen: Observation) -> _Decided:
    if seen.outcome is Outcome.SWAPPED:
        return state, Action.WAIT
    if seen.outcome is None and seen.steps < state.limits.settle_steps:
        return state, Action.WAIT
    if not state.replanned and seen.outcome is not Outcome.FAILED:
        return _replan(state)
    return _watch(state, seen), Action.ACCEPT


def _replanning(state: State, seen: Observation) -> _Decided:
    if seen.outcome is Outcome.SWAPPED:
        return state, Action.WAIT
    if seen.outcome is None:
        if seen.steps < state.limits.settle_steps or seen.step_s is None:
            return state, Action.WAIT
        if _worse(state, seen):
            return replace(state, phase=Phase.REVERTING), Action.REVERT
        state = _best(state, seen)
    if _above_expected(state, seen) and _may_probe(state, seen):
        return replace(state, phase=Phase.PROBING, probed_s=seen.now_s), Action.PROBE
    return _watch(state, seen), Action.ACCEPT


def _probing(state: State, seen: Observation) -> _Decided:
    if seen.outcome is Outcome.MEASURED:
        # plans made before are for a network that is gone: the next is not compared with them
        return _replan(replace(state, best_s=None))
    return _watch(state, seen), Action.ACCEPT


def _replan(state: State) -> _Decided:
    return replace(state, phase=Phase.REPLANNING, replanned=True), Action.REPLAN


def _fresh(state: State, seen: Observation) -> State:
    """Set off: what the steps take now is what any plan has to beat."""
    now_s = seen.change.after_s if seen.change is not None else seen.step_s
    return replace(
        state,
        change=None,
        best_s=now_s,
        rounds=0,
        stale=0,
        replanned=False,
        looks=0,
        looked_s=seen.now_s,
    )


def _watch(state: State, seen: Observation) -> State:
    return replace(
        state, phase=Phase.WATCHING, looking=False, looks=0, change=None, looked_s=seen.now_s
    )


def _best(state: State, seen: Observation) -> State:
    if seen.step_s is None or (state.best_s is not None and state.best_s <= seen.step_s):
        return state
    return replace(state, best_s=seen.step_s)


def _worse(state: State, seen: Observation) -> bool:
    if state.best_s is None or seen.step_s is None:
        return False
    return seen.step_s > state.best_s * (1 + state.limits.worse)


def _above_expected(state: State, seen: Observation) -> bool:
    if seen.expected_s is None or seen.step_s is None:
        return False
    return seen.step_s > seen.expected_s * state.limits.above_expected


def _may_probe(state: State, seen: Observation) -> bool:
    return state.probed_s is None or seen.now_s - state.probed_s >= state.limits.probe_every_s


_DECIDE: Mapping[Phase, Callable[[State, Observation], _Decided]] = {
    Phase.WATCHING: _watching,
    Phase.DIAGNOSING: _diagnosing,
    Phase.QUICKTUNING: _quicktuning,
    Phase.FINETUNING: _finetuning,
    Phase.REVERTING: _reverting,
    Phase.PROBING: _probing,
    Phase.REPLANNING: _replanning,
}
