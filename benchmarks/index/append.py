"""Blind append: write-only without a search for equal keys, against our own gapped array."""

from benchmarks.harness import Report
from benchmarks.index.cells import MIXES, describe_machine, per_s, ratio, sizes, workload
from benchmarks.index.choices import headrace as headrace_map
from benchmarks.index.choices import told
from benchmarks.index.datasets import PAPER
from benchmarks.index.maps import ABSL, OrderedMap
from benchmarks.index.unique import race

_BOUNDS = {"books": 1.9, "fb": 3.0, "osm": 3.0}
_MULTIMAP = OrderedMap(label="headrace multimap", kind="append")


def bars() -> dict[str, str]:
    return {f"append-{name}": f">= {bound}" for name, bound in _BOUNDS.items()}


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    size = sizes(quick=quick)
    mix = MIXES["write-only"]
    gapped = headrace_map(told(mix), "headrace gapped")
    for name in PAPER:
        made = workload(name, size.loaded, [(size.operations, mix)])
        rounds = race([ABSL, gapped, _MULTIMAP], made, size)
        over = {
            rival: ratio(rounds, _MULTIMAP.label, rival) for rival in ("headrace gapped", "absl")
        }
        rates = {label: round(per_s(sums) / 1e6, 3) for label, sums in rounds[0].items()}
        report.row(
            "blind append, million keys a second",
            keys=name,
            **rates,
            **{f"over {rival}": found for rival, found in over.items()},
        )
        report.bar(f"append-{name}", over["headrace gapped"])
