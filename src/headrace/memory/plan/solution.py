"""Limits, progress and solution of a solve."""

from dataclasses import dataclass

from headrace.facades import public_value
from headrace.memory.schedule import Schedule
from headrace.solver import Stop
from headrace.units import duration

TIGHT = 1e-9
"""Relative difference of times below which they are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveLimits:
    """Limits of a solve; reached, they end it with a larger gap.

    Attributes
    ----------
    seconds : wall clock, of all parts.
    bound_seconds : of the relaxation; 0: none is solved.
    interval_work : of CP-SAT, in its deterministic measure of about seconds; 0: it is not used.
    rounds : of the local search. With a `seconds` that is not reached, equal rounds and seeds give
        equal schedules.
    gap : stop once (time - bound) / time is at most this.
    """

    seconds: float = 180.0
    bound_seconds: float = 120.0
    interval_work: float = 20.0
    rounds: int = 100_000
    gap: float = 0.005


@public_value("headrace.memory")
class SolveProgress:
    """The state of a solve.

    Attributes
    ----------
    incumbent_us : time of the fastest schedule so far.
    bound_us : proven lower bound.
    seconds : since the start.
    """

    incumbent_us: float
    bound_us: float
    seconds: float

    @property
    def gap(self) -> float:
        """(incumbent - bound) / incumbent."""
        return (self.incumbent_us - self.bound_us) / max(self.incumbent_us, TIGHT)

    def __str__(self) -> str:
        """Return it in words."""
        times = f"{duration(self.incumbent_us)}, bound {duration(self.bound_us)}"
        return f"{times}, gap {self.gap:z.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A schedule within a budget, with its certificate.

    Attributes
    ----------
    schedule : verified.
    peak_bytes, time_us : of its replay.
    bound_us : proven lower bound of the time of every schedule within the budget that is in stages
        (`headrace.memory.plan.stages`).
    stop : DONE if the gap that was asked for is reached.
    seconds : wall clock.
    """

    schedule: Schedule
    peak_bytes: int
    time_us: float
    bound_us: float
    stop: Stop
    seconds: float

    @property
    def gap(self) -> float:
        """(time - bound) / time."""
        return max(0.0, self.time_us - self.bound_us) / self.time_us if self.time_us else 0.0
