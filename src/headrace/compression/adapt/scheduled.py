"""The hook of a model whose codecs follow a schedule."""

# the hook is extended where a step begins
# pyright: reportPrivateUsage=false

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from headrace.compression.adapt.binding import ScheduleBinding, decision_log
from headrace.compression.adapt.following import FollowingHook, saved_binding
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.run.hooked import HookedModel
from headrace.facades import offered_by
from headrace.job.records import Records


@offered_by("headrace.compression")
class ScheduledHook(FollowingHook):
    """Hook that follows a schedule such as `Accordion`; see `headrace.compression.ddp_hook`.

    Residuals and warm starts are kept when codecs change. From the saved state of another
    schedule or policy this schedule begins anew.
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
        self.averager.policy_text = repr(schedule)
        if records is None:
            records = decision_log(self.averager.rank)
        self._bind(schedule, self._apply, records)
        self.warn_when_made(schedule.codecs)
        self.register()

    @property
    def binding(self) -> ScheduleBinding:
        """The schedule's levels, marks and log of decisions."""
        assert self._binding is not None
        return self._binding

    def _reason_against(self, state: Mapping[str, Any]) -> str:
        if self._has_schedule(state):
            return ""
        text = state.get("policy", saved_binding(state).get("schedule", "no schedule"))
        if text == self.averager.policy_text:
            text += " with other layers"
        return super()._reason_against({**state, "policy": text})

    def _apply(self, codecs: Mapping[str, CodecSpec]) -> None:
        self._set_codecs(codecs.items())
