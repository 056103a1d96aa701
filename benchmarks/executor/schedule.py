"""How much communication a step could hide behind computing, and how much it did.

All moments are in seconds from the beginning of the backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is known of a step.

    Attributes
    ----------
    ready : when each bucket's gradients are ready if nothing is communicated, in their order.
    backward : when the backward pass then ends.
    alone : how long each bucket's allreduce takes if nothing is computed.
    measured : when backward pass and communication had ended in the step that does both.
    """

    ready: Sequence[float]
    backward: float
    alone: Sequence[float]
    measured: float

    @property
    def serial(self) -> float:
        """When the step would end if it communicated after computing."""
        return self.backward + sum(self.alone)

    @property
    def ideal(self) -> float:
        """When it would end if every bucket left when it is ready and the one before is through."""
        return max(self.backward, ideal_ends(self.ready, self.alone)[-1])

    @property
    def can_hide(self) -> float:
        """The seconds of communication that the buckets' schedule lets computing hide."""
        return self.serial - self.ideal

    @property
    def hidden(self) -> float:
        """The seconds by which the step was shorter than one after the other."""
        return self.serial - self.measured

    @property
    def share(self) -> float:
        """The share of what can be hidden that was; above 1 if the step beat the ideal."""
        return self.hidden / self.can_hide


def ideal_ends(ready: Sequence[float], alone: Sequence[float]) -> list[float]:
    """Return when each bucket is through, one at a time, each from when it is ready on."""
    ends: list[float] = []
    free = 0.0
    for moment, took in zip(ready, alone, strict=True):
        free = max(free, moment) + took
        ends.append(free)
    return ends
