"""Two cores: a reader beside the writer, and two writers on shards. Rates by elapsed time.

The same threads with a map each share nothing but the machine: no map can do better.
"""

from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import FULL, MIXES, describe_machine, on_disk, sizes, workload
from benchmarks.index.maps import OrderedMap, Running, running

SECTION = "concurrent"
_SHARED = OrderedMap(label="headrace shared", kind="shared")
_SHARDED = OrderedMap(label="headrace sharded", kind="sharded")


def bars() -> dict[str, str]:
    return {"reader-beside-writer": ">= 0.8", "two-shards": ">= 1.6"}


def measure(report: Report, *, quick: bool) -> None:
    """Measure at 10M keys also in a quick run: smaller maps are in the cores' caches."""
    describe_machine(report)
    size = replace(sizes(quick=quick), loaded=FULL.loaded)
    made = workload("osm", size.loaded, [(size.operations, MIXES["write-only"])])
    parts = 5 if quick else 11
    with on_disk(made) as path:
        with running([_SHARED], path) as (shared,):
            beside = [_part(shared, "beside", size.operations, parts, at) for at in range(parts)]
        with running([_SHARDED], path) as (sharded,):
            shards = [_part(sharded, "writers", size.operations, parts, at) for at in range(parts)]
    answers.count(sum(row["wrong"] for row in [*beside, *shards]))
    for title, rows in (("a reader beside the writer", beside), ("writers on shards", shards)):
        shown = [name for name in rows[0] if name.endswith("_per_s")]
        rates = {name: round(median(row[name] for row in rows)) for name in shown}
        report.row(title, loaded=size.loaded, **rates)
    report.bar(
        "reader-beside-writer",
        median(row["reader_beside_per_s"] / row["reader_alone_per_s"] for row in beside),
    )
    report.bar("two-shards", median(row["two_per_s"] / row["one_per_s"] for row in shards))


def _part(each: Running, verb: str, operations: int, parts: int, at: int) -> dict[str, Any]:
    """Run one of the parts that the operations are cut into."""
    begin, end = operations * at // parts, operations * (at + 1) // parts
    return each.ask(f"{verb} {begin} {end}")
