"""Every rank's part: report connection statistics and follow changes of the plan, on a thread.

Requests and reports go through the same store as the rounds of `job.agreement`, on a connection of
the thread's own:

=====================  ======================================================================
ask                    number of the newest request for statistics, and whether more will follow
                       soon
traffic/<n>/<rank>     the report for request n, a table in JSON (see `Traffic.of`)
=====================  ======================================================================

The thread polls the store. It ends when stopped, or when the store is lost: then training goes on
with the plan in force.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping

from headrace.collectives.adapt.observe.traffic import Traffic
from headrace.collectives.run.switch import PLAN, PlanSwitch
from headrace.errors import CommunicationError
from headrace.executor import ConnectionStatistics, Executor
from headrace.job.agreement import NEWS, Follower, Store, announce
from headrace.job.switch import Activation

log = logging.getLogger(__name__)

_POLL_EVERY_S = 0.4
_HURRIED_S = 0.02
_HURRY_S = 5.0
"""Duration of faster polling after an urgent request: a plan may follow."""

_MOST_POLLS_PER_S = 2000.0  # of all ranks together, for the store's sake
_REPORT_S = 10.0
_POLL_S = 0.1


def poll_interval_s(ranks: int, *, hurry: bool = False) -> float:
    """Return the seconds between a rank's polls of the store."""
    return max(_HURRIED_S if hurry else _POLL_EVERY_S, ranks / _MOST_POLLS_PER_S)


class Agent:
    """One rank's thread.

    Parameters
    ----------
    store : a connection of its own (`job.agreement.own_connection`).
    handlers : by kind of proposal, see `Follower`; plan books need none.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        switch: PlanSwitch,
        *,
        stop: threading.Event,
        handlers: Mapping[str, Callable[[bytes], Activation]] | None = None,
    ) -> None:
        self._store = store
        self._rank = executor.rank
        self._statistics = executor.statistics_reader()
        self._stop = stop
        self._ranks = executor.ranks
        self._hurry_until_s = 0.0
        self._reported = 0
        self._news: bytes | None = None
        self._follower = Follower(
            store,
            f"rank {executor.rank}",
            switch,
            handlers={PLAN: switch.loaded, **(handlers or {})},
            stop=stop,
        )

    def run(self) -> None:
        """Poll until stopped: the thread's main loop."""
        try:
            while not self._stop.wait(self._pause_s()):
                self.poll()
        except (CommunicationError, RuntimeError) as error:  # torch's store errors are the latter
            if not self._stop.is_set():
                log.info("rank %d stops adapting: %s", self._rank, error)

    def poll(self) -> None:
        """Report statistics if requested, and follow the newest round, if there is one."""
        self._follower.note_pace()
        if self._news is None and not self._store.check([NEWS]):
            return
        news = self._store.get(NEWS)
        if news == self._news:
            return
        self._news = news
        self._follower.poll()
        if not self._store.check(["ask"]):
            return
        requested, hurry = json.loads(self._store.get("ask"))
        if requested <= self._reported:
            return
        self._reported = requested
        if hurry:
            self._hurry_until_s = time.monotonic() + _HURRY_S
        report = json.dumps(_report(self._statistics.read()))
        self._store.set(f"traffic/{requested}/{self._rank}", report)

    def _pause_s(self) -> float:
        return poll_interval_s(self._ranks, hurry=time.monotonic() < self._hurry_until_s)


class TrafficCollector:
    """Rank 0's side: requests all ranks' statistics and assembles their reports.

    Parameters
    ----------
    store : a connection of its own.
    timeout_s : longest wait for the slowest rank, in seconds.
    """

    def __init__(
        self,
        store: Store,
        ranks: int,
        *,
        stop: threading.Event | None = None,
        timeout_s: float = _REPORT_S,
    ) -> None:
        self._store = store
        self._ranks = ranks
        self._stop = stop or threading.Event()
        self._timeout_s = timeout_s
        self._number = 0

    def gather(self, *, hurry: bool = False) -> Traffic | None:
        """Return the traffic of all connections since the request before; None on timeout.

        Parameters
        ----------
        hurry : more will follow soon: another request, or another plan.

        Raises
        ------
        RuntimeError : torch's, if the store is lost.
        """
        for rank in range(self._ranks) if self._number else ():
            self._store.delete_key(self._key(rank))
        self._number += 1
        self._store.set("ask", json.dumps([self._number, hurry]))
        announce(self._store)
        keys = [self._key(rank) for rank in range(self._ranks)]
        end = time.monotonic() + self._timeout_s
        while not self._store.check(keys):
            if time.monotonic() > end or self._stop.wait(_HURRIED_S if hurry else _POLL_S):
                return None
        return Traffic.of([json.loads(self._store.get(key)) for key in keys])

    def _key(self, rank: int) -> str:
        return f"traffic/{self._number}/{rank}"


def _report(statistics: ConnectionStatistics) -> dict[str, list[float]]:
    return {
        "peer": statistics.peer.tolist(),
        "sent_bytes": statistics.window_sent_bytes.tolist(),
        "rate_bytes_per_s": statistics.rate_bytes_per_s.tolist(),
        "rtt_us": statistics.rtt_us.tolist(),
    }
