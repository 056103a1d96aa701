"""Exceptions of training within a memory budget, besides the shared ones (`headrace.errors`).

::

    HeadraceError
    ├── InputError (ValueError)
    │   ├── BudgetError           a budget is malformed, or less than any schedule needs
    │   ├── CaptureError          a model cannot be captured
    │   ├── ImplementationError   the condition of an implementation does not hold at a run
    │   └── MismatchError         a plan is for another model, shape or device
    └── VerificationError
        └── ScheduleError         a schedule reads what is not there, or needs more than its budget
"""

from headrace.errors import InputError, VerificationError
from headrace.facades import offered_by
from headrace.memory.schedule import Schedule


@offered_by("headrace.memory")
class BudgetError(InputError):
    """A budget is malformed, or no schedule fits; the message has the least that one was found for.

    Attributes
    ----------
    least_bytes : the least budget with a known schedule; None if the budget is malformed.
    schedule : within that budget; None if it is malformed, or several schedules share the budget.
    """

    def __init__(
        self, message: str, *, least_bytes: int | None = None, schedule: Schedule | None = None
    ) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes
        self.schedule = schedule


@offered_by("headrace.memory")
class CaptureError(InputError):
    """A model cannot be captured as a graph; the message names the module and what would do."""


@offered_by("headrace.memory")
class MismatchError(InputError):
    """A plan is for another model, shape or device; the message names all that differs."""


@offered_by("headrace.memory")
class ScheduleError(VerificationError):
    """A schedule reads what is not there, lacks an operator, or needs more than its budget."""


@offered_by("headrace.memory")
class ImplementationError(InputError):
    """The condition of an implementation does not hold at a run; the message has the remedy."""
