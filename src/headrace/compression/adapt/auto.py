"""Choice among levels by measured step times: a pure ``decide(auto, state, seen)``.

A level is a codec for all parameters that the rules compress, or "none". Each is tried for a window
of steps; then the fastest is used. Windows go on being measured:

- **Changes.** Two windows in a row whose steps, or whose exchanges, differ from the level's times
  by more than noise explains are a changed network. The other levels' times then have bounds: on a
  slower network they are not shorter than before, on a faster one they lack their exposed
  communication at best. Those whose bounds are below the present level's steps are tried again.
  (Exposed communication does not scale with the rate: DDP hides a part, and another is latency.)
  Exchanges that change alone, which noise can do, need twice as many windows after each time that
  trials have confirmed the level.
- **Drift.** Levels are also tried again from time to time: a share `Auto.budget` of the time may be
  spent on that, the first trials included. Windows of such trials are averaged with those before,
  if noise explains the difference, so that levels become known better than by one window.
- **Hysteresis.** A later (harsher) level is chosen over an earlier one only if it is faster by more
  than twice the standard error of the difference, and by `LEAST_GAIN`.

There is no clock here: windows are averages over the ranks, so that all ranks decide the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.errors import CompressionError
from headrace.compression.families import codec_specs
from headrace.compression.policy import Policy
from headrace.facades import public_value

LEAST_GAIN = 0.01
"""Relative gain below which the gentler level is kept: gradients are changed for nothing."""

_CHANGED = 0.08  # least relative change of steps; what costs less is left to the trials of drift
_EXCHANGE_CHANGED = 1.6  # the same for exchanges, whose times scatter more
_EXCHANGE_SHARE = 0.02  # of a step, below which exchanges' times are latency and noise
_SIGMAS = 4.0
_CONFIRMED = 2  # windows in a row: a single one may be a checkpoint's
_MOST_FUTILE = 6
_UNEVEN = 0.1  # of a step, from which a margin is said to hide faster levels
_LEARNING = 0.25  # weight of a new window in a level's times
_LEAST_COST = 0.02  # of a step: a trial of an equally fast level is not free
SWITCH_STEPS = 2  # of a trial, that do not count: of both levels, and with a cold codec

DEFAULT_LEVELS = ("none", "bf16", "powersgd:4")
"""Levels of ``"auto"``. By its bound powersgd:4 is harsh (`headrace.compression.bounds`); in its
paper (Vogels et al., 2019, ResNet-18 and an LSTM) its accuracy was that of no compression."""


@public_value("headrace.compression")
class Auto:
    """Choice among levels; given to `headrace.compression.ddp_hook` in place of a policy.

    Attributes
    ----------
    levels : codecs that may be used, that of least error first; "none" is no compression.
    window : steps that are measured together, at least 3.
    budget : share of the time that trials of other levels may cost.
    schedule : one more level, after the others: codecs that follow training, such as `Accordion`
        between low and high compression; None: none. It is followed whatever the level is, and
        in force where it is fastest.
    rules : which parameters are compressed; its codec is not used.

    Raises
    ------
    CompressionError : no level or one twice, no such codec, or a number out of range.
    """

    levels: Sequence[str] = DEFAULT_LEVELS
    window: int = 4
    budget: float = 0.005
    schedule: LevelSchedule | None = None
    rules: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        levels = tuple(map(str, codec_specs(self.levels)))
        if not levels or len(set(levels)) < len(levels):
            raise CompressionError(f"levels are {self.levels!r}, needs at least one, none twice")
        if not 3 <= self.window <= 1000:
            raise CompressionError(f"window is {self.window}, needs 3 to 1000 steps")
        if not 0 <= self.budget <= 0.1:
            raise CompressionError(f"budget is {self.budget:g}, needs 0 to 0.1")
        object.__setattr__(self, "levels", levels)

    @property
    def names(self) -> tuple[str, ...]:
        """The levels' names: codecs, and that of the schedule."""
        schedule = [] if self.schedule is None else [type(self.schedule).__name__.lower()]
        return (*self.levels, *schedule)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWindow:
    """Window of steps at one level, averaged over the ranks.

    Attributes
    ----------
    step_s : median time of a step; `error_s`: its standard error.
    exposed_s : median time of exchanges that no computation hides.
    """

    step_s: float
    error_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoState:
    """State of the choice.

    Attributes
    ----------
    level : index of the level in force.
    times : of each level, as last measured or predicted; None: never.
    trials : levels to be tried, the one in force first; empty: none is going on.
    suspects : windows in a row that differ from the level's times.
    credit_s : time that trials may cost.
    futile : times in a row that exchanges changed alone, and trials confirmed the level; `origin`:
        that level while such trials go on, else None.
    ages : windows since each level was measured.
    """

    level: int
    times: tuple[SeenWindow | None, ...]
    trials: tuple[int, ...]
    suspects: int = 0
    credit_s: float = 0.0
    futile: int = 0
    origin: int | None = None
    ages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoDecision:
    """Level for the next window; `event` is for the log: "trial", "change", "chosen" or ""."""

    level: int
    event: str = ""
    reason: str = ""


def start(auto: Auto) -> AutoState:
    """Return the state at the beginning: all levels are tried, in order."""
    count = len(auto.names)
    return AutoState(level=0, times=(None,) * count, trials=tuple(range(count)), ages=(0,) * count)


def restart(state: AutoState) -> AutoState:
    """Return the state when the level in force has changed its codecs: it is measured anew."""
    if state.trials:
        return state
    return replace(_forget(state, [state.level]), trials=(state.level,), suspects=0)


def decide(auto: Auto, state: AutoState, seen: SeenWindow) -> tuple[AutoState, AutoDecision]:
    """Take a window at the level in force, and return the level for the next one."""
    state = replace(state, ages=tuple(0 if n == state.level else a + 1 for n, a in _each(state)))
    if state.trials:
        return _tried(auto, state, seen)
    usual = state.times[state.level]
    assert usual is not None
    credit = state.credit_s + auto.budget * auto.window * seen.step_s
    state = replace(state, credit_s=credit)
    steps, exchanges = _steps_differ(usual, seen), _exchanges_differ(usual, seen)
    if steps or exchanges:
        needed = _CONFIRMED if steps else _CONFIRMED << min(state.futile, _MOST_FUTILE)
        if state.suspects + 1 < needed:
            return replace(state, suspects=state.suspects + 1), AutoDecision(level=state.level)
        state = replace(state, futile=0) if steps else replace(state, origin=state.level)
        return _changed(state, usual, seen)
    state = replace(_with_time(state, _blend(usual, seen)), suspects=0)
    return _drifted(auto, state)


def _each(state: AutoState) -> list[tuple[int, int]]:
    return list(enumerate(state.ages))


def _tried(auto: Auto, state: AutoState, seen: SeenWindow) -> tuple[AutoState, AutoDecision]:
    """Note a trial's window; begin the next trial, or choose."""
    earlier = state.times[state.level]
    if (
        earlier is not None
        and not _steps_differ(earlier, seen)
        and not _exchanges_differ(earlier, seen)
    ):
        seen = _blend(earlier, seen)
    state = replace(_with_time(state, seen), trials=state.trials[1:])
    best_s = min(time.step_s for time in state.times if time is not None)
    cost = max(0.0, seen.step_s - best_s) * (auto.window + SWITCH_STEPS)
    state = replace(state, credit_s=state.credit_s - cost)
    if state.trials:
        state = replace(state, level=state.trials[0])
        return state, AutoDecision(level=state.level, event="trial")
    return _chosen(state)


def _chosen(state: AutoState) -> tuple[AutoState, AutoDecision]:
    best = 0
    for level, time in enumerate(state.times):
        fastest = state.times[best]
        if time is not None and (fastest is None or _faster(time, fastest)):
            best = level
    shown = ", ".join(f"{t.step_s * 1e3:.1f}" if t else "-" for t in state.times)
    reason = f"steps of {shown} ms{_hidden(state.times, best)}"
    decision = AutoDecision(level=best, event="chosen", reason=reason)
    futile = state.futile
    if state.origin is not None:
        futile = futile + 1 if state.origin == best else 0
    state = replace(state, level=best, suspects=0, futile=futile, origin=None)
    return state, decision


def _hidden(times: Sequence[SeenWindow | None], best: int) -> str:
    """Return a word on harsher levels that may be faster, if uneven steps hide it; "": none."""
    fastest = times[best]
    assert fastest is not None
    for time in times[best + 1 :]:
        if time is None or time.step_s >= (1 - LEAST_GAIN) * fastest.step_s:
            continue
        margin_s = 2 * math.hypot(time.error_s, fastest.error_s)
        if margin_s > _UNEVEN * fastest.step_s:
            return (
                f"; shorter ones are within their error of {margin_s * 1e3:.1f} ms: steps are of "
                "two kinds or have other work between them, which pause() leaves out"
            )
    return ""


def _faster(time: SeenWindow, reference: SeenWindow) -> bool:
    """Return whether a harsher level's time is less by more than the margin."""
    margin = 2 * math.hypot(time.error_s, reference.error_s)
    return time.step_s < reference.step_s - max(margin, LEAST_GAIN * reference.step_s)


def _steps_differ(earlier: SeenWindow, seen: SeenWindow) -> bool:
    limit = max(_CHANGED * earlier.step_s, _SIGMAS * math.hypot(earlier.error_s, seen.error_s))
    return abs(seen.step_s - earlier.step_s) > limit


def _exchanges_differ(earlier: SeenWindow, seen: SeenWindow) -> bool:
    low, high = sorted((earlier.exposed_s, seen.exposed_s))
    return high > _EXCHANGE_SHARE * earlier.step_s and high > _EXCHANGE_CHANGED * low


def _changed(
    state: AutoState, earlier: SeenWindow, seen: SeenWindow
) -> tuple[AutoState, AutoDecision]:
    """Begin to try the levels that can be faster than the present one on the changed network."""
    faster = seen.step_s + seen.exposed_s < earlier.step_s + earlier.exposed_s
    bounds = {
        level: 0.0 if time is None else time.step_s - (time.exposed_s if faster else 0.0)
        for level, time in enumerate(state.times)
        if level != state.level
    }
    able = sorted(
        (level for level in bounds if bounds[level] < seen.step_s), key=bounds.__getitem__
    )
    state = replace(_forget(_with_time(state, seen), able), trials=tuple(able), suspects=0)
    reason = f"steps {earlier.step_s * 1e3:.1f} -> {seen.step_s * 1e3:.1f} ms"
    if not able:
        state, decision = _chosen(state)
        return state, replace(decision, event="change", reason=reason)
    state = replace(state, level=able[0])
    return state, AutoDecision(level=able[0], event="change", reason=reason)


def _drifted(auto: Auto, state: AutoState) -> tuple[AutoState, AutoDecision]:
    """Try the level that was measured longest ago, of those that the credit is enough for."""
    here = state.times[state.level]
    assert here is not None
    steps = auto.window + SWITCH_STEPS
    affordable = [
        level
        for level, time in enumerate(state.times)
        if level != state.level
        and time is not None
        and max(time.step_s - here.step_s, _LEAST_COST * here.step_s) * steps < state.credit_s
    ]
    if not affordable:
        return state, AutoDecision(level=state.level)
    level = max(affordable, key=lambda candidate: state.ages[candidate])
    cost = _LEAST_COST * here.step_s * steps  # what a trial costs beside its slower steps
    state = replace(state, trials=(level,), level=level, credit_s=state.credit_s - cost)
    return state, AutoDecision(level=level, event="trial", reason="measured long ago")


def _forget(state: AutoState, levels: Sequence[int]) -> AutoState:
    """Return the state without the times of levels that are to be measured anew."""
    times = [None if level in levels else time for level, time in enumerate(state.times)]
    return replace(state, times=tuple(times))


def _with_time(state: AutoState, time: SeenWindow) -> AutoState:
    times = list(state.times)
    times[state.level] = time
    return replace(state, times=tuple(times))


def _blend(earlier: SeenWindow, seen: SeenWindow) -> SeenWindow:
    old, new = 1 - _LEARNING, _LEARNING
    return SeenWindow(
        step_s=old * earlier.step_s + new * seen.step_s,
        # of independent windows
        error_s=math.hypot(old * earlier.error_s, new * seen.error_s),
        exposed_s=old * earlier.exposed_s + new * seen.exposed_s,
    )
