"""Change of a group's plan book, as a change between two calls (`headrace.job.switch`)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.job.switch import Activation, CallSwitch, Counted

if TYPE_CHECKING:
    from headrace.collectives.plan.book import PlanBook

PLAN = "plan"
"""Kind of proposals whose payload is a plan book; its handler is `PlanSwitch.loaded`."""


class PlanSwitch(CallSwitch):
    """Switch between the plans of one group.

    Parameters
    ----------
    load : loads a plan book and returns its activation.
    """

    def __init__(self, executor: Counted, load: "Callable[[PlanBook], Activation]") -> None:
        super().__init__(executor)
        self._load = load

    def loaded(self, payload: bytes) -> Activation:
        """Load a proposed plan book; returns its activation.

        Raises
        ------
        InputError : if it is no plan book, or not for this group.
        UnverifiedPlanError : if a program has no valid proof.
        """
        from headrace.collectives.plan.book import PlanBook

        return self._load(PlanBook.from_bytes(payload, "the proposed plan book"))
