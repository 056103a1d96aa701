"""The hook of ``"auto"``: measures steps, and uses the level that `auto.decide` chooses.

With compression gradients are exchanged after the backward pass; without, as DDP does.
"""

# the hook is extended where a step begins and ends
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from headrace.compression.adapt import auto as choice
from headrace.compression.adapt.auto import Auto, AutoState, SeenWindow
from headrace.compression.adapt.binding import ScheduleBinding, decision_log
from headrace.compression.adapt.following import FollowingHook
from headrace.compression.codecs.requests import AllReduce, requested
from headrace.compression.families import CodecSpec, codec_spec
from headrace.compression.run.hooked import HookedModel
from headrace.extras import require_metrics
from headrace.facades import offered_by
from headrace.job.records import Records

if TYPE_CHECKING:
    from headrace.compression.adapt.metrics import LevelMetrics

_FIRST_STEPS = 3  # connections open, and DDP forms its buckets anew
_MAD_TO_SIGMA = 1.4826
_MEDIAN_ERROR = 1.2533  # of a median over that of a mean


@offered_by("headrace.compression")
class AutomaticHook(FollowingHook):
    """Hook that chooses among the levels of an `Auto`; see `headrace.compression.ddp_hook`.

    The averages of a window's times over the ranks, from one allreduce of three numbers, decide on
    all ranks alike. Decisions are in `records`, and `metrics` has the level and its times.

    Attributes
    ----------
    state : of the choice.
    steps : ended, at any level; without those that `pause` left out.
    records : log of trials, changes and choices.
    """

    def __init__(
        self,
        model: HookedModel,
        auto: Auto,
        *,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        start_after: int = 0,
        records: Records | None = None,
    ) -> None:
        policy = replace(auto.rules, codec=auto.levels[0])
        super().__init__(
            model,
            policy,
            auto.schedule,
            when="after",
            optimizer=optimizer,
            scaler=scaler,
            start_after=start_after,
        )
        codecs = [codec_spec(level) for level in auto.levels]
        codecs += auto.schedule.codecs if auto.schedule is not None else ()
        for codec in codecs:
            self._check_codec(codec)
        self._compare(repr(auto))
        self.auto = auto
        self.averager.policy_text = repr(auto)
        self.records = decision_log(self.averager.rank) if records is None else records
        self.state: AutoState = choice.start(auto)
        self.steps = 0
        self._skip = _FIRST_STEPS
        self._steps: list[float] = []
        self._exposed: list[float] = []
        self._began_s = 0.0  # of the present step's first bucket; 0: none yet
        if auto.schedule is not None:
            self._bind(auto.schedule, self._follow, self.records)
        self.warn_when_made(codecs)
        self.register()

    @property
    def level(self) -> str:
        """The level in force: a codec, or the schedule's name."""
        return self.auto.names[self.state.level]

    @property
    def binding(self) -> ScheduleBinding | None:
        """Of the schedule among the levels; None without one."""
        return self._binding

    def pause(self) -> None:
        """Leave out the last step and the time until the next one; called on all ranks.

        For an evaluation or a checkpoint between them. It is not needed where these are rare: a
        single long step has no effect.
        """
        self._began_s = 0.0

    def _between_steps(self) -> None:
        super()._between_steps()
        self._end_step()

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from saved states; levels are tried anew, as the network may be another."""
        super().load_state_dict(states)
        self._use_level()

    def _follow(self, codecs: Mapping[str, CodecSpec]) -> None:
        """Take the schedule's codecs: they are used if it is the level in force."""
        if self.state.level == len(self.auto.levels):
            self._set_codecs(codecs.items())
            self.state = choice.restart(self.state)
            self._steps, self._exposed = [], []
            self._skip = choice.SWITCH_STEPS

    def _use_level(self) -> None:
        if self.state.level < len(self.auto.levels):
            self._set_codecs([(None, self.level)])
        elif self.binding is not None:
            self._set_codecs(self.binding.levels.codecs.items())

    def _end_step(self) -> None:
        """Count the step that ended before this one began, and decide at a window's end."""
        if self._staging is not None:  # else kernels that have been started would count as run
            self._staging.mark().synchronize()
        now, began = time.perf_counter(), self._began_s
        self._began_s = now
        if not began:
            return
        self.steps += 1
        if self.averager.step <= self.averager.start_after:
            return
        if self._skip:
            self._skip -= 1
            return
        self._steps.append(now - began)
        self._exposed.append(self.last.exposed_s)
        if len(self._steps) >= self.auto.window:
            seen = self._averaged()
            self._steps, self._exposed = [], []
            self._decide(seen)

    def _averaged(self) -> SeenWindow:
        """Return the window's times, averaged over the ranks."""
        step_s = statistics.median(self._steps)
        spread = statistics.median(abs(duration_s - step_s) for duration_s in self._steps)
        error_s = _MEDIAN_ERROR * _MAD_TO_SIGMA * spread / math.sqrt(len(self._steps))
        exposed_s = statistics.median(self._exposed)
        numbers = torch.tensor([step_s, error_s, exposed_s], dtype=torch.float32, device="cpu")
        self._exchanger.run([requested(AllReduce(numbers))])
        mean = (numbers / self.averager.ranks).tolist()
        return SeenWindow(step_s=mean[0], error_s=mean[1], exposed_s=mean[2])

    def _decide(self, seen: SeenWindow) -> None:
        before = self.state.level
        self.state, decision = choice.decide(self.auto, self.state, seen)
        if decision.level != before:
            self._use_level()
            self._skip = choice.SWITCH_STEPS
        if decision.event:
            self.records.add(
                decision.event,
                step=self.steps,
                level=self.level,
                before=self.auto.names[before],
                step_s=seen.step_s,
                exposed_s=seen.exposed_s,
                reason=decision.reason,
            )

    def figures(self) -> dict[str, float]:
        """Return the sums over all steps by name, and the index of the ``level`` in force."""
        return {**super().figures(), "level": self.state.level}

    def metrics(self) -> "LevelMetrics":
        """Return a collector for `headrace.job.metrics.start_metrics`."""
        require_metrics("hook.metrics()")
        from headrace.compression.adapt.metrics import LevelMetrics

        return LevelMetrics(self)
