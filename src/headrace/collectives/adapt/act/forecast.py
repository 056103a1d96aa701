"""Predicted time of training steps: the simulator's, calibrated by a measured step."""

from collections.abc import Sequence

from headrace.collectives.adapt.act.rebook import Call, calls_us
from headrace.collectives.plan.book import PlanBook
from headrace.topology import Topology


class Forecast:
    """Predictions for steps, calibrated by one that was both measured and predicted."""

    def __init__(self) -> None:
        self._known: tuple[str, dict[tuple[str, int], float]] = ("", {})
        self._before: tuple[float, float] | None = None

    def calls_us(self, book: PlanBook, topology: Topology, calls: Sequence[Call]) -> float | None:
        """Return the predicted time of `calls`, one after another; None if one has no plan."""
        if self._known[0] != topology.digest:
            self._known = (topology.digest, {})
        return calls_us(book, topology, calls, self._known[1]) if calls else None

    def start_from(self, step_s: float | None, predicted_us: float | None) -> None:
        """Calibrate by a step's measured time and the predicted time of its calls."""
        if step_s is not None and predicted_us is not None:
            self._before = (step_s, predicted_us / 1e6)

    def step_s(self, predicted_us: float | None) -> float | None:
        """Return the predicted time of a step: its calls as predicted, the rest as before.

        Calls may overlap one another and computing: then they counted for less than predicted.
        """
        if self._before is None or predicted_us is None:
            return None
        step_s, calls_s = self._before
        return max(0.0, step_s - calls_s) + predicted_us / 1e6 * min(1.0, step_s / calls_s)
