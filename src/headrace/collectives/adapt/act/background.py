"""Replanning while training goes on: in a process of its own, at a low priority.

`run_planner` handles requests from a connection, one after another, until that is closed. It is
started before it is needed: loading takes longer than planning for a few hosts does.
"""

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from headrace.collectives.adapt.act.quicktune import quicktune
from headrace.collectives.adapt.act.rebook import (
    QUICKTUNE,
    Call,
    Retuned,
    book_masters,
    calls_us,
    moved,
    replanned,
)
from headrace.collectives.adapt.observe.port_changes import bandwidth
from headrace.collectives.demand import ROOTED, Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.cost.model import EXECUTOR, CostModel
from headrace.collectives.plan.generators.templates.two_level.masters import Masters
from headrace.collectives.plan.request import Method
from headrace.errors import HeadraceError
from headrace.settings import child_environment
from headrace.topology import Topology
from headrace.topology.presets import uniform

log = logging.getLogger(__name__)

_NICE = 3  # behind training, but training waits for the result, too
_DEADLINE_S = 120.0
_PARENT_S = 5.0
_RUN = f"from {__name__} import run_planner; run_planner()"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RebookRequest:
    """Problem for the planner.

    Attributes
    ----------
    topology : the network as it is now.
    book : in force.
    calls : of one training step.
    masters : to move to these, and do nothing else (Finetune); None: the best of all plans.
    """

    topology: Topology
    book: PlanBook
    calls: tuple[Call, ...]
    masters: Masters | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """Result of a request.

    Attributes
    ----------
    book : the best plans; None: there are none, see `error`.
    why : origin of the new plan for the most bytes: Quicktune, or replanning ("replan").
    before_us, after_us : predictions for all calls of a step that both books have plans for.
    plans : by bytes: generator and prediction (us) before and after.
    """

    book: PlanBook | None = None
    error: str = ""
    why: str = ""
    before_us: float = 0.0
    after_us: float = 0.0
    plans: tuple[tuple[int, str, float, str, float], ...] = ()

    @property
    def gain(self) -> float:
        """Predicted saving of all calls together: 0.2 is 20% less time."""
        return 1 - self.after_us / self.before_us if self.before_us else 0.0


def plan_calls(
    topology: Topology,
    groups: tuple[tuple[int, ...], ...] | None,
    calls: Sequence[Call],
    model: CostModel = EXECUTOR,
) -> PlanBook | None:
    """Return plans for these calls; None if there are none to plan.

    Calls with a root are left out: a training step has none.
    """
    sizes = sorted({size for name, size in calls if name not in ROOTED and size > 0})
    collectives = sorted({name for name, _ in calls if name not in ROOTED})
    if not sizes:
        return None
    return build_book(
        topology,
        groups=groups,
        collectives=collectives,
        sizes=sizes,
        method=Method(model=model),
    )


def plan_request(request: RebookRequest) -> Response:
    """Return the response to `request`, planned in this process."""
    book, topology, calls = request.book, request.topology, request.calls
    if request.masters is not None:
        return _response(request, moved(book, topology, request.masters, calls))
    fresh = plan_calls(topology, book.groups, calls, book.model)
    if fresh is None:
        return Response(error="no call of a step can be planned for")
    sizes = Counter(size for name, size in calls if name is Collective.ALLREDUCE)
    masters = book_masters(book, sizes)
    if masters is not None:
        masters = quicktune(masters, bandwidth(topology))
    return _response(request, replanned(book, fresh, masters))


def _response(request: RebookRequest, retuned: Retuned) -> Response:
    planned = [call for call in request.calls if request.book.choose(*call) is not None]
    plan_us: dict[tuple[str, int], float] = {}
    before_us = calls_us(request.book, request.topology, planned, plan_us)
    after_us = calls_us(retuned.book, request.topology, planned, plan_us)
    largest = max(retuned.choices, key=lambda choice: choice.entry.plan.total_bytes, default=None)
    by_quicktune = largest is not None and largest.entry.plan.generator == QUICKTUNE
    return Response(
        book=retuned.book,
        why=QUICKTUNE if by_quicktune else "replan",
        before_us=before_us or 0.0,
        after_us=after_us or 0.0,
        plans=tuple(
            (
                choice.entry.plan.total_bytes,
                choice.before,
                choice.before_us,
                choice.entry.plan.generator,
                choice.entry.plan.predicted_us,
            )
            for choice in retuned.choices
        ),
    )


class BackgroundPlanner:
    """A process that handles one request at a time; used by one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._waiting: RebookRequest | None = None  # until a cancelled one's response has come
        self._busy = False
        self._wanted = False
        self._until_s = 0.0

    def start(self) -> None:
        """Start the process, if none is running."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        here, there = Pipe()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment({"RANK": None, "WORLD_SIZE": None, "OMP_NUM_THREADS": "1"}),
                pass_fds=(there.fileno(),),
                start_new_session=True,
            )
        self._connection = here

    def begin(self, request: RebookRequest) -> None:
        """Submit a request for plans; one submitted before is cancelled."""
        self.cancel()
        self.start()
        if self._busy:
            self._waiting = request
        else:
            self._send(request)

    def cancel(self) -> None:
        """Cancel the request."""
        self._wanted, self._waiting = False, None

    def poll(self) -> Response | None:
        """Return the response; None while there is none, or no request."""
        if not self._busy:
            return None
        assert self._connection is not None
        try:
            response: Response | None = self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            return self._lost("the process that plans has ended")
        if response is None:
            late = time.monotonic() > self._until_s
            return self._lost(f"no plans within {_DEADLINE_S:g} s") if late else None
        self._busy = False
        if self._waiting is not None:
            self._send(self._waiting)
            self._waiting = None
            return None
        return response if self._wanted else None

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._connection = None
        self._busy = False

    def _send(self, request: RebookRequest) -> None:
        assert self._connection is not None
        self._busy = self._wanted = True
        self._until_s = time.monotonic() + _DEADLINE_S
        with suppress(OSError):  # then `poll` finds the other end closed
            self._connection.send(request)

    def _lost(self, reason: str) -> Response | None:
        was_requested = self._wanted or self._waiting is not None
        self.close()
        self.cancel()
        return Response(error=reason) if was_requested else None


def run_planner() -> None:
    """Handle requests until the other end is closed, or the parent process is gone."""
    os.nice(_NICE)
    parent = os.getppid()
    plan_calls(uniform(4), None, [(Collective.ALLREDUCE, 1 << 20)])  # loads what planning needs
    with suppress(EOFError, OSError), Connection(int(sys.argv[1])) as connection:
        while True:
            while not connection.poll(_PARENT_S):
                if os.getppid() != parent:
                    return
            request: RebookRequest = connection.recv()
            try:
                response = plan_request(request)
            except HeadraceError as error:
                response = Response(error=str(error))
            connection.send(response)
