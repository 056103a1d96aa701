"""The step that a plan is compared with: eager's own as measured, or else as it is predicted."""

from dataclasses import dataclass

from headrace.memory.plan.verify import verify
from headrace.memory.profile import MemoryProfile
from headrace.memory.schedule import plain_schedule
from headrace.units import duration, size


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """Memory and time of a step that computes nothing again.

    Attributes
    ----------
    measured : whether they are eager's; else predicted, from every operator once.
    reason : why eager's step was not measured, if that is known.
    """

    peak_bytes: int
    time_us: float
    measured: bool
    reason: str = ""

    def __str__(self) -> str:
        figures = f"{size(self.peak_bytes)} in {duration(self.time_us)}"
        if self.measured:
            return f"{figures}, eager's step as measured"
        reason = f": eager's step was not measured, {self.reason}" if self.reason else ""
        return f"{figures}, predicted{reason}"


def plain_step(profile: MemoryProfile) -> PlainStep:
    """Return eager's step of a profile; of one without it the prediction."""
    if profile.eager is not None:
        eager = profile.eager
        return PlainStep(peak_bytes=eager.peak_bytes, time_us=eager.time_us, measured=True)
    predicted = verify(profile.graph, plain_schedule(profile.graph))
    return PlainStep(
        peak_bytes=predicted.peak_bytes,
        time_us=predicted.time_us,
        measured=False,
        reason=str(profile.provenance.get("eager", "")),
    )
