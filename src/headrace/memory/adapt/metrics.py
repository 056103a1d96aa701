"""Metrics of a fitted module for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from headrace.facades import offered_by
from headrace.job.metrics import RankMetrics
from headrace.memory.run.fitted import FittedModule


@offered_by("headrace.memory")
class MemoryMetrics(RankMetrics):
    """Collector of the plans of one rank's fitted module, for Prometheus; needs `metrics`.

    Peaks and times are predicted ones, of the plans; eager's are as they were measured.
    """

    def __init__(self, rank: int, fitted: FittedModule) -> None:
        super().__init__(rank)
        self._fitted = fitted

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        plans = {plan.digest[:12]: plan for plan in self._fitted.plans}
        eager = {name: plan.profile.eager for name, plan in plans.items()}
        for name, text, values in (
            ("budget_bytes", "Budget of the plan", {n: p.budget_bytes for n, p in plans.items()}),
            ("peak_bytes", "Predicted peak of a step", {n: p.peak_bytes for n, p in plans.items()}),
            (
                "step_seconds",
                "Predicted time of a step",
                {n: p.time_us / 1e6 for n, p in plans.items()},
            ),
            (
                "eager_peak_bytes",
                "Measured peak of eager's step",
                {n: step.peak_bytes for n, step in eager.items() if step is not None},
            ),
        ):
            family = GaugeMetricFamily(f"headrace_memory_{name}", text, labels=["rank", "plan"])
            for plan, value in values.items():
                family.add_metric([str(self.rank), plan], value)
            yield family
