"""A workload whose mix changes (Figure 3.5): rates over time, and what adaptation reaches."""

import json
import os
import subprocess
import sys
from statistics import median

from benchmarks.harness import ROOT, Report
from benchmarks.index import answers
from benchmarks.index.cells import BATCH, FULL, describe_machine, on_disk, per_s, workload
from benchmarks.index.choices import DEFAULT, headrace
from benchmarks.index.maps import ABSL, HUGE_PAGES, OrderedMap, running
from benchmarks.index.workload import Mix

_PHASES = {
    "read-heavy": Mix(inserts=0.15),
    "write-heavy": Mix(inserts=0.85),
    "write-only": Mix(inserts=1.0),
}
_SLICES = 3
_PARTS = 24
_PHASE_S = 2.0
_MONITORED = OrderedMap(label="headrace monitored", kind="monitored")
_FIXED = (
    ABSL,
    headrace({"leaf": "gapped"}, "headrace gapped"),
    headrace({"leaf": "log"}, "headrace log"),
    headrace(DEFAULT, "headrace default"),
)


def bars() -> dict[str, str]:
    return {"monitoring-cost": "<= 0.02", "phase-of-best": ">= 0.9"}


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    _fixed(report, quick=quick)
    report.bar("monitoring-cost", _monitoring(report, quick=quick))
    report.bar("phase-of-best", _adapted(report, quick=quick))


def _monitoring(report: Report, *, quick: bool) -> float:
    """Return the share of the rate that counting costs, one by one or in batches: the larger.

    Finds with counting and without it take turns of a third of a millisecond and more on one map.
    """
    loaded = 1_000_000 if quick else FULL.loaded
    count = 2 * _PARTS * BATCH
    made = workload("osm", loaded, [(count, Mix())])
    costs: dict[str, float] = {}
    with on_disk(made) as path, running([_MONITORED], path) as (each,):
        for name, size in (("one by one", 1), ("batches of 512", 512), ("of 65,536", BATCH)):
            found = [
                each.ask(f"counting {count * at // _PARTS} {count * (at + 1) // _PARTS} {size}")
                for at in range(_PARTS)
            ]
            answers.count(sum(part["wrong"] for part in found))
            costs[name] = 1.0 - median(part["plain_ns"] / part["counting_ns"] for part in found)
    report.row("cost of counting, share of the rate of finds", loaded=loaded, **costs)
    return max(costs.values())


def _adapted(report: Report, *, quick: bool) -> float:
    """Return the lowest rate at the end of a phase over the best fixed configuration's."""
    loaded = 1_000_000 if quick else FULL.loaded
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.index.adapted", "osm", str(loaded), str(_PHASE_S)],
        env={**os.environ, "GLIBC_TUNABLES": HUGE_PAGES, "PYTHONPATH": str(ROOT.parent)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1200,
    )
    found = json.loads(ended.stdout)
    answers.count(found["wrong"])
    report.attach("adaptation", found)
    for row in found["rows"]:
        row["of_best"] = row["per_s"] / row["best_per_s"]
        report.row(
            "adaptation, million operations a second in each half second",
            phase=row["phase"],
            **{f"{at / 2} s": round(rate / 1e6, 3) for at, rate in enumerate(row["rates"])},
            then=round(row["per_s"] / 1e6, 3),
            best=row["best"],
            best_then=round(row["best_per_s"] / 1e6, 3),
            of_best=row["of_best"],
            late_conversions=row["late_conversions"],
        )
    return min(row["of_best"] for row in found["rows"])


def _fixed(report: Report, *, quick: bool) -> None:
    """Rates of fixed configurations, a row for each third of a phase."""
    loaded, count = (400_000, 1_200_000) if quick else (5_000_000, 15_000_000)
    made = workload("osm", loaded, [(count, mix) for mix in _PHASES.values()])
    with on_disk(made) as path, running(_FIXED, path) as started:
        for phase, name in enumerate(_PHASES):
            for part in range(_SLICES):
                begin = phase * count + part * count // _SLICES
                asked = f"run {begin} {begin + count // _SLICES}"
                found = {each.label: each.ask(asked) for each in started}
                answers.count(
                    sum(sums["wrong"] for label, sums in found.items() if label != "absl")
                )
                report.row(
                    "phases on osm (Figure 3.5), million operations a second",
                    phase=name,
                    part=part + 1,
                    **{label: round(per_s(sums) / 1e6, 3) for label, sums in found.items()},
                )
