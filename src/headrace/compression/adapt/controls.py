"""Schedules that Accordion is compared with: AdaQS, and levels set by the user (3.2.1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise

from headrace.compression.adapt.schedule import (
    MARKS,
    Levels,
    ScheduleState,
    ScheduleUnit,
    SeenMark,
    window_marks,
)
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec, codec_spec, codec_specs
from headrace.compression.policy import Policy
from headrace.facades import public_value


@public_value("headrace.compression")
class AdaQS:
    """Compress less as the gradient's ratio of mean to standard deviation falls.

    Guo et al. (ICASSP 2020), as the paper describes it (3.2.4, "Comparison with prior work"): if
    the ratio has fallen by a certain amount, the compression ratio is halved. Chosen here, as the
    text leaves it open: the ratio of a layer is ||mean|| / deviation of the aggregated gradients of
    the steps in the last mark of a window; the amount is a half, relative to the ratio at the last
    switch; a switch goes to the next of `levels`. It never goes back.

    Attributes
    ----------
    levels : codecs from harsh to gentle; each of about twice the bytes of the one before.
    fall : share of its former value to which the ratio falls before a switch.
    window, unit, per_layer, rules : as of `Accordion`; a window in steps is of more than ten.
    """

    levels: Sequence[CodecSpec | str]
    fall: float = 0.5
    window: int = 10
    unit: ScheduleUnit = "epochs"
    per_layer: bool = True
    rules: Policy = field(default_factory=Policy)

    noisy = True
    follows_rates = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", codec_specs(self.levels))
        if not self.levels:
            raise CompressionError("levels is empty, needs at least one codec")
        if not 0 < self.fall < 1:
            raise CompressionError(f"fall is {self.fall}, needs to be between 0 and 1")
        if window_marks(self.window, self.unit)[1] == 1:
            raise CompressionError(
                f"window is {self.window} steps, needs more than {MARKS}: the deviation is that of "
                f"the steps in one of its {MARKS} marks"
            )

    @property
    def codecs(self) -> tuple[CodecSpec, ...]:
        """Codecs that it may use."""
        return tuple(codec_spec(codec) for codec in self.levels)

    @property
    def mark_steps(self) -> int:
        """Steps of a mark; 0: a mark is an epoch."""
        return window_marks(self.window, self.unit)[1]

    def start(self, layers: Sequence[str]) -> tuple[ScheduleState, Levels]:
        """Return the first state, and the harshest level for every layer."""
        state: ScheduleState = {"level": dict.fromkeys(layers, 0), "ratios": {}, "marks": 0}
        return state, self._levels(state, "start")

    def decide(self, state: ScheduleState, seen: SeenMark) -> tuple[ScheduleState, Levels]:
        """Return the next state, and the codec of every layer in the next mark."""
        marks = state["marks"] + 1
        if seen.norms is None or seen.noise is None:
            following = {**state, "marks": marks}
            return following, self._levels(following, "between windows")
        level: dict[str, int] = dict(state["level"])
        ratios: dict[str, float] = dict(state["ratios"])
        for name, ratio in self._ratios(level, seen.norms, seen.noise).items():
            if name not in ratios:
                ratios[name] = ratio
            elif ratio <= self.fall * ratios[name]:
                ratios[name] = ratio
                level[name] = min(level[name] + 1, len(self.levels) - 1)
        at_end = marks >= window_marks(self.window, self.unit)[0]
        following = {"level": level, "ratios": ratios, "marks": 0 if at_end else marks}
        return following, self._levels(following, "ratios compared")

    def _ratios(
        self, layers: Mapping[str, int], norms: Mapping[str, float], noise: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the finite ratios of mean to deviation, by layer."""
        if not self.per_layer:
            model_ratio = _ratio(math.hypot(*norms.values()), math.hypot(*noise.values()))
            ratios = dict.fromkeys(layers, model_ratio)
        else:
            # of layers that had a gradient in a finite step
            ratios = {name: _ratio(norms[name], noise[name]) for name in layers if name in noise}
        return {name: ratio for name, ratio in ratios.items() if math.isfinite(ratio)}

    def _levels(self, state: ScheduleState, reason: str) -> Levels:
        codecs = [codec_spec(codec) for codec in self.levels]
        last = window_marks(self.window, self.unit)[0] - 1
        return Levels(
            codecs={name: codecs[level] for name, level in state["level"].items()},
            accumulate=not state["ratios"] or state["marks"] == last,
            reason=reason,
        )


def _ratio(mean: float, deviation: float) -> float:
    return mean / deviation if deviation > 0 else math.nan


@public_value("headrace.compression")
class HandSet:
    """Levels that the user sets beforehand, the same for all layers (3.2.1).

    Attributes
    ----------
    levels : (first epoch or step, codec), ascending, from 0.
    unit : "epochs" or "steps".
    rules : as of `Accordion`.
    """

    levels: Sequence[tuple[int, CodecSpec | str]]
    unit: ScheduleUnit = "epochs"
    rules: Policy = field(default_factory=Policy)

    noisy = False
    follows_rates = False

    def __post_init__(self) -> None:
        levels = tuple((start, codec_spec(codec)) for start, codec in self.levels)
        object.__setattr__(self, "levels", levels)
        starts = [start for start, _ in levels]
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise CompressionError(
                f"levels begin at {starts}, needs numbers of {self.unit} that ascend from 0"
            )
        window_marks(1, self.unit)

    @property
    def codecs(self) -> tuple[CodecSpec, ...]:
        """Codecs that it may use."""
        return tuple(codec_spec(codec) for _, codec in self.levels)

    @property
    def mark_steps(self) -> int:
        """Steps of a mark: the largest that all levels begin at multiples of; 0: epochs."""
        return 0 if self.unit == "epochs" else math.gcd(*(start for start, _ in self.levels)) or 1

    def start(self, layers: Sequence[str]) -> tuple[ScheduleState, Levels]:
        """Return the first state, and the first codec for every layer."""
        state: ScheduleState = {"layers": list(layers)}
        return state, self._levels(state, 0)

    def decide(self, state: ScheduleState, seen: SeenMark) -> tuple[ScheduleState, Levels]:
        """Return the state as it is, and the codec that is set for the next mark."""
        return state, self._levels(state, seen.marks * (self.mark_steps or 1))

    def _levels(self, state: ScheduleState, position: int) -> Levels:
        start, codec = max(
            (item for item in self.levels if item[0] <= position), key=lambda item: item[0]
        )
        return Levels(
            codecs=dict.fromkeys(state["layers"], codec_spec(codec)),
            accumulate=False,
            reason=f"set from {start} {self.unit}",
        )
