"""Planning anew while training goes on: in a process of its own, at a low priority.

``python -m headrace.collectives.adapt.replan`` reads one line of JSON (the topology, the groups,
the calls) and writes the plan book's artifact.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from headrace.collectives.adapt.retune import Call
from headrace.collectives.demand import ROOTED, Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.settings import child_environment
from headrace.topology import Topology

__all__ = ["BackgroundPlanner", "plan_calls"]

_NICE = 3  # behind training, but training waits for the result, too
_DEADLINE_S = 120.0
_POLL_S = 0.2


def plan_calls(
    topology: Topology, groups: tuple[tuple[int, ...], ...] | None, calls: Sequence[Call]
) -> PlanBook | None:
    """Return plans for these calls; None if there are none to plan.

    Calls with a root are left out: a training step has none.
    """
    sizes = sorted({size for name, size in calls if name not in ROOTED and size > 0})
    collectives = sorted({name for name, _ in calls if name not in ROOTED})
    if not sizes:
        return None
    return build_book(topology, groups=groups, collectives=collectives, sizes=sizes)


class BackgroundPlanner:
    """A `coordinator.Planner` that uses a process.

    Parameters
    ----------
    stop : ends it.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def __call__(
        self, topology: Topology, book: PlanBook, calls: Sequence[Call]
    ) -> PlanBook | None:
        """Plan `calls` on `topology`; None if it was ended, or failed."""
        task = {
            "topology": topology.to_head(),
            "groups": book.groups,
            "calls": [[name.value, size] for name, size in calls],
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.collectives.adapt.replan"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment({"RANK": None, "WORLD_SIZE": None, "OMP_NUM_THREADS": "1"}),
            start_new_session=True,
        )
        try:
            raw = self._result(process, json.dumps(task).encode())
        finally:
            process.kill()
            process.communicate()
        return PlanBook.from_bytes(raw, "the plan book made anew") if raw else None

    def _result(self, process: "subprocess.Popen[bytes]", task: bytes) -> bytes:
        end = time.monotonic() + _DEADLINE_S
        given: bytes | None = task
        while not self._stop.is_set() and time.monotonic() < end:
            try:
                out, _ = process.communicate(given, timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                given = None  # what was not written yet is kept by communicate
                continue
            return out if process.returncode == 0 else b""
        return b""


def main() -> None:
    """Plan what standard input says."""
    os.nice(_NICE)
    task: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    groups = task["groups"]
    book = plan_calls(
        Topology.from_head(task["topology"], "the topology"),
        None if groups is None else tuple(tuple(group) for group in groups),
        [(Collective(name), size) for name, size in task["calls"]],
    )
    if book is not None:
        sys.stdout.buffer.write(book.to_artifact().to_bytes())


if __name__ == "__main__":
    main()
