"""Memory after inserts, compact, and with 4-byte values; keys moved by one change of structure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import MIXES, describe_machine, on_disk, sizes, workload
from benchmarks.index.choices import COMPACT, DEFAULT, headrace, told
from benchmarks.index.datasets import NAMES, PAPER
from benchmarks.index.maps import ABSL, JUDY, STANDARD, OrderedMap, running, turns

_CASES: Mapping[str, tuple[str, OrderedMap]] = {
    "bytes-per-key": ("inserted", headrace(DEFAULT)),
    "bytes-per-key-compact": ("loaded", headrace(COMPACT, "headrace compact")),
    "bytes-per-key-4-byte-values": (
        "loaded",
        headrace(COMPACT, "headrace compact, 4-byte values", value_bytes=4),
    ),
}
_OTHERS = (
    headrace(told(MIXES["write-only"]), "headrace gapped"),
    headrace({"leaf": "log"}, "headrace log"),
    headrace(DEFAULT, "headrace, 4-byte values", value_bytes=4),
    ABSL,
)


def bars() -> dict[str, str]:
    return {
        "bytes-per-key": "<= 28",
        "bytes-per-key-compact": "<= 20",
        "bytes-per-key-4-byte-values": "<= 16",
        "largest-change-keys": "<= 65536",
    }


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    report.note(
        "bytes a key: resident memory, since before the map was made; what malloc handed out, in "
        "the next column, counts the address space beside aligned blocks, which is never touched; "
        "bars: the worst of books, fb and osm"
    )
    worst: dict[str, list[float]] = {bar: [] for bar in _CASES}
    moved: list[int] = []
    for name in PAPER if quick else NAMES:
        size = sizes(quick=quick)
        made = workload(name, size.loaded, [(size.operations, MIXES["write-only"])])
        with on_disk(made) as path:
            for bar, (state, ordered_map) in _CASES.items():
                found = _measured(report, name, state, ordered_map, path, len(made.codes))
                worst[bar] += [found["bytes_per_key"]] if name in PAPER else []
                moved.append(found["largest_change_keys"])
            for other in [*_OTHERS, *([] if quick else [JUDY, STANDARD])]:
                found = _measured(report, name, "inserted", other, path, len(made.codes))
                moved.append(found.get("largest_change_keys", 0))
    for bar, figures in worst.items():
        report.bar(bar, max(figures))
    report.bar("largest-change-keys", max(moved))


def _measured(
    report: Report, name: str, state: str, ordered_map: OrderedMap, path: Path, inserts: int
) -> dict[str, Any]:
    """Load a map, insert if it is to be `inserted`, and read its memory and statistics."""
    with running([ordered_map], path) as (each,):
        if state == "inserted":
            sums = turns([each], inserts, slices=1)[each.label]
            answers.count(sums["wrong"] if ordered_map.kind == "headrace" else 0)
        memory = each.ask("memory")
        described = each.ask("statistics") if ordered_map.kind == "headrace" else {}
    shown = ("depth", "mean_depth", "changes", "largest_change_keys")
    found = {
        "bytes_per_key": memory["resident"] / memory["size"],
        **{what: described[what] for what in shown if what in described},
    }
    report.row(
        "memory, bytes a key",
        keys=name,
        map=ordered_map.label,
        state=state,
        count=memory["size"],
        bytes_per_key=round(found["bytes_per_key"], 2),
        from_malloc=round(memory["allocated"] / memory["size"], 2),
        own_count=round(described["bytes"] / memory["size"], 2) if described else None,
        **{what: found.get(what) for what in shown},
    )
    return found
