"""Latency of single inserts: a clock around each, in a pass of its own."""

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import MIXES, describe_machine, on_disk, sizes, workload
from benchmarks.index.choices import DEFAULT, headrace, told
from benchmarks.index.datasets import PAPER
from benchmarks.index.maps import ABSL, JUDY, running

_OURS = headrace(DEFAULT)
_FURTHER = (
    headrace(told(MIXES["write-only"]), "headrace gapped"),
    headrace({"leaf": "log"}, "headrace log"),
    JUDY,
)


def bars() -> dict[str, str]:
    return {"insert-p999-us": "<= 20"}


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    size = sizes(quick=quick)
    worst: list[float] = []
    for name in PAPER:
        made = workload(name, size.loaded, [(size.operations, MIXES["write-only"])])
        with on_disk(made) as path:
            for ordered_map in [_OURS, ABSL, *([] if quick else _FURTHER)]:
                with running([ordered_map], path) as (each,):
                    found = each.ask(f"latencies 0 {len(made.codes)}")
                parts = ("p50", "p99", "p999", "p9999", "most")
                microseconds = {f"{part}_us": found[f"{part}_ns"] / 1e3 for part in parts}
                report.row("latency of an insert", keys=name, map=each.label, **microseconds)
                if ordered_map.kind == "headrace":
                    answers.count(found["wrong"])
                if ordered_map is _OURS:
                    worst.append(microseconds["p999_us"])
    report.bar("insert-p999-us", max(worst))
