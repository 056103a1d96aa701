"""Steps with commits at the planned distance beside steps without, in turns."""

import statistics

from benchmarks.embeddings.bed import MBIT
from benchmarks.embeddings.designs import COMMITTED
from benchmarks.embeddings.predicted import LOOKAHEAD, plan_of, profile_of
from benchmarks.embeddings.timing import DENSE, Network, TimedJob, Turns, timed_job
from benchmarks.harness import Report

DESIGN = "targeted"
_DEVICE_S = 0.3
_FAILURES_S = 60.0
"""Between losses: so few that commits are as near as their share of the time allows."""

_EXCHANGE = Turns(rounds=1, steps=2)


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"commit-share": "<=0.05"}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Time both by turns, each of as many steps as lie between two commits."""
    del quick
    network = Network(trainers=2, mbit=MBIT)
    profile = profile_of(network)
    plan = plan_of(profile, network, DESIGN, _DEVICE_S, failures_s=_FAILURES_S)
    assert plan.commits is not None
    every = plan.commit_every
    designs = (DESIGN, DESIGN + COMMITTED)
    shares: list[float] = []
    with timed_job(network, designs, LOOKAHEAD, _EXCHANGE, commit_every=every) as job:
        for _ in range(5):
            (plain_s, _), (committed_s, dirty) = (_turn(job, name, every) for name in designs)
            shares.append(committed_s / plain_s - 1)
            report.row(
                f"steps, {network}, emulated device, a commit every {every} batches",
                device_ms=1e3 * _DEVICE_S,
                without_ms=1e3 * plain_s / every,
                with_ms=1e3 * committed_s / every,
                measured_share=shares[-1],
                predicted_share=plan.commits.share,
                committed_rows=dirty,
                predicted_rows=plan.commits.rows,
            )
    report.bar("commit-share", statistics.median(shares))


def _turn(job: TimedJob, design: str, steps: int) -> tuple[float, float]:
    """Return the seconds of steps, and the rows that commits wrote."""
    seconds, counts = job.turn(design, "headrace", _DEVICE_S, steps, DENSE["DLRM"])
    return sum(seconds), counts["dirty_rows"]
