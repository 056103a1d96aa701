"""Planning in a process of its own: its computation holds up no thread of the index's users.

``python -m headrace.index.adapt.planner`` is that process: it takes requests as lines of JSON, and
traces and plans by files.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from headrace.errors import CommunicationError, HeadraceError
from headrace.index.adapt.propose import Proposal, propose_configuration
from headrace.index.configuration import Configuration, read_configuration
from headrace.index.errors import PlanningError
from headrace.index.measure.files import read_trace, write_trace
from headrace.index.plan.plan import IndexPlan
from headrace.index.trace import Trace
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
        argv = [sys.executable, "-m", "headrace.index.adapt.planner"]
        env = {"OMP_NUM_THREADS": "1"}  # one processor: the others are the index's users'
        self._roles = Roles({_KEY: Role(name="the planner of an index", argv=argv, env=env)})
        self._roles.__enter__()

    def __call__(self, trace: Trace, current: Configuration, value_bytes: int) -> Proposal:
        """Return a proposal, see `propose_configuration`.

        Raises
        ------
        PlanningError : `propose_configuration` raised an error, which the message has.
        CommunicationError : the process died, or was closed.
        """
        with tempfile.TemporaryDirectory(prefix="headrace-index-") as folder:
            files = {name: str(Path(folder) / name) for name in ("trace.npz", "index.plan")}
            write_trace(files["trace.npz"], trace)
            request = {
                "trace": files["trace.npz"],
                "plan": files["index.plan"],
                "current": current.to_head(),
                "value_bytes": value_bytes,
                "most_bytes_per_key": self._most_bytes_per_key,
            }
            reply = self._ask(request)
            if "failed" in reply:
                raise PlanningError(reply["failed"])
            made = IndexPlan.load(files["index.plan"])
        return Proposal(configuration=made.configuration, gain=reply["gain"], plan=made)

    def close(self) -> None:
        """End the process."""
        self._roles.end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._roles.send(_KEY, request)
        except ValueError as error:  # its standard input was closed by `close`
            raise CommunicationError("planning an index: the process was ended") from error
        found = self._roles.expect("planning an index", _DEADLINE_S)
        if found is None:
            raise CommunicationError("planning an index: the process has ended")
        return found[1]


def _work(receive: Receive, send: Send) -> None:
    while True:
        request = receive()
        try:
            found = propose_configuration(
                read_trace(request["trace"]),
                read_configuration(request["current"], "request"),
                request["value_bytes"],
                most_bytes_per_key=request["most_bytes_per_key"],
            )
        except HeadraceError as error:
            send(failed=str(error))
            continue
        assert found.plan is not None
        found.plan.to_artifact().save(request["plan"])
        send(gain=found.gain)


if __name__ == "__main__":
    run_worker(_work)
