"""Starting a job on a testbed, one process a rank, and hearing what it found."""

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.network.beds import Bed
from benchmarks.ranks import finish
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.plan.shape import Groups
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import Program
from headrace.testbed import Testbed, rank_environment, run_ranks
from headrace.topology import Topology

WHERE = {"PYTHONPATH": str(ROOT.parent)}
"""For workers that are started as modules of the benchmarks."""

Made = tuple[Program, Proof]

_QUOTED_LINES = 20


def network(testbed: Testbed, bed: Bed, *, quick: bool) -> tuple[Topology, Groups]:
    """Return topology and groups: surveyed, or, where time is short, the true ones."""
    if quick:
        return bed.truth, bed.groups
    profile = measure_testbed(testbed, bed.rank_hosts)
    return profile.topology, profile.groups


def time_programs(
    testbed: Testbed,
    bed: Bed,
    programs: Sequence[Made],
    rounds: Sequence[int],
    size: int,
    *,
    timeout_s: float = 600.0,
) -> list[float]:
    """Return the time (us) of every call: from the ranks' mean begin to the last rank's end.

    Parameters
    ----------
    programs : allreduces; the first is the barrier's.
    rounds : which of them to run, in this order.
    size : bytes of the vector.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "programs").write_bytes(pickle.dumps(list(programs)))
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for rank, index in enumerate(bed.order):
                host = testbed.hosts[index]
                task = {
                    "rank": rank,
                    "ranks": bed.ranks,
                    "listen": host.address,
                    "folder": name,
                    "programs": str(folder / "programs"),
                    "bytes": size,
                    "rounds": list(rounds),
                }
                argv = [sys.executable, "-m", "benchmarks.network.plans_rank", json.dumps(task)]
                environment = {**rank_environment(testbed, bed.order, rank), **WHERE}
                workers.append(testbed.popen(host.name, argv, env=environment))
            finish(workers, timeout_s)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(bed.ranks)]
    return [
        max(end for _, end in calls) - sum(begin for begin, _ in calls) / len(calls)
        for calls in zip(*by_rank, strict=True)
    ]


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

    Every line gets a "rank". What is no JSON is quoted if the job fails.

    Parameters
    ----------
    on_event : called with every line of rank 0 as it comes.

    Raises
    ------
    RuntimeError : if a rank fails, or the job takes longer than `timeout_s`.
    """
    lines: list[dict[str, Any]] = []
    other: list[str] = []

    def hear(rank: int, text: str) -> None:
        if not text.startswith("{"):
            other.append(f"rank {rank}: {text}")
            return
        line = {"rank": rank, **json.loads(text)}
        lines.append(line)
        if rank == 0 and on_event is not None:
            on_event(line)

    codes = run_ranks(testbed, argv, order, env=env, on_line=hear, timeout_s=timeout_s)
    if any(codes):
        quoted = "\n".join(other[-_QUOTED_LINES:])
        raise RuntimeError(f"the job ended with exit codes {codes}; it said last:\n{quoted}")
    return lines
