"""A schedule at work: what is seen goes to it, and its levels to the codecs.

The same code follows a schedule in a training job (`headrace.compression.adapt.scheduled`), and
where ranks are simulated in one process.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from headrace.compression.adapt.detector import Detector
from headrace.compression.adapt.schedule import LevelSchedule, SeenMark
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.settings import CompressionSettings
from headrace.facades import offered_by
from headrace.job.records import Records


def decision_log(rank: int) -> Records:
    """Return the log of decisions: in memory, and at rank 0 in HEADRACE_COMPRESSION_LOG."""
    path = CompressionSettings.from_environment().compression_log
    return Records(path if rank == 0 else None)


@offered_by("headrace.compression")
class ScheduleBinding:
    """Follows one schedule, on one rank.

    Parameters
    ----------
    schedule : decides.
    shapes : of the layers, by name.
    apply : called with the layers' codecs whenever some of them change, between steps.
    compare : called with every decision (the same text on all ranks that agree) before it is
        applied; raises if ranks differ.
    records : log of the decisions; None: kept in memory.

    Attributes
    ----------
    levels : in force.
    marks, steps : ended since training began.
    """

    def __init__(
        self,
        schedule: LevelSchedule,
        shapes: Mapping[str, Sequence[int]],
        apply: Callable[[Mapping[str, CodecSpec]], None],
        *,
        compare: Callable[[str], None] | None = None,
        records: Records | None = None,
    ) -> None:
        self.schedule = schedule
        self.detector = Detector(shapes, noisy=schedule.noisy)
        self.records = Records() if records is None else records
        self.marks = self.steps = 0
        self._apply, self._compare = apply, compare
        self._state, self.levels = schedule.start(list(shapes))
        apply(self.levels.codecs)

    def observe(self, name: str, mean: Tensor, *, scale: float = 1.0) -> None:
        """Take a layer's aggregated gradient of a finite step; see `Detector.add`."""
        if self.levels.accumulate and name in self.levels.codecs:
            self.detector.add(name, mean, scale=scale)

    def end_step(self, rates: Sequence[float]) -> None:
        """Count a step; the last one of a mark that is given in steps ends it.

        Parameters
        ----------
        rates : learning rate of each parameter group in the next step.
        """
        self.steps += 1
        if self.schedule.mark_steps and self.steps % self.schedule.mark_steps == 0:
            self._end_mark(rates)

    def end_epoch(self, rates: Sequence[float]) -> None:
        """End an epoch, which is a mark unless marks are given in steps."""
        if not self.schedule.mark_steps:
            self._end_mark(rates)

    def _end_mark(self, rates: Sequence[float]) -> None:
        self.marks += 1
        norms = self.detector.norms() if self.levels.accumulate else None
        noise = None if norms is None else self.detector.noise(norms)
        seen = SeenMark(marks=self.marks, rates=tuple(rates), norms=norms, noise=noise)
        state, levels = self.schedule.decide(self._state, seen)
        texts = {name: str(codec) for name, codec in levels.codecs.items()}
        if self._compare is not None:
            self._compare(repr((self.marks, self.steps, texts, levels.accumulate)))
        before = self.levels.codecs
        changed = {name: text for name, text in texts.items() if str(before[name]) != text}
        self._state, self.levels = state, levels
        self.detector.reset()
        if changed:
            self._apply(levels.codecs)
        if norms is not None or changed:
            self.records.add(
                "levels",
                mark=self.marks,
                step=self.steps,
                rates=list(rates),
                reason=levels.reason,
                layers=dict(Counter(texts.values())),
                changed=changed,
                norms=norms,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, which may be in the middle of a window."""
        return {
            "schedule": repr(self.schedule),
            "state": self._state,
            "marks": self.marks,
            "steps": self.steps,
            "codecs": {name: str(codec) for name, codec in self.levels.codecs.items()},
            "accumulate": self.levels.accumulate,
            "reason": self.levels.reason,
            "detector": self.detector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`.

        Raises
        ------
        CompressionError : it is of another schedule, or of other layers.
        """
        if state["schedule"] != repr(self.schedule):
            raise CompressionError(
                f"the saved state is of {state['schedule']}, needs {self.schedule!r}"
            )
        if set(state["codecs"]) != set(self.levels.codecs):
            layers = sorted(set(state["codecs"]) ^ set(self.levels.codecs))
            raise CompressionError(f"the saved state differs in the layers {', '.join(layers[:5])}")
        self._state = state["state"]
        self.marks, self.steps = state["marks"], state["steps"]
        codecs = {name: CodecSpec.parse(text) for name, text in state["codecs"].items()}
        self.levels = type(self.levels)(
            codecs=codecs, accumulate=state["accumulate"], reason=state["reason"]
        )
        self.detector.load_state_dict(state["detector"])
        self._apply(codecs)
