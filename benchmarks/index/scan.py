"""Scans of 100 keys with a few inserts between them, in the chosen configuration."""

from dataclasses import replace

from benchmarks.harness import Report
from benchmarks.index.cells import MIXES, describe_machine, per_s, ratio, sizes, workload
from benchmarks.index.choices import choose_or_default, headrace, told
from benchmarks.index.datasets import PAPER
from benchmarks.index.maps import ABSL, JUDY, STANDARD
from benchmarks.index.unique import race

_RIVALS = ("absl", "judy", "std::map", "headrace gapped")


def bars() -> dict[str, str]:
    return {"scan-over-absl": ">= 1"}


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    size = sizes(quick=quick)
    size = replace(size, operations=size.operations // 20)
    mix = MIXES["scans"]
    worst: list[float] = []
    for name in PAPER:
        made = workload(name, size.loaded, [(size.operations, mix)])
        choice = choose_or_default(made)
        maps = [
            ABSL,
            JUDY,
            STANDARD,
            headrace(told(mix), "headrace gapped"),
            headrace(choice.settings),
        ]
        rounds = race(maps, made, size)
        rates = {label: round(per_s(sums) / 1e6, 4) for label, sums in rounds[0].items()}
        over = {f"over {rival}": ratio(rounds, "headrace", rival) for rival in _RIVALS}
        report.row(
            "scans of 100 with 5% inserts, million operations a second",
            keys=name,
            **rates,
            chosen=choice.name,
        )
        report.row("scans, headrace over rivals", keys=name, **over)
        found = over["over absl"]
        worst += [found] if found is not None else []
    report.bar("scan-over-absl", min(worst))
