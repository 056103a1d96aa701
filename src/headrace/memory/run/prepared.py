"""Steps that a fitted module runs, and the port through which it asks for more."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from headrace.facades import offered_by
from headrace.memory.measure.attributes import AttributeChange
from headrace.memory.plan.plan import MemoryPlan
from headrace.memory.run.step import ScheduledStep


@offered_by("headrace.memory")
class PreparedStep(Protocol):
    """A step of one kind of arguments, by each of its schedules."""

    @property
    def steps(self) -> Mapping[int, ScheduledStep]:
        """Steps by their budgets in bytes."""
        ...

    @property
    def changes(self) -> Sequence[AttributeChange]:
        """Changes of attributes, which follow each run."""
        ...


@offered_by("headrace.memory")
class PreparedSteps(Protocol):
    """Steps of a module. One that is missing is prepared when it is asked for."""

    @property
    def budgets(self) -> tuple[int, ...]:
        """Budgets in bytes that there are schedules for, the least first."""
        ...

    @property
    def plans(self) -> Sequence[MemoryPlan]:
        """Plans of the steps so far; empty if the schedules have none."""
        ...

    def find(
        self,
        kind: Hashable,
        modules: list[nn.Module],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        runs: bool = True,
    ) -> PreparedStep | None:
        """Return the step for the modules as they are; None where it is to run without a schedule.

        Parameters
        ----------
        kind : of the step, but for attributes.
        modules : of the model.
        runs : whether the step runs now, or is prepared alone.

        Raises
        ------
        CaptureError : the step cannot be captured.
        """
        ...

    def differing(self, kind: Hashable, modules: list[nn.Module]) -> str:
        """Return the names of attributes by which a step differs from the latest of its kind."""
        ...
