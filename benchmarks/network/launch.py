"""A testbed's network, and the times of programs on it."""

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.instruments.beds import Bed
from benchmarks.jobs import WHERE
from benchmarks.ranks import finish
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import Program
from headrace.testbed import Testbed, rank_environment
from headrace.topology import Topology

Made = tuple[Program, Proof]


def network(testbed: Testbed, bed: Bed, *, quick: bool) -> tuple[Topology, RankGroups]:
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
    rounds : indices of those to run, in this order.
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
