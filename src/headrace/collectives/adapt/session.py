"""Adaptation of a running process group, and its metrics: the threads, from start to end.

Every rank has an agent; rank 0 has the coordinator, too. Both sleep most of the time, on threads
and store connections of their own, and both end with the group, whatever they are doing.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from headrace.collectives.adapt.act.background import BackgroundPlanner
from headrace.collectives.adapt.agent import Agent, TrafficCollector
from headrace.collectives.adapt.coordinator import AdaptationCoordinator
from headrace.collectives.adapt.observe.traffic import Traffic
from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.survey import measure_ranks
from headrace.collectives.plan.book import PlanBook
from headrace.collectives.run.bootstrap import invalidate
from headrace.collectives.run.switch import PLAN, PlanSwitch
from headrace.collectives.settings import CollectiveSettings
from headrace.errors import CommunicationError, HeadraceError, InputError
from headrace.executor import Executor
from headrace.extras import require_metrics
from headrace.job.agreement import Proposer, own_connection, rank_names
from headrace.job.records import Records
from headrace.job.switch import Activation
from headrace.topology import Topology
from headrace.topology.profile import Profile

log = logging.getLogger(__name__)

PROBE = "probe"
"""The kind of proposals to measure the network between two calls."""

_PROBE_EFFORT = ProbeEffort(budget_s=5.0, repeats=2, second_looks=4)
_PROBE_DEADLINE_S = 120.0
_POLL_S = 0.05
_JOIN_S = 15.0
"""Longest wait for the threads to end. They stop at once, but for a call of the store or a
computation under way; one that outlived the interpreter would end it with an abort."""


class RunningJob:
    """The job as seen by rank 0's coordinator (`coordinator.Job`).

    Parameters
    ----------
    store : a connection for the coordinator's thread alone.
    """

    def __init__(self, store: Any, executor: Executor, switch: PlanSwitch, stop: threading.Event):
        self._switch = switch
        self._stop = stop
        self._proposer = Proposer(store, rank_names(executor.ranks), stop=stop)
        self._collector = TrafficCollector(store, executor.ranks, stop=stop)
        self.measured: Profile | None = None

    @property
    def epoch(self) -> int:
        """Generation of the plan in force."""
        return self._switch.epoch

    def calls(self) -> Sequence[tuple[Hashable, float]]:
        """Return the calls since the last time."""
        return self._switch.recorded()

    def gather(self, *, hurry: bool) -> Traffic | None:
        """Gather all ranks' connection statistics."""
        return self._collector.gather(hurry=hurry)

    def swap(self, book: PlanBook) -> int | None:
        """Commit another plan book at all ranks."""
        return self._propose(PLAN, book.to_artifact().to_bytes())

    def probe(self) -> Topology | None:
        """Have all ranks measure between two calls."""
        self.measured = None
        epoch = self._propose(PROBE, json.dumps(asdict(_PROBE_EFFORT)).encode())
        if epoch is None:
            return None
        end = time.monotonic() + _PROBE_DEADLINE_S
        while self.measured is None and time.monotonic() < end:
            if self._stop.wait(_POLL_S):
                return None
        return None if self.measured is None else self.measured.topology

    def _propose(self, kind: str, payload: bytes) -> int | None:
        outcome = self._proposer.propose(kind, payload)
        if outcome.committed:
            return outcome.epoch
        log.info("change %d (%s) was not made: %s", outcome.epoch, kind, outcome.reason)
        return None


class Adaptation:
    """The threads of one rank.

    Parameters
    ----------
    store : the group's part of torch's store; it is cloned for every thread.
    book : plans of the group, with the topology that they were made for.
    """

    def __init__(
        self,
        store: Any,
        executor: Executor,
        switch: PlanSwitch,
        book: PlanBook,
        settings: CollectiveSettings,
    ) -> None:
        self._stop = threading.Event()
        self._book = book
        self._executor = executor
        self._job: RunningJob | None = None
        self.coordinator: AdaptationCoordinator | None = None
        targets: list[tuple[str, Callable[[], None]]] = []
        if executor.rank == 0:
            self._job = RunningJob(own_connection(store), executor, switch, self._stop)
            planner = BackgroundPlanner()
            self.coordinator = AdaptationCoordinator(
                self._job,
                book,
                planner,
                outdated=lambda reason: invalidate(book, settings, reason),
                records=Records(settings.adapt_log),
            )
            targets.append(("coordinator", partial(self._coordinate, self.coordinator, planner)))
            switch.record()
        self._agent = Agent(
            own_connection(store),
            executor,
            switch,
            stop=self._stop,
            handlers={PROBE: lambda payload: switch.drained(self._probing(payload))},
        )
        targets.append(("agent", self._agent.run))
        self._threads: list[threading.Thread] = []
        try:
            for name, target in targets:
                thread = threading.Thread(target=target, name=f"headrace-{name}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:  # the system refuses another thread
            self.close()
            raise

    def close(self) -> None:
        """End the threads: at once, or after a moment if one waits for the store."""
        self._stop.set()
        end = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _coordinate(self, coordinator: AdaptationCoordinator, planner: BackgroundPlanner) -> None:
        pause_s = 0.0
        try:
            planner.start()
            while not self._stop.wait(pause_s):
                pause_s = coordinator.turn(time.monotonic())
        except (HeadraceError, OSError, RuntimeError) as error:  # torch's store raises the latter
            if not self._stop.is_set():
                log.info("adaptation stops: %s", error)
        finally:
            planner.close()

    def _probing(self, payload: bytes) -> Activation:
        """Return the function that measures, for the thread that makes the calls."""
        effort = ProbeEffort(**json.loads(payload))
        topology = self._book.topology
        hosts = [topology.hosts[host] for host in topology.rank_host]

        def measure() -> None:
            try:
                profile = measure_ranks(self._executor, hosts, effort=effort)
            except CommunicationError:
                raise  # a rank is gone: the next call would fail, too
            except HeadraceError as error:
                log.warning("measuring the network failed: %s", error)
                return
            if self._job is not None:
                self._job.measured = profile

        return measure


def follow(
    store: Any,
    executor: Executor,
    switch: PlanSwitch,
    book: PlanBook | None,
    settings: CollectiveSettings,
) -> Callable[[], None] | None:
    """Start to adapt a connected group, and its metrics; return a function that ends both.

    None if neither is started. The group is not adapted with HEADRACE_ADAPT=off, without a plan
    book, or on a single host.
    """
    adaptation = _adaptation(store, executor, switch, book, settings)
    coordinator = None if adaptation is None else adaptation.coordinator
    output = _metrics_output(executor, switch, coordinator, settings)
    parts = [part.close for part in (adaptation, output) if part is not None]
    return partial(_end, parts) if parts else None


def _end(parts: Sequence[Callable[[], None]]) -> None:
    for end in parts:
        end()


def _adaptation(
    store: Any,
    executor: Executor,
    switch: PlanSwitch,
    book: PlanBook | None,
    settings: CollectiveSettings,
) -> Adaptation | None:
    if not settings.adapt or book is None or len(set(book.topology.rank_host)) < 2:
        return None
    if not hasattr(store, "clone"):
        log.info("no adaptation: the store of this job cannot be shared by threads")
        return None
    try:
        return Adaptation(store, executor, switch, book, settings)
    except (HeadraceError, RuntimeError) as error:
        log.warning("no adaptation: %s", error)
        return None


def _metrics_output(
    executor: Executor,
    switch: PlanSwitch,
    coordinator: AdaptationCoordinator | None,
    settings: CollectiveSettings,
) -> Any:
    if settings.metrics is None:
        return None
    try:
        require_metrics("HEADRACE_METRICS")
    except InputError as error:
        log.warning("no metrics: %s", error)
        return None
    from headrace.collectives.adapt.metrics import CollectiveMetrics  # only if enabled
    from headrace.job.metrics import start_metrics

    reader = executor.statistics_reader()
    metrics = CollectiveMetrics(executor.rank, switch, reader, coordinator)
    return start_metrics(metrics, settings.metrics)
