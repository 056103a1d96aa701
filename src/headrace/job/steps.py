"""Training steps, detected from the calls alone: their times, and changes of these.

A training loop makes the same calls in every step, so the sequence of (collective, bytes) repeats,
and the time from one repetition to the next is the time of a step. A loop without a pattern marks
its steps: `headrace.torch.step()` once a step (`MARK`). A job that is going to make other calls, or
to take another time for them, announces it (`switch.mark_step`, `CHANGED`).
"""

import statistics
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.job.period import find_period, regroup

MARK: Final = None
"""Key that is no call: the training loop marks the end of a step."""

CHANGED: Final = "changed"
"""Key that is no call: steps are different from here on, and not comparable with those before."""

CHANGE = 0.2
"""Least relative change of step times that counts (section 4.3)."""

EASED = 0.12
"""The same downwards, where something that got slow is expected to recover."""

_HISTORY = 4096
_SEARCH_EVERY = 16
_LOST_AFTER = 4
_BREAKS = 8
_COVERED = 0.8
_REGROUPED_AT = (16, 64, 256)
_CONSECUTIVE = 2
_FEWEST = 4
_LATEST = 5
_REFERENCE = 32
_SIGMAS = 4.0
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A step: time from its first call to the next step's, in s.

    `pattern` counts the call sequences found so far: steps of different ones do not compare.
    Unless it is `sure`, it may turn out to be a part of a step.
    """

    duration_s: float
    pattern: int
    sure: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Steps took `before_s` and now take `after_s` (medians, seconds)."""

    before_s: float
    after_s: float

    @property
    def slower(self) -> bool:
        """True if steps take longer now."""
        return self.after_s > self.before_s


class StepClock:
    """Detector of steps in the sequence of calls.

    Calls out of the pattern (a checkpoint's barrier, an evaluation) cost the steps that they fall
    into, which are not reported. A new pattern replaces the old one when it has repeated itself,
    or when the steps of the old one leave out much of the time: equal calls in a row pass for
    steps until other calls come.

    Attributes
    ----------
    pattern : the calls of one step in order; empty while they are not known.
    """

    def __init__(self) -> None:
        self._keys: deque[Hashable] = deque(maxlen=_HISTORY)
        self._times: deque[float] = deque(maxlen=_HISTORY)
        self.pattern: tuple[Hashable, ...] = ()
        self._found = 0
        self._at: int | None = None  # place in the pattern of the next call, if known
        self._began: float | None = None
        self._unmatched = 0  # calls since the pattern was left
        self._unsearched = 0
        self._since = 0.0  # when the pattern was found or last doubted
        self._covered_s = 0.0  # by its steps since
        self._breaks = 0
        self._whole = 0  # steps since the pattern was left, or found
        self._sure = False  # whether times have confirmed the length of the pattern
        self._marked: float | None = None

    def feed(self, calls: Iterable[tuple[Hashable, float]]) -> list[TrainingStep]:
        """Take calls (key, seconds of a steady clock) in their order; return finished steps."""
        steps: list[TrainingStep] = []
        for key, time_s in calls:
            if key is MARK:
                self._mark(time_s, steps)
            elif key == CHANGED:
                self._found += 1
            elif self._marked is not None:
                self._keys.append(key)
            else:
                self._call(key, time_s, steps)
        return steps

    def _mark(self, time_s: float, steps: list[TrainingStep]) -> None:
        """End a step where the training loop marks it."""
        if self._marked is None:
            self._found += 1
            self._sure = True
        else:
            self.pattern = tuple(self._keys)
            steps.append(self._step(self._marked, time_s))
        self._keys.clear()
        self._marked = time_s

    def _call(self, key: Hashable, time_s: float, steps: list[TrainingStep]) -> None:
        self._keys.append(key)
        self._times.append(time_s)
        if not self.pattern:
            self._search()
        elif self._at is not None and key == self.pattern[self._at]:
            if self._at == 0:
                if self._began is not None:
                    steps.append(self._step(self._began, time_s))
                    self._covered_s += time_s - self._began
                    self._whole += 1
                self._began = time_s
            self._at = (self._at + 1) % len(self.pattern)
            if self._at == 0 and self._whole in _REGROUPED_AT:
                self._adopt(len(self.pattern), self._whole * len(self.pattern))
                self._sure = True
        else:
            self._whole = 0
            self._seek()
            self._doubt(time_s)

    def _step(self, start_s: float, end_s: float) -> TrainingStep:
        return TrainingStep(duration_s=end_s - start_s, pattern=self._found, sure=self._sure)

    def _seek(self) -> None:
        """Resume at the next repetition of the pattern, or search for another one."""
        if self._at is not None:
            self._at = self._began = None
            self._unmatched = self._unsearched = 0
        self._unmatched += 1
        size = len(self.pattern)
        if self._keys[-1] == self.pattern[-1] and self._last(size) == self.pattern:
            self._at = 0
        elif self._unmatched > _LOST_AFTER * size + _SEARCH_EVERY:
            while len(self._keys) > self._unmatched:
                self._keys.popleft()
                self._times.popleft()
            self._search()

    def _doubt(self, time_s: float) -> None:
        """Search again if the pattern was left several times and covers too little of the time."""
        self._breaks += 1
        if self._breaks < _BREAKS:
            return
        if self._covered_s < _COVERED * (time_s - self._since):
            self._unsearched = _SEARCH_EVERY
            self._search()
        self._breaks, self._since, self._covered_s = 0, time_s, 0.0

    def _search(self) -> None:
        """Search for a pattern, not at every call: a search takes time."""
        self._unsearched += 1
        if self._unsearched < min(_SEARCH_EVERY, 1 + len(self._keys) // 8):
            return
        self._unsearched = 0
        period = find_period(self._keys)
        if period is None or period == len(self.pattern):
            return
        self._adopt(period, _REGROUPED_AT[-1] * period)
        self._sure = len(self._keys) >= _REGROUPED_AT[0] * period

    def _adopt(self, period: int, count: int) -> None:
        """Adopt the last `period` calls as the pattern, or more if the last `count` show so."""
        times = np.array(self._times)
        size = period * regroup(times[-count:], period)
        if size == len(self.pattern):
            return
        start = _first_of_step(times, size)
        recent = self._last(2 * size)
        self.pattern = recent[size - start : 2 * size - start]
        # `start` calls of the pattern have been made
        self._at = start % size
        self._began, self._since = None, float(times[-1])
        self._breaks, self._covered_s, self._whole = 0, 0.0, 0
        self._found += 1

    def _last(self, count: int) -> tuple[Hashable, ...]:
        keys = self._keys
        return tuple(keys[i] for i in range(max(0, len(keys) - count), len(keys)))


def _first_of_step(times: np.ndarray, size: int) -> int:
    """Return the number of calls of the step under way at the end of `times`, at least one.

    A step begins at the longest pause, where nothing but computing goes on.
    """
    pauses = np.diff(times)
    rows = pauses[len(pauses) % size :].reshape(-1, size)
    return size - int(np.median(rows, axis=0).argmax())


class ChangeDetector:
    """Detector of lasting changes of step times.

    The time to compare with is the median of the first `_REFERENCE` steps and then stands, so that
    slow drift is detected as well. A change is `_CONSECUTIVE` steps in a row beyond `CHANGE` (or
    beyond four standard deviations, where steps scatter more than that) on the same side; a single
    straggler, such as a step that writes a checkpoint, is none. After a change, or `restart`, the
    reference is made anew, and nothing is reported until it rests on `_FEWEST` steps: what has
    just changed has to change by as much again to be reported once more. The first step of another
    pattern does not count: it may be of both.

    Attributes
    ----------
    recovery : whether something got slow that may recover: then `EASED` is enough downwards.
    steps : since the last restart.
    """

    def __init__(self) -> None:
        self.recovery = False
        self._pattern = 0
        self._regime: list[float] = []
        self._suspects: list[float] = []
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self.steps = 0
        self._mixed = False

    @property
    def reference_s(self) -> float | None:
        """The time of a step in the present regime; None while too few have been seen."""
        return statistics.median(self._regime) if len(self._regime) >= _FEWEST else None

    @property
    def latest_s(self) -> float | None:
        """Median of the last few steps; None before the first."""
        return statistics.median(self._latest) if self._latest else None

    @property
    def scatter(self) -> float:
        """Standard deviation of steps in the present regime over their median; 0: too few."""
        reference = self.reference_s
        return 0.0 if reference is None else self._scatter(reference)

    @property
    def suspects(self) -> bool:
        """True if the latest step was beyond the limit, so that one more makes a change."""
        return bool(self._suspects)

    def restart(self, like_s: float | None = None) -> None:
        """Begin a new regime: the next steps are expected to differ (another plan is in force).

        The step under way is of both and does not count.

        Parameters
        ----------
        like_s : expected time of steps; None: not known.
        """
        self._regime = [] if like_s is None else [like_s] * _FEWEST
        self._mixed = True
        self._suspects.clear()
        self._latest.clear()
        self.steps = 0

    def add(self, step: TrainingStep) -> Change | None:
        """Take a step; return the change, if it is the one that makes it certain."""
        if step.pattern != self._pattern:
            self._pattern = step.pattern
            self.restart()
        if self._mixed:
            self._mixed = False
            return None
        duration = step.duration_s
        self.steps += 1
        self._latest.append(duration)
        reference = self.reference_s
        if reference is None or not step.sure:
            self._regime.append(duration)
            return None
        side = self._side(duration, reference)
        if self._suspects and side != self._side(self._suspects[-1], reference):
            self._suspects.clear()
        if side:
            self._suspects.append(duration)
        elif len(self._regime) < _REFERENCE:
            self._regime.append(duration)
        if len(self._suspects) < _CONSECUTIVE:
            return None
        after = list(self._suspects)
        self.restart()
        self._mixed = False
        self._regime, self.steps = after, len(after)
        self._latest.extend(after)
        return Change(before_s=reference, after_s=statistics.median(after))

    def _side(self, duration: float, reference: float) -> int:
        scatter = _SIGMAS * self._scatter(reference)
        up = 1 + max(CHANGE, scatter)
        down = 1 + max(EASED if self.recovery else CHANGE, scatter)
        return (duration > reference * up) - (duration < reference / down)

    def _scatter(self, reference: float) -> float:
        deviations = [abs(step_s - reference) for step_s in self._regime]
        # of few steps the estimate may be far too small
        sigma = _MAD_TO_SIGMA * statistics.median(deviations) * (1 + _FEWEST / len(deviations))
        return sigma / reference if reference else 0.0
