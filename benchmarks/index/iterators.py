"""The map with std::map's interface, by iterators, beside `std::map` and `absl::btree_map`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import describe_machine, on_disk, per_s, workload
from benchmarks.index.maps import ABSL, STANDARD, OrderedMap, Running, running
from benchmarks.index.workload import Mix

_OURS = OrderedMap(label="headrace", kind="map")
_GAPPED = OrderedMap(label="headrace gapped", kind="map", settings={"leaf": "gapped"})
_MAPS = (_OURS, _GAPPED, ABSL, STANDARD)
_OPERATIONS = ("insert", "find", "iterate")
_ROUNDS = {1_000: 101, 100_000: 15, 1_000_000: 5, 10_000_000: 3}
"""Rounds by keys: a measurement of few keys takes microseconds."""
_FINDS = 200_000

Round = Mapping[str, Mapping[str, Any]]


def bars() -> dict[str, str]:
    return {
        "map-find-over-absl": ">= 1",
        "map-insert-over-absl": ">= 1",
        "map-iterate-over-absl": ">= 0.8",
    }


def measure(report: Report, *, quick: bool) -> None:
    """Half of the keys are loaded, half inserted in random order; then finds and one walk."""
    describe_machine(report)
    worst: dict[str, list[float]] = {operation: [] for operation in _OPERATIONS}
    for keys in (1_000, 100_000, 1_000_000 if quick else 10_000_000):
        phases = [(keys // 2, Mix(inserts=1.0)), (_FINDS, Mix())]
        with (
            on_disk(workload("uniform", keys // 2, phases)) as path,
            running(_MAPS, path) as maps,
        ):
            rounds = [_round(maps, keys // 2, number) for number in range(_ROUNDS[keys])]
        for operation in _OPERATIONS:
            by_label = [each[operation] for each in rounds]
            over = {
                label: round(_median_ratio(by_label, label, "absl"), 3)
                for label in by_label[0]
                if label != "absl"
            }
            report.row(
                "by iterators, nanoseconds, and rates over absl's",
                keys=keys,
                operation=operation,
                **{label: round(_ns(by_label, label), 2) for label in by_label[0]},
                **{f"{label} over absl": ratio for label, ratio in over.items()},
            )
            worst[operation].append(over[_OURS.label])
    for operation, ratios in worst.items():
        report.bar(f"map-{operation}-over-absl", min(ratios))


def _round(maps: list[Running], inserts: int, number: int) -> dict[str, dict[str, Any]]:
    """Load, insert, find and walk, all maps in turn; the order of turns rotates."""
    commands = {
        "insert": f"run 0 {inserts}",
        "find": f"run {inserts} {inserts + _FINDS}",
        "iterate": "iterate",
    }
    turns = maps[number % len(maps) :] + maps[: number % len(maps)]
    for each in turns:
        each.ask("build")
    found = {
        operation: {each.label: each.ask(command) for each in turns}
        for operation, command in commands.items()
    }
    for by_label in found.values():
        for label, sums in by_label.items():
            wrong = sums["wrong"] + (sums["checksum"] != by_label["absl"]["checksum"])
            answers.count(wrong if label.startswith("headrace") else 0)
    return found


def _median_ratio(rounds: Sequence[Round], ours: str, rival: str) -> float:
    return median(per_s(each[ours]) / per_s(each[rival]) for each in rounds)


def _ns(rounds: Sequence[Round], label: str) -> float:
    return median(1e9 / per_s(each[label]) for each in rounds)
