"""The default structure, unplanned: finds, inserts, scans of 100 keys and appends, beside absl."""

from collections.abc import Mapping

from benchmarks.harness import Report
from benchmarks.index.cells import describe_machine, on_disk, workload
from benchmarks.index.choices import DEFAULT, headrace
from benchmarks.index.maps import ABSL, OrderedMap, running
from benchmarks.index.rounds import ROUNDS, Round, median_ns, median_ratio, paired_round
from benchmarks.index.workload import Mix

_OURS = headrace(DEFAULT)
_UNSCANNED = headrace(DEFAULT, "headrace, never scanned")
_OVER_ABSL = ("find", "insert", "scan", "append")
_AFTER_SCANS = ("find", "insert")
_FINDS = 200_000
_FEWEST_SCANS, _MOST_SCANS = 2_000, 500_000


def bars() -> dict[str, str]:
    return {
        **{f"default-{operation}-over-absl": ">= 0.8" for operation in _OVER_ABSL},
        **{f"default-{operation}-after-scans": ">= 0.9" for operation in _AFTER_SCANS},
    }


def measure(report: Report, *, quick: bool) -> None:
    """Half of the keys are loaded; scans come before finds and inserts, and again after these.

    Scans are a twentieth of the keys, so that leaves whose entries have no order are also scanned
    for the first time. Appended are time stamps. What scans leave behind for finds and inserts is
    seen beside a map that was not scanned.
    """
    describe_machine(report)
    worst: dict[str, list[float]] = {name: [] for name in bars()}
    for keys in (1_000, 100_000, 1_000_000 if quick else 10_000_000):
        scattered, appended = _scattered(keys), _appended(keys)
        for operation in _OVER_ABSL:
            rounds = appended if operation == "append" else scattered
            over = round(median_ratio(rounds, operation, _OURS.label, ABSL.label), 3)
            worst[f"default-{operation}-over-absl"].append(over)
            further: dict[str, float] = {}
            if operation in _AFTER_SCANS:
                after = median_ratio(rounds, operation, _OURS.label, _UNSCANNED.label)
                further["over never scanned"] = round(after, 3)
                worst[f"default-{operation}-after-scans"].append(round(after, 3))
            report.row(
                "the default structure, nanoseconds, and its rates over absl's",
                keys=keys,
                operation=operation,
                headrace=round(median_ns(rounds, operation, _OURS.label), 1),
                absl=round(median_ns(rounds, operation, ABSL.label), 1),
                **{"over absl": over},
                **further,
            )
    for name, ratios in worst.items():
        report.bar(name, min(ratios))


def _scattered(keys: int) -> list[Round]:
    """Return rounds of scans, finds, inserts and scans of keys that arrive in random order."""
    scans = min(max(keys // 20, _FEWEST_SCANS), _MOST_SCANS)
    phases = {
        "first scan": (scans, Mix(scans=1.0)),
        "find": (_FINDS, Mix()),
        "insert": (keys // 2, Mix(inserts=1.0)),
        "scan": (scans, Mix(scans=1.0)),
    }
    skipped = {("first scan", _UNSCANNED.label)}
    return _rounds("uniform", keys, phases, (_OURS, _UNSCANNED, ABSL), skipped)


def _appended(keys: int) -> list[Round]:
    return _rounds("gaps", keys, {"append": (keys // 2, Mix(inserts=1.0))}, (_OURS, ABSL), set())


def _rounds(
    name: str,
    keys: int,
    phases: Mapping[str, tuple[int, Mix]],
    maps: tuple[OrderedMap, ...],
    skipped: set[tuple[str, str]],
) -> list[Round]:
    commands: dict[str, str] = {}
    begin = 0
    for operation, (count, _) in phases.items():
        commands[operation] = f"run {begin} {begin + count}"
        begin += count
    with (
        on_disk(workload(name, keys // 2, list(phases.values()))) as path,
        running(maps, path) as started,
    ):
        return [
            paired_round(started, commands, number, skipped=skipped)
            for number in range(ROUNDS[keys])
        ]
