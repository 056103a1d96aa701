"""Steps of a job whose skew of accesses ends, beside those of a job planned for such data.

The network and the emulated device are those of the section `steps`, at a ratio of 1. The caches
have the slots that a plan for the first half gives them.
"""

import json
import math
import statistics
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.embeddings.bed import MBIT
from benchmarks.embeddings.designs import Design, lookahead_now
from benchmarks.embeddings.drawn import BATCH
from benchmarks.embeddings.timing import (
    DENSE,
    FIRST_STEPS,
    Network,
    TimedJob,
    Turns,
    joined_designs,
)
from benchmarks.embeddings.workload import CLICKS, Workload
from benchmarks.harness import Report
from headrace.embeddings.data.parts import ReaderPart, part_batches
from headrace.embeddings.measure.accesses import measure_accesses
from headrace.embeddings.plan.choose import planned_slots

LOOKAHEAD = 100
"""Of the plan for the first half."""

TRAINERS = 2
CHANGED = "targeted, skew ends"
PLANNED = "targeted, without skew"
_SKEWED, _EVEN = "top:0.9", "uniform"
_HALF = CLICKS // BATCH
"""Batches before the change."""

_WARM = 25
"""Steps whose windows have no batch from behind the change."""

_STEPS = 80
"""After the change, and of the planned job: half before the changing one, half after it."""

_EXCHANGE = Turns(rounds=3, steps=4)


def bars() -> dict[str, str]:
    """Return the bars."""
    return {"skew-change": "<=1.15"}


FULL_ONLY = True


def measure(report: Report, *, quick: bool) -> None:
    """Time both jobs on one network; the one that changes runs without a pause."""
    del quick
    slots = _slots(Workload(skew=_SKEWED, later_skew=_EVEN))
    changing = Workload(skew=_SKEWED, later_skew=_EVEN, slots=slots)
    even = Workload(skew=_EVEN, slots=slots)
    network = Network(trainers=TRAINERS, mbit=MBIT, workload=even)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "changes"
        designs = (
            Design(
                name=CHANGED,
                trainers=TRAINERS,
                workload=changing,
                lookahead=LOOKAHEAD,
                adapt_log=log,
            ),
            Design(name=PLANNED, trainers=TRAINERS, workload=even, lookahead=None),
        )
        with joined_designs(network, designs) as (job, (of_changed, of_planned)):
            job.measure_exchange(_EXCHANGE)
            planned = _steps(report, job, PLANNED, "first half", _STEPS // 2, FIRST_STEPS)
            _steps(report, job, CHANGED, "caches fill", _WARM, FIRST_STEPS)
            before = lookahead_now(of_changed)
            _steps(report, job, CHANGED, "before the change", _HALF - _WARM, 0)
            changed = _steps(report, job, CHANGED, "after the change", _STEPS, 0)
            after = lookahead_now(of_changed)
            planned = [
                *planned,
                *_steps(report, job, PLANNED, "second half", _STEPS // 2, FIRST_STEPS),
            ]
            report.row(
                f"lookaheads, {TRAINERS} trainers, caches for {_SKEWED}",
                slots=slots,
                before=before,
                after=after,
                planned_without_skew=lookahead_now(of_planned),
            )
        for line in log.read_text().splitlines():
            report.note(json.loads(line)["sentence"])
    report.bar("skew-change", statistics.median(changed) / statistics.median(planned))


def _slots(workload: Workload) -> int:
    """Return the slots that a plan gives caches for the first half of the clicks."""
    workload.write_clicks()
    batches = part_batches(workload.data(), ReaderPart())
    profile = measure_accesses(
        islice(batches, _HALF), trainers=TRAINERS, lookahead=LOOKAHEAD, most_batches=_HALF
    )
    return math.ceil(planned_slots(profile, LOOKAHEAD))


def _steps(
    report: Report, job: TimedJob, design: str, part: str, steps: int, first: int
) -> Sequence[float]:
    """Return the seconds of a job's next steps, but for the first ones, and report them."""
    compute_s = job.pooled_s
    seconds, counts = job.turn(design, "headrace", compute_s, steps, DENSE["DLRM"])
    batches = steps * job.network.trainers
    report.row(
        f"steps, {job.network.trainers} trainers, {job.network.mbit} Mbit/s, emulated device",
        job=design,
        part=part,
        device_ms=1e3 * compute_s,
        step_ms=1e3 * statistics.median(seconds[first:]),
        longest_ms=1e3 * max(seconds[first:]),
        fetch_wait_ms=1e3 * (counts["batch_wait_s"] + counts["fetch_wait_s"]) / batches,
        critical_ms=1e3 * (counts["exchange_wait_s"] + counts["update_s"]) / batches,
        delayed_wait_ms=1e3 * counts["delayed_wait_s"] / batches,
        fetched_rows=counts["fetched_rows"] / batches,
        evicted_rows=counts["evicted_rows"] / batches,
    )
    return seconds[first:]
