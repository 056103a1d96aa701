"""Settings that trade the time of a survey against its precision, and its time budget."""

import time
from collections.abc import Callable

from headrace.facades import public_value

ProgressCallback = Callable[[str, float], None]
"""Called with the current step and the share (0 to 1) of the whole that is done."""


@public_value("headrace.collectives.measure")
class ProbeEffort:
    """Limits and repetitions of a survey; the field names stand in the provenance of profiles.

    Attributes
    ----------
    budget_s : seconds that measuring may take. Stages that would take longer shorten transfers,
        then skip some; the profile's provenance lists what was cut.
    tournament_us, crowd_us, quiet_us, sharing_us : target time of one bulk transfer in the
        round-robin, permutation, unloaded and sharing stages.
    echoes : round trips of a latency echo, each timed by itself.
    most_bytes : largest bulk transfer, whatever the rate.
    repeats : runs of every transfer that counts.
    all_pairs_up_to : hosts up to which every ordered pair gets unloaded probes.
    pairs_per_kind : else this many for each ordered pair of groups.
    second_looks : most links that are probed again as outliers of their kind.
    local_rounds : rounds of pairs of ranks that share a host.
    most_losses : losses of hosts after which the next one ends the survey.
    valid_for_s : validity of the profile, in seconds.
    """

    budget_s: float = 12.0
    tournament_us: float = 20_000.0
    crowd_us: float = 20_000.0
    quiet_us: float = 40_000.0
    sharing_us: float = 30_000.0
    echoes: int = 24
    most_bytes: float = 8e6
    repeats: int = 3
    all_pairs_up_to: int = 6
    pairs_per_kind: int = 2
    second_looks: int = 12
    local_rounds: int = 6
    most_losses: int = 3
    valid_for_s: float = 3600.0


class Budget:
    """Time budget, and the cuts that kept to it.

    Parameters
    ----------
    seconds : in all, from now on.
    clock : in seconds; the survey of a simulated network has a clock of its own.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._started = clock()
        self._excluded = 0.0
        self._cuts: dict[str, str] = {}

    @property
    def now(self) -> float:
        """Seconds on the budget's clock."""
        return self._clock()

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def left_s(self, until: float = 1.0) -> float:
        """Seconds left before this share of the budget is spent; negative afterwards."""
        return until * self._seconds - (self.spent_s - self._excluded)

    def exclude(self, seconds: float) -> None:
        """Exclude `seconds` that passed in waiting for a lost host."""
        self._excluded += seconds

    def cut(self, stage: str, what: str) -> None:
        """Record what a stage left out; a later record of the same stage replaces it."""
        self._cuts[stage] = what

    @property
    def cuts(self) -> list[str]:
        """The cuts, one text per stage."""
        return [f"{stage}: {what}" for stage, what in self._cuts.items()]
