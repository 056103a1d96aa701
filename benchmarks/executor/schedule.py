"""Communication that a step could hide behind computing, and that it did hide.

All moments are in seconds from the beginning of the backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Measured times of a step.

    Attributes
    ----------
    ready : times at which buckets' gradients are ready without communication, in their order.
    backward : end of the backward pass without communication.
    alone : duration of each bucket's allreduce without computing.
    measured : end of backward pass and communication in the step that does both.
    """

    ready: Sequence[float]
    backward: float
    alone: Sequence[float]
    measured: float

    @property
    def serial(self) -> float:
        """End of the step if it communicated after computing."""
        return self.backward + sum(self.alone)

    @property
    def ideal(self) -> float:
        """End of the step if every bucket starts when it is ready and the one before is done."""
        return max(self.backward, ideal_ends(self.ready, self.alone)[-1])

    @property
    def can_hide(self) -> float:
        """Seconds of communication that computing can hide, by the buckets' schedule."""
        return self.serial - self.ideal

    @property
    def hidden(self) -> float:
        """Seconds by which the step was shorter than computing and then communicating."""
        return self.serial - self.measured

    @property
    def share(self) -> float:
        """Share of the communication that can be hidden that was; above 1 if faster than ideal."""
        return self.hidden / self.can_hide


def ideal_ends(ready: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Return the end of each bucket, one at a time, each starting when it is ready."""
    ends: list[float] = []
    free = 0.0
    for moment, took in zip(ready, alone, strict=True):
        free = max(free, moment) + took
        ends.append(free)
    return ends
