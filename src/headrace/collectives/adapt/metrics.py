"""Metrics for Prometheus, if HEADRACE_METRICS is set: to a file or on loopback.

A file (``/run/headrace/{rank}.prom`` for node_exporter's textfile collector) is written anew every
few seconds; `{rank}` in its name is replaced by the rank, and without it rank 0 alone writes.
A number is a port on 127.0.0.1, plus the rank. Nothing listens by default.
"""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.collectives.adapt.coordinator import Coordinator
from headrace.collectives.run.statistics import ConnectionStatistics, StatisticsReader
from headrace.collectives.run.switch import PlanSwitch

log = logging.getLogger(__name__)

_WRITE_EVERY_S = 5.0
_LOOPBACK = "127.0.0.1"


class Metrics(Collector):
    """Collector of one rank's metrics (Prometheus).

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
        coordinator: Coordinator | None = None,
    ) -> None:
        self._rank = str(rank)
        self._switch = switch
        self._statistics = statistics
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        yield self._gauge("plan_epoch", "Number of the plan in force", self._switch.epoch)
        yield self._count("collectives", "Collectives begun", self._switch.sequence())
        if self._coordinator is not None:
            yield from self._steps(self._coordinator)
        yield from self._peers(self._statistics.read())

    def _steps(self, coordinator: Coordinator) -> Iterator[Metric]:
        step_s = coordinator.step_s
        moved = sum(size for _, size in coordinator.calls)
        yield self._count("steps", "Training steps seen", coordinator.steps)
        if step_s is not None:
            yield self._gauge("step_seconds", "The latest training step", step_s)
            yield self._gauge(
                "algorithm_bandwidth_bytes_per_second",
                "Bytes of a step's collectives over the step's time, computing included",
                moved / step_s if step_s > 0 else 0.0,
            )
        predicted_us = coordinator.predicted_us()
        if predicted_us is not None:
            yield self._gauge(
                "predicted_seconds",
                "Predicted time of a step's collectives, one after another, plan in force",
                predicted_us / 1e6,
            )
        swaps = CounterMetricFamily(
            "headrace_swaps", "Plans put in force while running", labels=["rank", "why"]
        )
        for why, count in coordinator.swaps.items():
            swaps.add_metric([self._rank, why], count)
        yield swaps

    def _peers(self, found: ConnectionStatistics) -> Iterator[Metric]:
        labels = ["rank", "peer"]
        columns: list[tuple[Any, np.ndarray]] = [
            (CounterMetricFamily("headrace_sent_bytes", "Sent to the peer", labels=labels),
             found.sent_bytes),
            (CounterMetricFamily("headrace_received_bytes", "Received from the peer",
                                 labels=labels), found.received_bytes),
            (CounterMetricFamily("headrace_retransmits", "Segments sent again", labels=labels),
             found.retransmits),
            (GaugeMetricFamily("headrace_rtt_seconds", "Smoothed round-trip time", labels=labels),
             found.rtt_us / 1e6),
            (GaugeMetricFamily("headrace_rate_bytes_per_second",
                               "Bytes acknowledged over the time that there was something to send",
                               labels=labels), found.rate_bytes_per_s),
        ]  # fmt: skip
        for family, values in columns:
            for peer, value in zip(found.peer.tolist(), values.tolist(), strict=True):
                if np.isfinite(value):
                    family.add_metric([self._rank, str(peer)], value)
            yield family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=["rank"])
        family.add_metric([self._rank], value)
        return family

    def _count(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"headrace_{name}", text, labels=["rank"])
        family.add_metric([self._rank], value)
        return family


class MetricsOutput:
    """Output of metrics until `close`: a file or an HTTP server."""

    def __init__(self, registry: CollectorRegistry, where: Path | int) -> None:
        self._registry = registry
        self._path = where if isinstance(where, Path) else None
        self._written_s = 0.0
        self._server: tuple[Any, threading.Thread] | None = None
        if isinstance(where, int):
            self._server = start_http_server(where, _LOOPBACK, registry)

    def refresh(self) -> None:
        """Write the file anew, if there is one and it is old."""
        if self._path is None or time.monotonic() - self._written_s < _WRITE_EVERY_S:
            return
        self._written_s = time.monotonic()
        try:
            write_to_textfile(str(self._path), self._registry)
        except OSError as error:
            log.warning("HEADRACE_METRICS is %s: %s; no more is written", self._path, error)
            self._path = None

    def close(self) -> None:
        """Write for the last time, or stop the server."""
        self._written_s = 0.0
        self.refresh()
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None


def start_metrics(metrics: Metrics, rank: int, where: Path | int | None) -> MetricsOutput | None:
    """Start to write or serve `metrics`; None if not due at this rank, or on an error."""
    if where is None:
        return None
    if isinstance(where, int):
        target: Path | int = where + rank
    elif "{rank}" in str(where):
        target = Path(str(where).replace("{rank}", str(rank)))
    elif rank == 0:
        target = where
    else:
        return None
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        return MetricsOutput(registry, target)
    except OSError as error:
        log.warning("HEADRACE_METRICS: rank %d cannot serve on %s: %s", rank, target, error)
        return None
