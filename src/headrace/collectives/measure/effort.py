"""How hard to look: what measuring costs, and how good it gets."""

import time
from collections.abc import Callable
from dataclasses import dataclass

ProgressCallback = Callable[[str, float], None]
"""Called with what is being done and the share (0 to 1) of the whole that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEffort:
    """How hard to look.

    Attributes
    ----------
    budget_s : seconds that measuring may take. Stages that would take longer look less closely,
        then at less; the profile's provenance says what was cut.
    tournament_us, crowd_us, quiet_us, sharing_us : how long one bulk transfer should take at each
        stage.
    echoes : round trips of a latency echo, each timed by itself.
    most_bytes : largest bulk transfer, whatever the rate.
    repeats : runs of every transfer that counts.
    all_pairs_up_to : probe every ordered pair of hosts quietly up to this many hosts.
    pairs_per_kind : else this many for each ordered pair of groups.
    second_looks : links that may be probed again because they look worse than their kind.
    local_rounds : rounds of pairs of ranks that share a host.
    most_losses : times that hosts may be lost on the way before measuring is given up.
    valid_for_s : how long the profile is worth something.
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
    """The time there is, and what had to go for want of it.

    Parameters
    ----------
    seconds : in all, from now on.
    clock : seconds; the survey of a model has a clock of its own.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._started = clock()
        self._forgiven = 0.0
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
        return until * self._seconds - (self.spent_s - self._forgiven)

    def forgive(self, seconds: float) -> None:
        """Do not count `seconds` that went into waiting for a host that was lost."""
        self._forgiven += seconds

    def cut(self, stage: str, what: str) -> None:
        """Note what a stage did without; a later note of the same stage replaces it."""
        self._cuts[stage] = what

    @property
    def cuts(self) -> list[str]:
        """What was cut, stage by stage, in words."""
        return [f"{stage}: {what}" for stage, what in self._cuts.items()]
