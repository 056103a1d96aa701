"""A testbed's network, and the times of programs on it."""

import pickle
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.instruments.beds import Bed
from benchmarks.jobs import WHERE, worker_results
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.collectives.plan.locality import RankGroups
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import Program
from headrace.testbed import Testbed
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
    with tempfile.NamedTemporaryFile() as made:
        made.write(pickle.dumps(list(programs)))
        made.flush()
        task = {"programs": made.name, "bytes": size, "rounds": list(rounds)}
        argv = [sys.executable, "-m", "benchmarks.network.plans_rank"]
        by_rank = worker_results(testbed, argv, bed.order, task, env=WHERE, timeout_s=timeout_s)
    return [
        max(end for _, end in calls) - sum(begin for begin, _ in calls) / len(calls)
        for calls in zip(*by_rank, strict=True)
    ]
