"""Accordion: low compression in critical regimes of training, high compression elsewhere.

Algorithm 1 of Agarwal et al. (MLSys 2021), with the brackets that its print lost: a layer is
critical if its gradient's norm has changed by the share `eta` since the window before,

    | ||old|| - ||curr|| | / ||old|| >= eta,

without history, and for a whole window after a step of learning-rate decay (`rates`). The gradient
is accumulated over the last mark of a window alone, as in the paper (the current epoch against that
ten epochs back), so nine of ten epochs cost nothing. The very first mark is accumulated too: it is
the history that the first window's end is compared with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from headrace.compression.adapt.rates import falls_between, is_decay_step
from headrace.compression.adapt.schedule import (
    Levels,
    ScheduleState,
    ScheduleUnit,
    SeenMark,
    window_marks,
)
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec, codec_spec
from headrace.compression.policy import Policy
from headrace.compression.traffic import sent_bytes, transfers
from headrace.facades import public_value

ETA = 0.5
"""Relative change of the norm that makes a regime critical, in all of the paper's experiments."""


@public_value("headrace.compression")
class CriticalRegimes:
    """Detection of critical regimes, for levels of any kind: codecs or batch sizes.

    Attributes
    ----------
    eta : relative change of a norm from which a layer is critical.
    window : marks between the norms that are compared, in epochs or `unit` "steps".
    per_layer : decide for each layer; else one norm over all of them decides.
    """

    eta: float = ETA
    window: int = 10
    unit: ScheduleUnit = "epochs"
    per_layer: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.eta < math.inf:
            raise CompressionError(f"eta is {self.eta}, needs more than 0")
        window_marks(self.window, self.unit)

    def start(self, layers: Sequence[str]) -> ScheduleState:
        """Return the state before the first mark: every layer is critical."""
        return {
            "norms": {},
            "critical": dict.fromkeys(layers, True),
            "marks": 0,
            "rates": None,
            "falls": [],
            "reason": "no history",
        }

    def accumulate(self, state: ScheduleState) -> bool:
        """Return whether the next mark's gradients are to be accumulated."""
        return not state["norms"] or state["marks"] == self._marks - 1

    def decide(self, state: ScheduleState, seen: SeenMark) -> ScheduleState:
        """Return the state for the next mark; its "critical" has the verdict on every layer."""
        rates = list(seen.rates)
        falls = falls_between(rates if state["rates"] is None else state["rates"], rates)
        stepped = is_decay_step(falls, state["falls"])
        marks = state["marks"] + 1
        following = {**state, "rates": rates, "falls": [*state["falls"], falls][-2:]}
        ended = marks >= self._marks
        if seen.norms is not None and (ended or not state["norms"]):
            changes = self._changes(state, seen.norms)
            # a norm that is not finite is no history: the old one is kept
            finite = {name: norm for name, norm in seen.norms.items() if math.isfinite(norm)}
            following["norms"] = {**state["norms"], **finite}
            if ended:
                following |= {"critical": changes, "reason": "norms compared"}
        if stepped:
            every = dict.fromkeys(state["critical"], True)
            return following | {"critical": every, "marks": 0, "reason": "step of rate decay"}
        return following | {"marks": 0 if ended else marks}

    @property
    def _marks(self) -> int:
        return window_marks(self.window, self.unit)[0]

    def _changes(self, state: ScheduleState, norms: Mapping[str, float]) -> dict[str, bool]:
        old: Mapping[str, float] = state["norms"]
        layers: Sequence[str] = list(state["critical"])
        if self.per_layer:
            return {
                name: is_critical(old.get(name), norms.get(name, math.nan), self.eta)
                for name in layers
            }
        old_norm = math.hypot(*old.values()) if old else None
        verdict = is_critical(old_norm, math.hypot(*norms.values()), self.eta)
        return dict.fromkeys(layers, verdict)


def is_critical(old: float | None, current: float, eta: float) -> bool:
    """Return whether a norm has changed by the share `eta`; True without a finite history."""
    if old is None or not math.isfinite(current):
        return True
    if old == 0:
        return current > 0  # a frozen layer stays zero
    return abs(old - current) / old >= eta


def _bytes_of(codec: CodecSpec) -> float:
    """Return the bytes that two ranks send of a layer of a million values."""
    return sum(sent_bytes(transfer, 2) for transfer in transfers(codec, [(1024, 1024)], 2))


@public_value("headrace.compression")
class Accordion:
    """Switch every layer between two codecs: `low` in its critical regimes, else `high`.

    Attributes
    ----------
    low, high : codecs of low and of high compression; any two, of which `high`
        sends no more bytes.
    eta : relative change of the gradient's norm from which a layer is critical.
    window : epochs, or with `unit` "steps" steps, between the norms that are compared. One in steps
        is divided into ten marks (`schedule.MARKS`): rates are looked at after each.
    per_layer : decide for each layer; else one decision for the whole model.
    rules : policy that says which parameters are left alone; its codec has no effect.

    Raises
    ------
    CompressionError : a codec, eta or window that cannot be used.
    """

    low: CodecSpec | str
    high: CodecSpec | str
    eta: float = ETA
    window: int = 10
    unit: ScheduleUnit = "epochs"
    per_layer: bool = True
    rules: Policy = field(default_factory=Policy)
    regimes: CriticalRegimes = field(init=False)

    noisy = False
    follows_rates = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", codec_spec(self.low))
        object.__setattr__(self, "high", codec_spec(self.high))
        low, high = (_bytes_of(codec_spec(codec)) for codec in (self.low, self.high))
        if low < high:
            raise CompressionError(
                f"low is {self.low} and high is {self.high}, which sends {high / low:.3g} times as "
                "many bytes; needs the gentler codec as low"
            )
        regimes = CriticalRegimes(
            eta=self.eta, window=self.window, unit=self.unit, per_layer=self.per_layer
        )
        object.__setattr__(self, "regimes", regimes)

    @property
    def codecs(self) -> tuple[CodecSpec, ...]:
        """Codecs that it may use."""
        return (codec_spec(self.low), codec_spec(self.high))

    @property
    def mark_steps(self) -> int:
        """Steps of a mark; 0: a mark is an epoch."""
        return window_marks(self.window, self.unit)[1]

    def start(self, layers: Sequence[str]) -> tuple[ScheduleState, Levels]:
        """Return the first state, and `low` for every layer."""
        state = self.regimes.start(layers)
        return state, self._levels(state)

    def decide(self, state: ScheduleState, seen: SeenMark) -> tuple[ScheduleState, Levels]:
        """Return the next state, and the codec of every layer in the next mark."""
        following = self.regimes.decide(state, seen)
        return following, self._levels(following)

    def _levels(self, state: ScheduleState) -> Levels:
        low, high = codec_spec(self.low), codec_spec(self.high)
        return Levels(
            codecs={name: low if now else high for name, now in state["critical"].items()},
            accumulate=self.regimes.accumulate(state),
            reason=state["reason"],
        )
