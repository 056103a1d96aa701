"""Jobs on a testbed, one process a rank, whose ranks write their results as JSON.

A rank calls `emit`; `jobs_output` starts the job and returns the lines of all ranks. Those of
`worker_results` write a file each.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.launch.job import run_job
from headrace.launch.roles import Roles
from headrace.testbed import Testbed, rank_roles

WHERE = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
"""For workers that are started as modules of the benchmarks."""


def emit(event: str, /, **facts: Any) -> None:
    """Write one line of JSON to standard output, at once: {"event": event, **facts}."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def jobs_output(
    testbed: Testbed,
    argv: Sequence[str],
    order: Sequence[int],
    *,
    env: Mapping[str, str | None],
    on_event: Callable[[dict[str, Any]], None] | None = None,
    timeout_s: float = 900.0,
) -> list[dict[str, Any]]:
    """Run a job, one process a rank, and return the lines of JSON that its ranks wrote.

    Every line gets a "rank". Lines that are no JSON are quoted if their rank fails.

    Parameters
    ----------
    on_event : called with every line of rank 0 as it comes.

    Raises
    ------
    RuntimeError : if a rank fails, or the job takes longer than `timeout_s`.
    """
    lines: list[dict[str, Any]] = []
    until = time.monotonic() + timeout_s
    with Roles(dict(enumerate(rank_roles(testbed, argv, order, env)))) as ranks:
        while found := ranks.expect("the job", max(0.0, until - time.monotonic())):
            rank, message = found
            lines.append({"rank": rank, **message})
            if rank == 0 and on_event is not None:
                on_event(lines[-1])
    return lines


def worker_results(
    testbed: Testbed,
    argv: Sequence[str],
    order: Sequence[int],
    task: Mapping[str, Any],
    *,
    env: Mapping[str, str | None],
    timeout_s: float,
) -> list[Any]:
    """Run a job, one process a rank, and return the contents of the ranks' files.

    Every rank gets the task as JSON, as its last argument, with its "rank", the number of "ranks",
    the address to "listen" on, and the "folder" for its file ``<rank>.json``.

    Raises
    ------
    RuntimeError : if a rank fails, or the job takes longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory() as folder:
        common = {**task, "ranks": len(order), "folder": folder}
        tasks = [
            common | {"rank": rank, "listen": testbed.hosts[index].address}
            for rank, index in enumerate(order)
        ]
        roles = rank_roles(testbed, argv, order, env)
        codes = run_job(
            [
                replace(role, argv=[*argv, json.dumps(task)])
                for role, task in zip(roles, tasks, strict=True)
            ],
            timeout_s=timeout_s,
        )
        if any(codes):
            raise RuntimeError(f"the workers ended with exit codes {codes} ({timeout_s:g} s)")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(len(order))]
