"""Jobs on a testbed, one process a rank, whose ranks write their results in lines of JSON.

A rank calls `emit`; `jobs_output` starts the job and returns the lines of all ranks.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.testbed import Testbed, run_ranks

WHERE = {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
"""For workers that are started as modules of the benchmarks."""

_QUOTED_LINES = 20


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

    Every line gets a "rank". Lines that are no JSON are quoted if the job fails.

    Parameters
    ----------
    on_event : called with every line of rank 0 as it comes.

    Raises
    ------
    RuntimeError : if a rank fails, or the job takes longer than `timeout_s`.
    """
    lines: list[dict[str, Any]] = []
    other: list[str] = []

    def on_line(rank: int, text: str) -> None:
        if not text.startswith("{"):
            other.append(f"rank {rank}: {text}")
            return
        line = {"rank": rank, **json.loads(text)}
        lines.append(line)
        if rank == 0 and on_event is not None:
            on_event(line)

    codes = run_ranks(testbed, argv, order, env=env, on_line=on_line, timeout_s=timeout_s)
    if any(codes):
        quoted = "\n".join(other[-_QUOTED_LINES:])
        raise RuntimeError(f"the job ended with exit codes {codes}; its last lines:\n{quoted}")
    return lines
