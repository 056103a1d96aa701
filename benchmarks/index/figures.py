"""Figures 6.1 and 6.4: what parameters of gapped arrays and of fragmented logs trade."""

from collections.abc import Mapping
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import MIXES, describe_machine, on_disk, per_s, ratio, sizes, workload
from benchmarks.index.choices import headrace, told
from benchmarks.index.datasets import PAPER
from benchmarks.index.maps import running
from benchmarks.index.unique import race
from benchmarks.index.workload import Mix

_LIMITS = {  # three configurations of Msi and Msh, as in Figure 6.1
    "Msi 1, Msh 16": {"max_search": 1.0, "max_shifts": 16.0},
    "Msi 4, Msh 128": {"max_search": 4.0, "max_shifts": 128.0},
    "Msi 8, Msh 1024": {"max_search": 8.0, "max_shifts": 1024.0},
}
_NO_LIMITS = {"max_search": 0.0, "max_shifts": 0.0}  # the cost model's expectation alone


def bars() -> dict[str, str]:
    return {}


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    _gapped(report, quick=quick)
    _frontier(report, quick=quick)


def _gapped(report: Report, *, quick: bool) -> None:
    """Write-only rates of gapped arrays by their limits, over the cost model's alone."""
    size = sizes(quick=quick)
    mix = MIXES["write-only"]
    base = {**told(mix), **_NO_LIMITS}
    maps = [headrace(base, "headrace cost model")]
    maps += [headrace({**base, **more}, f"headrace {name}") for name, more in _LIMITS.items()]
    for name in ("osm",) if quick else PAPER:
        made = workload(name, size.loaded, [(size.operations, mix)])
        rounds = race(maps, made, size)
        over = {each: ratio(rounds, f"headrace {each}", maps[0].label) for each in _LIMITS}
        report.row("gapped arrays over the cost model alone (Figure 6.1)", keys=name, **over)


def _logs(*, quick: bool) -> list[Mapping[str, Any]]:
    keys = (32, 128, 512) if quick else (16, 32, 64, 128, 256, 512, 1024, 2048)
    most = (4096,) if quick else (256, 4096, 65_536)
    first = (16,) if quick else (4, 32)
    return [
        {
            "leaf": "log",
            "fragment_keys": fragment_keys,
            "fragments": fragments,
            "initial_fragments": initial,
            "fingerprints": fingerprints,
        }
        for fragment_keys in keys
        for fragments in most
        for initial in first
        for fingerprints in (False, True)
    ]


def _frontier(report: Report, *, quick: bool) -> None:
    """Latencies of inserts and then finds of fragmented logs, and which are on the Pareto front."""
    loaded, count = (200_000, 400_000) if quick else (2_500_000, 2_500_000)
    made = workload("osm", loaded, [(count, Mix(inserts=1.0)), (count, Mix())])
    points: list[tuple[float, float]] = []
    with on_disk(made) as path:
        for settings in _logs(quick=quick):
            with running([headrace(settings)], path) as (each,):
                parts = [each.ask(f"run {at} {at + count}") for at in (0, count)]
            answers.count(sum(part["wrong"] for part in parts))
            insert, find = (1e9 / per_s(part) for part in parts)
            points.append((insert, find))
    for settings, point in zip(_logs(quick=quick), points, strict=True):
        front = not any(
            other != point and other[0] <= point[0] and other[1] <= point[1] for other in points
        )
        report.row(
            "fragmented logs on osm (Figure 6.4), ns",
            **{name: value for name, value in settings.items() if name != "leaf"},
            insert=round(point[0], 1),
            find=round(point[1], 1),
            pareto="yes" if front else "",
        )
