"""Metrics for Prometheus, if HEADRACE_METRICS is set: to a file or on loopback.

A file (``/run/headrace/{rank}.prom`` for node_exporter's textfile collector) is written anew every
few seconds; `{rank}` in its name is replaced by the rank, and without it rank 0 alone writes.
A number is a port on 127.0.0.1, plus the rank. Nothing listens by default.
"""

import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

_WRITE_EVERY_S = 5.0
_LOOPBACK = "127.0.0.1"


class RankMetrics(Collector):
    """Base of the collectors of one rank's metrics, whose names begin with ``headrace_``."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """Return a value of this rank."""
        family = GaugeMetricFamily(f"headrace_{name}", text, labels=["rank"])
        family.add_metric([str(self.rank)], value)
        return family

    def count(self, name: str, text: str, value: float) -> Metric:
        """Return a count of this rank, which only grows."""
        family = CounterMetricFamily(f"headrace_{name}", text, labels=["rank"])
        family.add_metric([str(self.rank)], value)
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
        _outputs.add(self)

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

    def abandon(self) -> None:
        """Release the parent's port and file in a forked child, whose copies would keep them."""
        self._path = None
        if self._server is not None:
            self._server[0].socket.close()
            self._server = None


_outputs: "weakref.WeakSet[MetricsOutput]" = weakref.WeakSet()


def _abandon_all() -> None:
    for output in list(_outputs):
        output.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def start_metrics(metrics: RankMetrics, where: Path | int) -> MetricsOutput | None:
    """Start to write or serve `metrics`; None if not due at their rank, or on an error."""
    rank = metrics.rank
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
