"""Metrics for Prometheus, if HEADRACE_METRICS is set: to a file or on loopback.

A file (``/run/headrace/{rank}.prom`` for node_exporter's textfile collector) is written anew every
few seconds; `{rank}` in its name is replaced by the rank, and without it rank 0 alone writes.
A number is a port on 127.0.0.1, plus the rank. Nothing listens by default.
"""

import logging
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.errors import InputError

log = logging.getLogger(__name__)

_WRITE_EVERY_S = 5.0
_JOIN_S = 15.0
"""Longest wait for a write under way."""
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


class _Destination(Collector):
    """A file or an HTTP server, of all metrics of this process that have it.

    Of metrics of one class, such as those of two process groups of all ranks, those are shown that
    were added first and not removed: a series cannot have two values.
    """

    def __init__(self, where: Path | int) -> None:
        self.registry = CollectorRegistry()
        self._metrics: tuple[RankMetrics, ...] = ()
        self._path = where if isinstance(where, Path) else None
        self._ended = threading.Event()
        self._writer: threading.Thread | None = None
        self._server: tuple[Any, threading.Thread] | None = None
        if isinstance(where, int):
            self._server = start_http_server(where, _LOOPBACK, self.registry)
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return the families of the first metrics of each class; called from any thread.

        A class that extends another counts as that: it has the same series, and more.
        """
        first: dict[type, RankMetrics] = {}
        for collector in self._metrics:
            lineage = type(collector).__mro__
            first.setdefault(lineage[lineage.index(RankMetrics) - 1], collector)
        return [family for collector in first.values() for family in collector.collect()]

    def add(self, metrics: Iterable[RankMetrics]) -> None:
        """Show metrics until `remove`; with the first ones a thread begins to write the file."""
        self._metrics = (*self._metrics, *metrics)
        if self._path is not None and self._writer is None:
            self._writer = threading.Thread(
                target=self._write_on, name="headrace-metrics", daemon=True
            )
            self._writer.start()

    def remove(self, metrics: Collection[RankMetrics]) -> None:
        """Remove metrics."""
        self._metrics = self._others(metrics)

    def is_of(self, metrics: Collection[RankMetrics]) -> bool:
        """Return whether it has no metrics but these."""
        return not self._others(metrics)

    def _others(self, metrics: Collection[RankMetrics]) -> tuple[RankMetrics, ...]:
        return tuple(collector for collector in self._metrics if collector not in metrics)

    def _write_on(self) -> None:
        """Write the file anew every few seconds, until the end or an error."""
        while self._path is not None:
            self.write()
            if self._ended.wait(_WRITE_EVERY_S):
                return

    def write(self) -> None:
        """Write the file anew, if there is one."""
        if self._path is None:
            return
        try:
            # beside the file that a link names, which takes the written one's place
            path = Path(os.path.realpath(self._path))
            if path.exists() and not path.is_file():  # such as /dev/null, which would be gone
                raise OSError("it exists and is not a regular file")
            write_to_textfile(str(path), self.registry)
        except OSError as error:
            log.warning("metrics to %s: %s; no more is written", self._path, error)
            self._path = None

    def end(self) -> None:
        """Stop the server, or the thread that writes."""
        self._ended.set()
        if self._writer is not None:
            self._writer.join(_JOIN_S)
            self._writer = None
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None

    def abandon(self) -> None:
        """Release the parent's port and file in a forked child, whose copies would keep them."""
        self._path = self._writer = None
        self._ended = threading.Event()  # the parent's thread may have held its lock
        if self._server is not None:
            self._server[0].socket.close()
            self._server = None


_destinations: dict[Path | int, _Destination] = {}
_lock = threading.Lock()


class MetricsOutput:
    """Output of metrics until `close`: a file or an HTTP server.

    Metrics of one process that have the same destination share it.

    Raises
    ------
    OSError : the port is in use by another process.
    OverflowError : there is no such port.
    """

    def __init__(self, metrics: Sequence[RankMetrics], where: Path | int) -> None:
        self._where, self._metrics = where, tuple(metrics)
        with _lock:
            if where not in _destinations:
                _destinations[where] = _Destination(where)
            self._destination = _destinations[where]
            self._destination.add(self._metrics)

    def close(self) -> None:
        """Write for the last time, and stop the server unless others use it."""
        with _lock:
            if not self._metrics:
                return
            if self._destination.is_of(self._metrics):
                self._destination.end()
                if _destinations.get(self._where) is self._destination:
                    del _destinations[self._where]
            self._destination.write()
            self._destination.remove(self._metrics)
            self._metrics = ()


def _abandon_all() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for destination in _destinations.values():
        destination.abandon()
    _destinations.clear()


os.register_at_fork(after_in_child=_abandon_all)


def start_metrics(
    metrics: RankMetrics | Sequence[RankMetrics], where: str | Path | int
) -> MetricsOutput | None:
    """Start to write or serve metrics of one rank; None if not due at it, or on an error.

    Metrics that the process has started before with an equal `where`, as HEADRACE_METRICS does with
    those of collectives, are in the same file, or at the same port.

    Parameters
    ----------
    metrics : of any capabilities, one of each.
    where : a file or a port, see the module.
    """
    collectors = [metrics] if isinstance(metrics, RankMetrics) else list(metrics)
    ranks = {collector.rank for collector in collectors}
    if len(ranks) != 1:
        raise InputError(f"metrics are of ranks {sorted(ranks)}, needs those of one rank")
    (rank,) = ranks
    if isinstance(where, int):
        target: Path | int = where + rank
    elif rank == 0 or "{rank}" in str(where):
        target = Path(str(where).replace("{rank}", str(rank)))
    else:
        return None
    try:
        return MetricsOutput(collectors, target)
    except (OSError, OverflowError) as error:  # the latter: with the rank no port is left
        log.warning("HEADRACE_METRICS: rank %d cannot serve on %s: %s", rank, target, error)
        return None
