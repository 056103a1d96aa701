"""A workload whose mix changes (Figure 3.5): rates over time, and what adaptation is worth."""

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import describe_machine, on_disk, per_s, workload
from benchmarks.index.choices import DEFAULT, headrace
from benchmarks.index.maps import ABSL, running
from benchmarks.index.workload import Mix

_PHASES = {
    "read-heavy": Mix(inserts=0.15),
    "write-heavy": Mix(inserts=0.85),
    "write-only": Mix(inserts=1.0),
}
_SLICES = 3
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
