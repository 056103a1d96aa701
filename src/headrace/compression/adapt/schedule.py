"""The protocol of schedules: from what was seen of a mark to the codec of every layer.

A *mark* is an epoch, or a fixed number of steps. At the end of each the schedule decides, as a pure
function ``decide(state, seen) -> (state, levels)``: no clock, no thread, no tensor. Its state is
plain JSON, so that a job's checkpoint holds it. A layer is a parameter, by its name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.facades import offered_by, public_value

ScheduleState = dict[str, Any]
"""State of a schedule: numbers, texts, lists and tables of these, as JSON has them."""

ScheduleUnit = Literal["epochs", "steps"]

MARKS = 10
"""Marks of a window that is given in steps, as the paper's window is of ten epochs (3.3)."""


@public_value("headrace.compression")
class SeenMark:
    """Observation of the mark that has ended; equal on all ranks.

    Attributes
    ----------
    marks : ended since training began, this one included.
    rates : learning rate of each parameter group in the *next* mark; empty without an optimizer.
    norms : of the mean over the mark's steps of the aggregated gradient, by layer; None unless
        the schedule had asked for it (`Levels.accumulate`).
    noise : deviation of the single steps' gradients from that mean, by layer: the root of the mean
        squared distance. None unless the schedule is `noisy`.
    """

    marks: int
    rates: Sequence[float] = ()
    norms: Mapping[str, float] | None = None
    noise: Mapping[str, float] | None = None


@public_value("headrace.compression")
class Levels:
    """Decision of a schedule, for the next mark.

    Attributes
    ----------
    codecs : of every layer.
    accumulate : if the next mark's gradients are to be accumulated for its end.
    reason : why, for the log.
    """

    codecs: Mapping[str, CodecSpec]
    accumulate: bool
    reason: str


@offered_by("headrace.compression")
class LevelSchedule(Protocol):
    """A schedule of levels: Accordion, or one that it is compared with.

    Its ``repr`` tells it from others: a checkpoint is of one schedule.
    """

    @property
    def rules(self) -> Policy:
        """Policy whose rules leave parameters alone; its codec has no effect."""
        ...

    @property
    def codecs(self) -> Sequence[CodecSpec]:
        """Codecs that it may use: a hook refuses those that its model cannot have."""
        ...

    @property
    def mark_steps(self) -> int:
        """Steps of a mark; 0: a mark is an epoch."""
        ...

    @property
    def noisy(self) -> bool:
        """True if it needs the noise of the gradients, beside their norms."""
        ...

    @property
    def follows_rates(self) -> bool:
        """True if it needs the learning rates: its hook is given the optimizer."""
        ...

    def start(self, layers: Sequence[str]) -> tuple[ScheduleState, Levels]:
        """Return the first state and the levels of the first mark."""
        ...

    def decide(self, state: ScheduleState, seen: SeenMark) -> tuple[ScheduleState, Levels]:
        """Return the next state and the levels of the next mark; changes no argument."""
        ...


def window_marks(window: int, unit: ScheduleUnit) -> tuple[int, int]:
    """Return the marks of a window, and the steps of a mark (0: a mark is an epoch).

    Raises
    ------
    CompressionError : the window is not a whole number of its unit.
    """
    if unit not in ("epochs", "steps"):
        raise CompressionError(f"unit is {unit!r}, needs 'epochs' or 'steps'")
    if window < 1 or window % 1:
        raise CompressionError(f"window is {window}, needs 1 or more {unit}")
    if unit == "epochs":
        return window, 0
    steps = -(-window // MARKS)
    return -(-window // steps), steps
