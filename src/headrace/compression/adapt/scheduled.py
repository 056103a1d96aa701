"""The hook of a model whose codecs follow a schedule."""

# the hook is extended where a step begins and ends
# pyright: reportPrivateUsage=false

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from headrace.compression.adapt.binding import ScheduleBinding, decision_log
from headrace.compression.adapt.detector import compare_ranks
from headrace.compression.adapt.schedule import LevelSchedule
from headrace.compression.errors import CompressionError
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.run.hook import Gradients, Hook
from headrace.facades import offered_by
from headrace.job.records import Records


@offered_by("headrace.compression")
class ScheduledHook(Hook):
    """Hook that follows a schedule such as `Accordion`; see `headrace.compression.ddp_hook`.

    Norms are those of the aggregated gradient, equal on all ranks; the ranks compare their
    decisions at the end of every mark. A mark given in steps ends as the next step's backward pass
    begins, when the optimizer has that step's learning rates. Residuals and warm starts are kept.

    Attributes
    ----------
    binding : the schedule's levels, marks and log of decisions.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        schedule: LevelSchedule,
        *,
        when: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        records: Records | None = None,
    ) -> None:
        if optimizer is None:
            raise CompressionError(
                f"optimizer is None, needs that of the model: {type(schedule).__name__} follows "
                "its learning rates"
            )
        policy = replace(schedule.rules, codec=NONE)
        super().__init__(model, policy, when=when, optimizer=optimizer, scaler=scaler)
        for codec in schedule.codecs:
            self._check_codec(codec)
        self._ended = False  # a step, that has not been counted yet
        self._compare(repr(schedule))
        self.binding = ScheduleBinding(
            schedule,
            {name: tuple(parameter.shape) for name, parameter in self._parameters.items()},
            self._apply,
            compare=self._compare,
            records=decision_log(self.averager.rank) if records is None else records,
        )
        self.observers.append(self._observe)
        self.warn_without_savings(schedule.codecs)
        self.register(model)

    @property
    def rates(self) -> list[float]:
        """Learning rate of each group of the optimizer."""
        assert self.optimizer is not None
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def epoch(self) -> None:
        """End an epoch; called on all ranks, after the learning rates of the next one are set.

        Raises
        ------
        CommunicationError : the ranks' decisions differ.
        """
        self._count()
        self.binding.end_epoch(self.rates)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank keeps, the schedule's state included."""
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

    def _begin(self) -> None:
        super()._begin()
        self._count()

    def _finish(self, gradients: Gradients) -> None:
        super()._finish(gradients)
        self._ended = True

    def _count(self) -> None:
        if self._ended:
            self._ended = False
            self.binding.end_step(self.rates)

    def _observe(self, name: str, mean: Tensor) -> None:
        self.binding.observe(name, mean, scale=self._scale or 1.0)

    def _apply(self, codecs: Mapping[str, CodecSpec]) -> None:
        self._set_codecs(codecs.items())

    def _compare(self, decision: str) -> None:
        compare_ranks(decision, "levels of compression", self._group)
