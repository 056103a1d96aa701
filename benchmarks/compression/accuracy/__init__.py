"""Accuracy with four workers: Accordion against its gentle and its harsh codec, alone.

The runs themselves are made by `study`, in hours; this section makes the first seed's if they are
missing, and summarizes all that are finished.
"""

import os
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from benchmarks.compression.accuracy import figures, study
from benchmarks.compression.accuracy.tasks import TASKS
from benchmarks.harness import Report

SECTION = "accuracy"


def bars() -> dict[str, str]:
    """Return this section's bars."""
    return {
        "accordion-of-gentle-points": ">=-0.3",
        "accordion-bytes-saved": ">=1.5",
        "tasks-where-harsh-loses-a-point": ">=2",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Summarize the finished runs; first make those of one seed that the bars need."""
    first = [run for run in study.planned() if run[1] == study.SEEDS[0]]
    study.run_left(
        [run for run in first if run[2] in study.REGIMES[: study.COMPARED]], os.cpu_count() or 1
    )
    rows = study.results()
    here = {(row["task"], row["seed"], row["regime"]) for row in study.results(kept=study.FOLDER)}
    report.note(
        f"accuracy: {len(rows)} finished runs, {len(rows) - len(here)} kept in git and made "
        "elsewhere; rm benchmarks/compression/accuracy/kept.jsonl to make all here"
    )
    by_task = {name: [row for row in rows if row["task"] == name] for name in TASKS}
    summaries = {name: _summarize(report, name, found) for name, found in by_task.items()}
    for table, found in figures.measured().items():
        for row in found:
            report.row(table, **row)
    if not quick:
        report.note("runs are made by python -m benchmarks.compression.accuracy")
    pairs = {name: summary.get("accordion") for name, summary in summaries.items()}
    if all(pairs.values()):
        compared = [pair for pair in pairs.values() if pair]
        report.bar("accordion-of-gentle-points", min(pair["points"] for pair in compared))
        report.bar("accordion-bytes-saved", min(pair["saved"] for pair in compared))
    harsh = [summary["harsh"]["points"] for summary in summaries.values() if "harsh" in summary]
    if harsh:
        report.bar("tasks-where-harsh-loses-a-point", sum(points <= -1 for points in harsh))


def _summarize(
    report: Report, name: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Give a row for each regime, against the gentle codec with the same seeds."""
    found = {(row["regime"], row["seed"]): row for row in rows}
    summary: dict[str, dict[str, float]] = {}
    for regime in study.REGIMES:
        seeds = [seed for seed in study.SEEDS if (regime, seed) in found]
        paired = [seed for seed in seeds if ("gentle", seed) in found]
        if not paired:
            continue
        points = [
            found[regime, seed]["accuracy"] - found["gentle", seed]["accuracy"] for seed in paired
        ]
        saved = mean(
            found["gentle", seed]["bytes"] / found[regime, seed]["bytes"] for seed in paired
        )
        spread = stdev(points) / len(points) ** 0.5 if len(points) > 1 else None
        summary[regime] = {"points": mean(points), "saved": saved}
        report.row(
            f"accuracy, {name}: {TASKS[name].low} and {TASKS[name].high}",
            regime=regime,
            seeds=len(paired),
            accuracy_percent=round(mean(found[regime, seed]["accuracy"] for seed in paired), 2),
            points_from_gentle=round(mean(points), 2),
            standard_error=None if spread is None else round(spread, 2),
            megabytes=round(mean(found[regime, seed]["bytes"] for seed in paired) / 1e6, 2),
            fewer_bytes=round(saved, 2),
        )
    return summary
