"""A workload whose mix changes (Figure 3.5): rates over time, and what adaptation reaches."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.harness import ROOT, Report
from benchmarks.index import answers
from benchmarks.index.cells import BATCH, FULL, describe_machine, on_disk, per_s, workload
from benchmarks.index.choices import DEFAULT, headrace
from benchmarks.index.maps import ABSL, HUGE_PAGES, OrderedMap, Running, running
from benchmarks.index.workload import Mix

_PHASES = {
    "read-heavy": Mix(inserts=0.15),
    "write-heavy": Mix(inserts=0.85),
    "write-only": Mix(inserts=1.0),
}
_SLICES = 3
_KINDS = ("locked", "monitored")
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

    Two processes of one kind differ by some percent, as their memory does, and more often than not
    the one that started first is faster. So there are several pairs, each begun in both orders.
    """
    pairs, loaded, parts = (9, 1_000_000, 16) if quick else (5, FULL.loaded, 40)
    made = workload("osm", loaded, [(parts * BATCH, Mix())])
    with on_disk(made) as path:
        found = [
            [_counting(path, parts, kinds) for kinds in (_KINDS, _KINDS[::-1])]
            for _ in range(pairs)
        ]
    costs = {
        verb: median(mean(each[verb] for each in pair) for pair in found) for verb in found[0][0]
    }
    report.row("cost of counting, share of the rate of finds", loaded=loaded, **costs)
    return max(costs.values())


def _counting(path: Path, parts: int, kinds: Sequence[str]) -> dict[str, float]:
    """Return the share of the rate that counting costs, by processes started in an order."""
    maps = [OrderedMap(label=f"headrace {kind}", kind=kind) for kind in kinds]
    costs: dict[str, float] = {}
    with running(maps, path) as started:
        for name, verb, after in (("one_by_one", "run", ""), ("batches", "batches", BATCH)):
            rates = [
                _pair(started, f"{verb} {at * BATCH} {(at + 1) * BATCH} {after}", at)
                for at in range(parts)
            ]
            costs[name] = 1.0 - median(rates)
    return costs


def _pair(maps: list[Running], command: str, at: int) -> float:
    """Return the rate with counting over the one without; which is the first to run alternates."""
    found: dict[str, Any] = {}
    for each in maps if at % 2 else reversed(maps):
        found[each.label] = each.ask(command)
    answers.count(sum(each["wrong"] for each in found.values()))
    locked, monitored = (found[f"headrace {kind}"]["cpu_ns"] for kind in _KINDS)
    return locked / monitored


def _adapted(report: Report, *, quick: bool) -> float:
    """Return the lowest rate at the end of a phase over the best fixed configuration's."""
    loaded, seconds = (1_000_000, 2.5) if quick else (FULL.loaded, 2.5)
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.index.adapted", "osm", str(loaded), str(seconds)],
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
        row["of_best"] = row["rates"][-1] / row["best_per_s"]
        report.row(
            "adaptation, million operations a second in each half second",
            phase=row["phase"],
            **{f"{at / 2} s": round(rate / 1e6, 3) for at, rate in enumerate(row["rates"])},
            best=row["best"],
            best_per_s=round(row["best_per_s"] / 1e6, 3),
            of_best=row["of_best"],
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
