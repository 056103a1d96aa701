"""Metrics of collectives for Prometheus: plan, steps, and connections of every peer."""

from collections.abc import Iterator

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace.collectives.adapt.coordinator import AdaptationCoordinator
from headrace.collectives.run.switch import PlanSwitch
from headrace.executor import ConnectionStatistics, StatisticsReader
from headrace.job.metrics import RankMetrics


class CollectiveMetrics(RankMetrics):
    """Collector of one rank's metrics of collectives.

    Parameters
    ----------
    statistics : a reader of this collector's own: rates are those since it was last collected.
    coordinator : rank 0's, which has the steps; None elsewhere.
    """

    def __init__(
        self,
        rank: int,
        switch: PlanSwitch,
        statistics: StatisticsReader,
        coordinator: AdaptationCoordinator | None = None,
    ) -> None:
        super().__init__(rank)
        self._switch = switch
        self._statistics = statistics
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        yield self.gauge("plan_epoch", "Number of the plan in force", self._switch.epoch)
        yield self.count("collectives", "Collectives begun", self._switch.sequence())
        if self._coordinator is not None:
            yield from self._steps(self._coordinator)
        yield from self._peers(self._statistics.read())

    def _steps(self, coordinator: AdaptationCoordinator) -> Iterator[Metric]:
        step_s = coordinator.step_s
        moved = sum(size for _, size in coordinator.calls)
        yield self.count("steps", "Training steps seen", coordinator.steps)
        if step_s is not None:
            yield self.gauge("step_seconds", "The latest training step", step_s)
            yield self.gauge(
                "algorithm_bandwidth_bytes_per_second",
                "Bytes of a step's collectives over the step's time, computing included",
                moved / step_s if step_s > 0 else 0.0,
            )
        predicted_us = coordinator.predicted_us()
        if predicted_us is not None:
            yield self.gauge(
                "predicted_seconds",
                "Predicted time of a step's collectives, one after another, plan in force",
                predicted_us / 1e6,
            )
        swaps = CounterMetricFamily(
            "headrace_swaps", "Plans put in force while running", labels=["rank", "why"]
        )
        for why, count in coordinator.swaps.items():
            swaps.add_metric([str(self.rank), why], count)
        yield swaps

    def _peers(self, statistics: ConnectionStatistics) -> Iterator[Metric]:
        rate = "Bytes acknowledged over the time that there was something to send"
        for kind, name, text, values in (
            (CounterMetricFamily, "sent_bytes", "Sent to the peer", statistics.sent_bytes),
            (
                CounterMetricFamily,
                "received_bytes",
                "Received from the peer",
                statistics.received_bytes,
            ),
            (CounterMetricFamily, "retransmits", "Segments sent again", statistics.retransmits),
            (GaugeMetricFamily, "rtt_seconds", "Smoothed round-trip time", statistics.rtt_us / 1e6),
            (GaugeMetricFamily, "rate_bytes_per_second", rate, statistics.rate_bytes_per_s),
        ):
            family = kind(f"headrace_{name}", text, labels=["rank", "peer"])
            for peer, value in zip(statistics.peer.tolist(), values.tolist(), strict=True):
                if np.isfinite(value):
                    family.add_metric([str(self.rank), str(peer)], value)
            yield family
