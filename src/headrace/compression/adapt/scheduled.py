"""The hook of a model whose codecs follow a schedule."""

# the hook is extended where a step begins
# pyright: reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from headrace.compression.adapt.binding import ScheduleBinding, decision_log
from headrace.compression.adapt.following import FollowingHook
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.run.hooked import HookedModel
from headrace.facades import offered_by
from headrace.job.records import Records


@offered_by("headrace.compression")
class ScheduledHook(FollowingHook):
    """Hook that follows a schedule such as `Accordion`; see `headrace.compression.ddp_hook`.

    Residuals and warm starts are kept when codecs change.
    """

    def __init__(
        self,
        model: HookedModel,
        schedule: LevelSchedule,
        *,
        when: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        start_after: int = 0,
        records: Records | None = None,
    ) -> None:
        policy = replace(schedule.rules, codec=NONE)
        super().__init__(
            model,
            policy,
            schedule,
            when=when,
            optimizer=optimizer,
            scaler=scaler,
            start_after=start_after,
        )
        for codec in schedule.codecs:
            self._check_codec(codec)
        self._compare(repr(schedule))
        if records is None:
            records = decision_log(self.averager.rank)
        self._bind(schedule, self._apply, records)
        self.warn_without_savings(schedule.codecs)
        self.register()

    @property
    def binding(self) -> ScheduleBinding:
        """The schedule's levels, marks and log of decisions."""
        assert self._binding is not None
        return self._binding

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, the schedule's included."""
        schedule = {"binding": self.binding.state_dict(), "ended": self._ended}
        return {**super().state_dict(), "schedule": schedule}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from `state_dict`, in the middle of a window if so; see `Hook`."""
        super().load_state_dict(states)
        first = states if isinstance(states, Mapping) else states[0]
        if "schedule" not in first:
            raise CompressionError("the saved state has no schedule, needs that of this hook")
        self.binding.load_state_dict(first["schedule"]["binding"])
        self._ended = bool(first["schedule"]["ended"])

    def _apply(self, codecs: Mapping[str, CodecSpec]) -> None:
        self._set_codecs(codecs.items())
