"""The map with std::map's interface, by iterators, beside `std::map` and `absl::btree_map`."""

from benchmarks.harness import Report
from benchmarks.index.cells import describe_machine, on_disk, workload
from benchmarks.index.maps import ABSL, STANDARD, OrderedMap, running
from benchmarks.index.rounds import ROUNDS, median_ns, median_ratio, paired_round
from benchmarks.index.workload import Mix

_OURS = OrderedMap(label="headrace", kind="map")
_GAPPED = OrderedMap(label="headrace gapped", kind="map", settings={"leaf": "gapped"})
_MAPS = (_OURS, _GAPPED, ABSL, STANDARD)
_OPERATIONS = ("insert", "find", "iterate")
_FINDS = 200_000


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
        inserts = keys // 2
        commands = {
            "insert": f"run 0 {inserts}",
            "find": f"run {inserts} {inserts + _FINDS}",
            "iterate": "iterate",
        }
        phases = [(inserts, Mix(inserts=1.0)), (_FINDS, Mix())]
        with on_disk(workload("uniform", inserts, phases)) as path, running(_MAPS, path) as maps:
            rounds = [paired_round(maps, commands, number) for number in range(ROUNDS[keys])]
        for operation in _OPERATIONS:
            over = {
                each.label: round(median_ratio(rounds, operation, each.label, "absl"), 3)
                for each in _MAPS
                if each is not ABSL
            }
            report.row(
                "by iterators, nanoseconds, and rates over absl's",
                keys=keys,
                operation=operation,
                **{
                    each.label: round(median_ns(rounds, operation, each.label), 2) for each in _MAPS
                },
                **{f"{label} over absl": ratio for label, ratio in over.items()},
            )
            worst[operation].append(over[_OURS.label])
    for operation, ratios in worst.items():
        report.bar(f"map-{operation}-over-absl", min(ratios))
