"""Overhead of adaptation on a constant network: steps with it on and off, in turn."""

import json
import statistics
import sys
from collections.abc import Sequence

from scipy import stats

from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from benchmarks.jobs import WHERE, jobs_output
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import build_book
from headrace.testbed import Testbed

BED = Bed(name="8-hosts", racks=(2, 2, 2, 2), host_mbit=160, uplink_mbit=160, seed=4)
BUCKETS = [256 << 10, 256 << 10]
COMPUTE_S = 0.06
BAR = "autotune-overhead"
WRONG = "autotune-overhead-wrong-results"
CONFIDENCE = 0.95


def bars() -> dict[str, str]:
    """Return the bars: the mean over pairs of a step's relative slowdown."""
    return {BAR: "<=0.01", WRONG: "<=0"}


def measure(report: Report, *, quick: bool) -> None:
    """Run pairs on the testbed's true topology, and give the bars."""
    pairs, steps = (3, 25) if quick else (16, 40)
    with Testbed.up(BED.spec, fallback=False) as testbed:
        path = testbed.record.directory / "overhead.book"
        build_book(
            BED.truth, groups=BED.groups, collectives=[Collective.ALLREDUCE], sizes=[BUCKETS[0]]
        ).save(path)
        task = {"buckets": BUCKETS, "compute_s": COMPUTE_S, "pairs": pairs, "steps": steps}
        lines = jobs_output(
            testbed,
            [sys.executable, "-m", "benchmarks.network.overhead_rank", json.dumps(task)],
            BED.order,
            env={**WHERE, "HEADRACE_PLAN_BOOK": str(path), "OMP_NUM_THREADS": "1"},
        )
    parts = [line for line in lines if line["event"] == "part"]
    medians: dict[tuple[int, str], float] = {}
    for pair in range(pairs):
        for mode in ("off", "on"):
            mine = [part for part in parts if (part["pair"], part["mode"]) == (pair, mode)]
            (first,) = (part["ms"] for part in mine if part["rank"] == 0)
            medians[pair, mode] = statistics.median(first)
            report.row(
                "autotune on a network that does not change",
                pair=pair,
                adaptation=mode,
                step_ms=round(medians[pair, mode], 3),
                cpu_ms_a_step_and_rank=round(statistics.fmean(p["cpu_ms"] for p in mine), 3),
                swaps=max(part["swaps"] for part in mine),
            )
    shares = [medians[pair, "on"] / medians[pair, "off"] - 1 for pair in range(pairs)]
    mean, low, high = interval(shares)
    report.row(
        "autotune's overhead",
        pairs=pairs,
        steps_each=steps,
        mean=f"{mean:+.2%}",
        median=f"{statistics.median(shares):+.2%}",
        interval_95=f"{low:+.2%} to {high:+.2%}",
    )
    report.bar(BAR, mean)
    report.bar(WRONG, sum(line["wrong"] for line in lines if line["event"] == "done"))
    report.note(
        f"overhead: medians of {steps} steps at rank 0, on and off in turn in the same processes, "
        "with connections of their own; interval: Student's t of the pairs' differences; "
        f"computing is emulated (sleeps {COMPUTE_S * 1e3:.0f} ms a step)"
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean, and the ends of its confidence interval."""
    mean = statistics.fmean(values)
    error = statistics.stdev(values) / len(values) ** 0.5
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * error
    return mean, mean - reach, mean + reach
