"""The part of a hook that follows a schedule: counts steps, gives gradients, compares decisions."""

# the hook is extended where a step begins and ends
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headrace.compression.adapt.binding import ScheduleBinding
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.policy import Policy
from headrace.compression.run.hook import Hook
from headrace.compression.run.hooked import HookedModel
from headrace.compression.run.same import require_same
from headrace.job.records import Records


def require_optimizer(
    schedule: LevelSchedule | None, optimizer: torch.optim.Optimizer | None
) -> None:
    """Raise a `CompressionError` if a schedule follows learning rates and there is no optimizer."""
    if schedule is not None and schedule.follows_rates and optimizer is None:
        raise CompressionError(
            f"optimizer is None, needs that of the model: {type(schedule).__name__} follows its "
            "learning rates"
        )


def saved_binding(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schedule's part of a hook's saved state; empty without one."""
    schedule: Mapping[str, Any] = state.get("schedule") or {}
    return schedule.get("binding", schedule)


class FollowingHook(Hook):
    """Base of hooks whose codecs can follow a schedule.

    Norms are those of the aggregated gradient, equal on all ranks; the ranks compare their
    decisions at the end of every mark. A mark given in steps ends as the next step's backward pass
    begins, when the optimizer has that step's learning rates.

    Parameters
    ----------
    schedule : that is followed once `_bind` is called; None: none.
    """

    def __init__(
        self,
        model: HookedModel,
        policy: Policy,
        schedule: LevelSchedule | None,
        *,
        when: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        start_after: int = 0,
    ) -> None:
        require_optimizer(schedule, optimizer)
        super().__init__(
            model, policy, when=when, optimizer=optimizer, scaler=scaler, start_after=start_after
        )
        self._binding: ScheduleBinding | None = None
        self._ended = False  # a step, that the schedule has not counted yet
        self._layers = 0  # that the schedule follows

    def epoch(self) -> None:
        """End an epoch; called on all ranks, after the learning rates of the next one are set.

        Raises
        ------
        CommunicationError : the ranks' decisions differ.
        """
        self._count()
        if self._binding is not None:
            self._binding.end_epoch(self._rates())

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, the schedule's included."""
        binding = self._binding
        schedule = (
            None if binding is None else {"binding": binding.state_dict(), "ended": self._ended}
        )
        return {**super().state_dict(), "schedule": schedule}

    def load_state_dict(self, states: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from `state_dict`, in the middle of a window if so; see `Hook`."""
        super().load_state_dict(states)
        first = states if isinstance(states, Mapping) else states[0]
        if self._binding is not None and self._has_schedule(first):
            self._binding.load_state_dict(saved_binding(first))
            self._ended = bool(first["schedule"].get("ended"))

    def _bind(
        self,
        schedule: LevelSchedule,
        apply: Callable[[Mapping[str, CodecSpec]], None],
        records: Records,
    ) -> None:
        """Follow a schedule from the next step on; see `ScheduleBinding` for `apply`."""
        self._begin_schedule = partial(
            ScheduleBinding, schedule, apply=apply, compare=self._compare, records=records
        )
        self._follow_layers()
        self.observers.append(self._observe)

    def _follow_layers(self) -> None:
        """Begin the schedule, of all layers that the averager has."""
        parameters = self._parameters
        # in the model's order, whenever they were admitted: states have numbers by it
        names = (name for name in self._model.names.values() if name in parameters)
        shapes = {name: tuple(parameters[name].shape) for name in names}
        self._binding, self._layers = self._begin_schedule(shapes=shapes), len(shapes)

    def _follow_admitted(self) -> None:
        """Begin the schedule anew if layers were admitted since, that were frozen at first."""
        if self._binding is not None and self._layers < len(self._parameters):
            self._follow_layers()

    def _admit_saved(self, states: Sequence[Mapping[str, Any]]) -> None:
        super()._admit_saved(states)
        self._follow_admitted()

    def _has_schedule(self, state: Mapping[str, Any]) -> bool:
        """Return whether a saved state is of the schedule that is followed, and of its layers."""
        saved, binding = saved_binding(state), self._binding
        if binding is None or saved.get("schedule") != repr(binding.schedule):
            return False
        return set(saved["codecs"]) == set(binding.levels.codecs)

    def _compare(self, decision: str) -> None:
        """Raise CommunicationError unless all ranks have made the same decision."""
        require_same(
            {"levels of compression": decision},
            "All need the same model, learning rates and schedule.",
            group=self._group,
        )

    def _rates(self) -> list[float]:
        """Return the learning rate of each group of the optimizer, if there is one."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [float(group["lr"]) for group in groups]

    def _between_steps(self) -> None:
        super()._between_steps()
        self._count()

    def _end(self) -> None:
        super()._end()
        self._ended = True

    def _count(self) -> None:
        """Count the step that has ended, if it is not counted yet."""
        self._follow_admitted()
        if self._ended and self._binding is not None:
            self._binding.end_step(self._rates())
        self._ended = False

    def _observe(self, name: str, mean: Tensor) -> None:
        if self._binding is not None:
            self._binding.observe(name, mean, scale=self._scale.factor or 1.0)
