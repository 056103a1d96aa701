"""Training steps on Gloo and on headrace, in turn, on testbeds of several shapes: PLink's figure 6.

Real DistributedDataParallel in real processes on a shaped network. Computing is emulated (see
`benchmarks.instruments.models`) unless the row says real.
"""

import json
import statistics
import sys
import time
from typing import Any

from benchmarks.harness import Report
from benchmarks.instruments.beds import Bed
from benchmarks.jobs import WHERE, jobs_output
from benchmarks.network.launch import network
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.testbed import Testbed

BEDS = (
    Bed(name="uniform", racks=(6,), host_mbit=200, uplink_mbit=200),
    # Seeds: both orders have as many ring edges out of a rack as most random orders.
    Bed(name="2x3-4to1", racks=(3, 3), host_mbit=100, uplink_mbit=75),
    Bed(name="2x3-4to1-shuffled", racks=(3, 3), host_mbit=100, uplink_mbit=75, seed=1),
    Bed(name="3x3-8to1-shuffled", racks=(3, 3, 3), host_mbit=200, uplink_mbit=75, seed=2),
    Bed(name="one-slow-host", racks=(6,), host_mbit=200, uplink_mbit=200, slow={2: 50}),
)
CASES = (
    ("conv", "real"),
    ("conv", "emulated"),
    ("many-small", "emulated"),
    ("few-huge", "emulated"),
)
FEWER = {"2x3-4to1": (CASES[0], CASES[3])}
"""Testbeds with fewer cases: the shape in rank order, beside the shuffled one."""

QUICK = {"uniform": CASES[:1], "3x3-8to1-shuffled": (CASES[0], CASES[2])}
SIZES = tuple(1 << k for k in range(16, 24))
"""Bytes that are planned for: 64 KiB to 8 MiB."""

BOUND_BY_NETWORK = 0.6
ROUNDING = 1e-4
"""Largest difference of weights: sums in another order, over a few dozen steps."""

LEAST = "ddp-over-gloo-least"
SHUFFLED = "ddp-over-gloo-shuffled-oversubscribed"
WRONG = "ddp-wrong-results"


def bars() -> dict[str, str]:
    """Return the bars: Gloo's time of a step over headrace's."""
    return {LEAST: ">=0.97", SHUFFLED: ">=2.3", WRONG: "<=0"}


def measure(report: Report, *, quick: bool) -> None:
    """Train on every testbed, add the rows and give the bars."""
    rows: list[dict[str, Any]] = []
    for bed in BEDS:
        cases = QUICK.get(bed.name, ()) if quick else FEWER.get(bed.name, CASES)
        if cases:
            rows += _bed(report, bed, cases, quick=quick)
    bound = [
        row["over_gloo"]
        for row in rows
        if row["shuffled"] and row["oversubscribed"] > 1 and row["share"] > BOUND_BY_NETWORK
    ]
    report.bar(LEAST, min(row["over_gloo"] for row in rows))
    report.bar(SHUFFLED, min(bound, default=None))
    report.bar(WRONG, sum(row["wrong"] for row in rows))
    for cloud, span in (("Azure", "1.37 to 2.27"), ("EC2", "1.13 to 1.53")):
        report.row("PLink, figure 6: training on public clouds", cloud=cloud, over_gloo=span)
    report.note(
        "training: median step at rank 0; Gloo, headrace and computing alone take turns in the "
        "same processes, in an order that changes every round; network: the share of Gloo's step "
        "beyond computing alone; ways_out: edges of Gloo's ring that leave the busiest "
        "rack; weights: their largest relative difference between the backends. 'emulated' "
        "computing sleeps for times that were recorded on this machine just before; 'real' shares "
        "two cores among all ranks. "
        "Adaptation is off here: taking turns is no training loop (see overhead)"
    )
    if quick:
        report.note("quick: two of five testbeds, planned from the true network, few cases")


def _bed(
    report: Report, bed: Bed, cases: tuple[tuple[str, str], ...], *, quick: bool
) -> list[dict[str, Any]]:
    with Testbed.up(bed.spec, fallback=False) as testbed:
        began = time.monotonic()
        topology, groups = network(testbed, bed, quick=quick)
        measured = time.monotonic()
        book = build_book(
            topology,
            groups=groups,
            collectives=[Collective.ALLREDUCE],
            sizes=SIZES,
        )
        path = testbed.record.directory / "training.book"
        book.save(path)
        planned = time.monotonic()
        task = {"cases": cases, "rounds": 5 if quick else 9, "steps": 1 if quick else 2}
        lines = jobs_output(
            testbed,
            [sys.executable, "-m", "benchmarks.network.train_rank", json.dumps(task)],
            bed.order,
            env={
                **WHERE,
                "HEADRACE_PLAN_BOOK": str(path),
                "HEADRACE_ADAPT": "off",
                "OMP_NUM_THREADS": "1",
            },
        )
    report.row(
        "training: the work",
        testbed=bed.name,
        ranks=bed.ranks,
        network="true" if quick else "surveyed",
        survey_s=round(measured - began, 1),
        plan_s=round(planned - measured, 1),
        run_s=round(time.monotonic() - planned, 1),
        racks="exact" if sorted(groups) == sorted(bed.groups) else "NOT FOUND",
        plan_1_mib=_plan(book, 1 << 20),
    )
    rows = [line for line in lines if line["event"] == "case"]
    if len(rows) != len(cases):
        raise RuntimeError(f"{bed.name}: {len(rows)} of {len(cases)} cases were trained")
    return [_row(report, bed, found) for found in rows]


def _row(report: Report, bed: Bed, found: dict[str, Any]) -> dict[str, Any]:
    ms = {name: statistics.median(times) for name, times in found["ms"].items()}
    made = {
        "shuffled": bed.seed is not None,
        "oversubscribed": bed.oversubscribed,
        "share": network_share(ms["gloo"], ms["alone"]),
        "over_gloo": ms["gloo"] / ms["headrace"],
        "wrong": not found["ranks_agree"] or not found["difference"] <= ROUNDING,
    }
    report.row(
        "training steps, ms",
        testbed=bed.name,
        ways_out=bed.ring_crossings,
        model=found["workload"],
        computing=found["compute"],
        mb=round(found["mb"], 1),
        n=len(found["ms"]["gloo"]),
        alone=round(ms["alone"], 1),
        gloo=round(ms["gloo"], 1),
        headrace=round(ms["headrace"], 1),
        network=round(made["share"], 2),
        over_gloo=round(made["over_gloo"], 3),
        weights="WRONG" if made["wrong"] else f"{found['difference']:.0e}",
    )
    return made


def network_share(step_ms: float, compute_ms: float) -> float:
    """Return the share of a step beyond computing, 0 to 1."""
    return max(0.0, 1 - compute_ms / step_ms)


def _plan(book: PlanBook, size: int) -> str:
    plan = book.choose(Collective.ALLREDUCE, size)
    return "-" if plan is None else f"{plan.generator} x{plan.program.demand.chunks}"
