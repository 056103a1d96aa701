"""The level of ``"auto"`` for Prometheus (extra ``metrics``)."""

from typing import Any

from headrace.compression.run.metrics import HookMetrics
from headrace.facades import offered_by


@offered_by("headrace.compression")
class LevelMetrics(HookMetrics):
    """A hook's sums, the level in force and its times, for Prometheus.

    Parameters
    ----------
    hook : an `AutomaticHook`.
    """

    def __init__(self, hook: Any) -> None:
        super().__init__(hook.averager.rank, hook.figures)
        self._hook = hook

    def collect(self) -> Any:
        """Yield the metrics."""
        yield from super().collect()
        state = self._hook.state
        times = state.times[state.level]
        yield self.gauge("compression_level", "index of the level in force", state.level)
        yield self.gauge(
            "compression_step_seconds", "time of a step at this level", times.step_s if times else 0
        )
        yield self.gauge(
            "compression_exposed_seconds",
            "time of its exchanges that no computation hides",
            times.exposed_s if times else 0,
        )
        yield self.count(
            "compression_decisions", "trials, changes and choices", len(self._hook.records.events)
        )
