"""Maps on disk: groups of 1,000 inserts, each with a sync of the file, against LMDB; opening."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import FULL, MIXES, on_disk, workload
from benchmarks.index.maps import OrderedMap, running, turns

_GROUP = 1000
_LABELS = {"durable": "headrace", "lmdb": "lmdb"}


def bars() -> dict[str, str]:
    return {"durable-over-lmdb": ">= 1", "open-10M-ms": "<= 100"}


def measure(report: Report, *, quick: bool) -> None:
    report.note(
        "durable: elapsed time; folders are on the disk of temporary files; files to open are in "
        "the page cache"
    )
    loaded, groups = (200_000, 200) if quick else (10_000_000, 2000)
    synced = [_commits(report, loaded, groups, sync=True) for _ in range(1 if quick else 3)]
    _commits(report, loaded, groups, sync=False)
    report.bar("durable-over-lmdb", median(synced))
    report.bar("open-10M-ms", _opening(report))


@contextmanager
def _maps(
    *, sync: bool, kinds: tuple[str, ...] = ("durable", "lmdb")
) -> Iterator[list[OrderedMap]]:
    """Yield maps in folders of their own, which are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="headrace-durable-") as folder:
        maps: list[OrderedMap] = []
        for kind in kinds:
            place = Path(folder, kind)
            place.mkdir()
            maps.append(OrderedMap(label=_LABELS[kind], kind=kind, folder=place, sync=sync))
        yield maps


def _commits(report: Report, loaded: int, groups: int, *, sync: bool) -> float:
    """Return the ratio of rates of committed inserts; the two take turns."""
    made = workload("uniform", loaded, [(groups * _GROUP, MIXES["write-only"])])
    slices = groups // 20
    with on_disk(made) as path, _maps(sync=sync) as maps, running(maps, path) as started:
        sums = turns(started, groups * _GROUP, slices=slices)
    ratio = sums["lmdb"]["ns"] / sums["headrace"]["ns"]
    answers.count(sums["headrace"]["wrong"])
    rates = {label: round(1e9 * each["operations"] / each["ns"]) for label, each in sums.items()}
    report.row(
        "inserts in groups of 1,000, a second",
        loaded=loaded,
        groups=groups,
        sync="each group" if sync else "none",
        **rates,
        ratio=ratio,
    )
    return ratio


def _opening(report: Report) -> float:
    """Return the median time in ms to open 10M rows and answer a lookup."""
    made = workload("uniform", FULL.loaded, [(_GROUP, MIXES["read-only"])])
    with (
        on_disk(made) as path,
        _maps(sync=True, kinds=("durable",)) as maps,
        running(maps, path) as (ours,),
    ):
        found: list[dict[str, Any]] = [ours.ask("open") for _ in range(5)]
        checked = ours.ask(f"run 0 {_GROUP}")
    answers.count(checked["wrong"] + sum(each["wrong"] for each in found))
    first, whole = (median(each[name] for each in found) / 1e6 for name in ("ns", "whole_ns"))
    report.row(
        "opening a snapshot",
        rows=FULL.loaded,
        first_answer_ms=first,
        whole_tree_ms=whole,
    )
    return first
