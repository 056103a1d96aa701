"""Planning in a process of its own: its computation holds up no thread of the index's users.

``python -m headrace.index.adapt.planner`` is that process: it takes requests as lines of JSON, and
traces and plans by files of a folder that only the two know.
"""

import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import CommunicationError, HeadraceError
from headrace.forks import ForkMark
from headrace.index.adapt.propose import Proposal, propose_configuration
from headrace.index.configuration import Configuration, read_configuration
from headrace.index.errors import PlanningError
from headrace.index.measure.files import read_trace
from headrace.index.trace import FIND, Trace
from headrace.launch.roles import Role, Roles
from headrace.launch.worker import Receive, Send, run_worker

_KEY = "planner"
_DEADLINE_S = 60.0
"""Longest wait for a plan, which takes about a second: the process may have just begun."""


class PlannerProcess:
    """A process that plans for recorded workloads, until `close`.

    Parameters
    ----------
    most_bytes_per_key : cap of memory.
    """

    def __init__(self, most_bytes_per_key: float | None = None) -> None:
        self._most_bytes_per_key = most_bytes_per_key
        self._mark = ForkMark()
        self._closed = False
        argv = [sys.executable, "-m", "headrace.index.adapt.planner"]
        env = {"OMP_NUM_THREADS": "1"}  # one processor: the others are the index's users'
        self._roles = Roles({_KEY: Role(name="the planner of an index", argv=argv, env=env)})
        self._roles.__enter__()

    def __call__(
        self, trace: Trace, current: Configuration, value_bytes: int, in_batches: bool
    ) -> Proposal:
        """Return a proposal, see `propose_configuration`.

        Raises
        ------
        PlanningError : `propose_configuration` raised an error, which the message has.
        CommunicationError : the process died, or was closed.
        ForkError : it is the parent's of this process.
        """
        self._mark.check("the planner of an index")
        with tempfile.TemporaryDirectory(prefix="headrace-index-") as folder:
            recorded, proposed = Path(folder) / "trace.npz", Path(folder) / "proposal"
            _write(trace, recorded)
            request = {
                "trace": str(recorded),
                "proposal": str(proposed),
                "current": current.to_head(),
                "value_bytes": value_bytes,
                "in_batches": in_batches,
                "most_bytes_per_key": self._most_bytes_per_key,
            }
            reply = self._ask(request)
            if "failed" in reply:
                raise PlanningError(reply["failed"])
            return pickle.loads(proposed.read_bytes())

    def close(self) -> None:
        """End the process; without effect in a child, whose parent's it is."""
        if self._mark.forked:
            return
        self._closed = True
        self._roles.end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._roles.send(_KEY, request)
            reply = self._roles.expect("planning an index", _DEADLINE_S)
            if reply is None:
                raise CommunicationError("planning an index: the process has ended")
        except ValueError as error:  # its standard input was closed by `close`
            raise CommunicationError("planning an index: the process was ended") from error
        except CommunicationError:
            if not self._closed:
                self._roles.restart(_KEY)  # for the next request, which no late reply answers then
            raise
        return reply[1]


def _write(trace: Trace, path: Path) -> None:
    """Write a trace for the process alone: unlike `Trace.save` does, it waits for no disk."""
    try:
        with path.open("wb") as file:
            trace.write_arrays(file)
    except OSError as error:
        raise PlanningError(f"{path}: cannot be written: {error.strerror or error}") from error


def _work(receive: Receive, send: Send) -> None:
    _prepare()
    while True:
        request = receive()
        try:
            proposal = propose_configuration(
                read_trace(request["trace"]),
                read_configuration(request["current"], "request"),
                request["value_bytes"],
                request["in_batches"],
                most_bytes_per_key=request["most_bytes_per_key"],
            )
        except HeadraceError as error:
            send(failed=str(error))
            continue
        # no artifact: its library takes longer to load than all of planning
        Path(request["proposal"]).write_bytes(pickle.dumps(proposal))
        send(done=True)


def _prepare() -> None:
    """Load what planning uses, so that the first plan takes as long as the others."""
    codes = np.arange(4096, dtype=np.uint64)
    trace = Trace(loaded=codes, operations=np.full(len(codes), FIND, np.uint8), keys=codes)
    propose_configuration(trace, Configuration(), 8, False, most_s=1e-6)


if __name__ == "__main__":
    run_worker(_work)
