"""Batches: finds, inserts and erases over arrays of 65,536 codes, over the same one by one."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import BATCH, FULL, describe_machine, on_disk, per_s, workload
from benchmarks.index.choices import DEFAULT, headrace
from benchmarks.index.datasets import PAPER
from benchmarks.index.maps import Running, running
from benchmarks.index.workload import Mix

_KINDS = {"find": Mix(), "insert": Mix(inserts=1.0), "erase": Mix(erases=1.0)}
_LARGE = 30_000_000


def bars() -> dict[str, str]:
    return {"batch-over-single": ">= 2"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure at 10M keys also in a quick run: the bar is of maps that no cache holds."""
    describe_machine(report)
    finds: list[float] = []
    pairs = 8 if quick else 64
    for name in PAPER:
        for kind in _KINDS:
            if not quick or kind == "find" or name == "osm":
                found = _measured(report, name, kind, FULL.loaded, pairs)
                finds += [found] if kind == "find" else []
    if not quick:
        finds.append(_measured(report, "osm", "find", _LARGE, pairs))
    report.bar("batch-over-single", min(finds))


def _measured(report: Report, name: str, kind: str, loaded: int, pairs: int) -> float:
    """Return the median ratio of rates over pairs of an array as a batch and one by one."""
    made = workload(name, loaded, [(2 * pairs * BATCH, _KINDS[kind])])
    with on_disk(made) as path, running([headrace(DEFAULT)], path) as (ours,):
        chained = ours.ask(f"chained 0 {BATCH}") if kind == "find" else None
        rows = [_pair(ours, number) for number in range(pairs)]
    answers.count(sum(row["wrong"] for pair in rows for row in pair))
    ratio = median(per_s(batch) / per_s(single) for batch, single in rows)
    report.row(
        "batches of 65,536, million operations a second",
        keys=name,
        operation=kind,
        loaded=loaded,
        batch=round(median(per_s(batch) for batch, _ in rows) / 1e6, 3),
        single=round(median(per_s(single) for _, single in rows) / 1e6, 3),
        chained=round(per_s(chained) / 1e6, 3) if chained else None,
        ratio=ratio,
    )
    return ratio


def _pair(ours: Running, number: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Run two arrays, one each way, in an order that alternates."""
    begin = 2 * number * BATCH
    ranges = [f"{begin} {begin + BATCH}", f"{begin + BATCH} {begin + 2 * BATCH}"]
    if number % 2:
        batch = ours.ask(f"batches {ranges[0]} {BATCH}")
        return batch, ours.ask(f"run {ranges[1]}")
    single = ours.ask(f"run {ranges[0]}")
    return ours.ask(f"batches {ranges[1]} {BATCH}"), single
