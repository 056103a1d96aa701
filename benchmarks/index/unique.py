"""Unique keys: rates against the rivals by key set and mix (Figures 6.6 and 6.7 as tables)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Report
from benchmarks.index import answers
from benchmarks.index.cells import (
    FULL,
    MIXES,
    QUICK,
    Sizes,
    describe_machine,
    on_disk,
    per_s,
    ratio,
    sizes,
    workload,
)
from benchmarks.index.choices import Choice, choose_or_default, headrace, told
from benchmarks.index.datasets import NAMES, PAPER
from benchmarks.index.maps import (
    ABSL,
    JUDY,
    STANDARD,
    VECTOR,
    OrderedMap,
    check,
    running,
    turns,
    wrong_answers,
)
from benchmarks.index.workload import Mix, Workload
from benchmarks.kept import KeptRows

_BOUNDS: Mapping[str, Mapping[str, float]] = {
    "books": {"write-only": 2.6, "85": 3.0, "15": 5.0, "read-only": 4.7},
    "fb": {"write-only": 3.6, "85": 3.7, "15": 3.4, "read-only": 3.4},
    "osm": {"write-only": 2.1, "85": 2.1, "15": 1.8, "read-only": 1.8},
}
_RIVALS = ("absl", "judy", "std::map", "sorted vector", "headrace gapped")
_FURTHER = ("50", "erases")
_VECTOR_CHANGES = 100
_LARGE = 200_000_000

Round = Mapping[str, Mapping[str, Any]]


def bars() -> dict[str, str]:
    cells = {
        f"unique-{name}-{mix}": f">= {bound}"
        for name, bounds in _BOUNDS.items()
        for mix, bound in bounds.items()
    }
    return {**cells, "over-best-rival": ">= 1.2"}


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    kept = KeptRows(
        "index", "unique", quick=quick, folder=report.state_folder, quiet=("headrace", *_RIVALS)
    )
    worst: list[float] = []
    for name, mix in _cells(quick=quick):
        has_bar = mix in _BOUNDS.get(name, {})
        size = sizes(quick=quick) if has_bar else replace(sizes(quick=quick), rounds=1)
        rounds = _rounds(kept, name, mix, size)
        _tables(report, name, mix, rounds)
        if has_bar:
            over = {rival: ratio(rounds, "headrace", rival) for rival in _RIVALS}
            report.bar(f"unique-{name}-{mix}", over["absl"])
            worst.append(min(found for found in over.values() if found is not None))
    report.bar("over-best-rival", min(worst))
    if not quick:
        _tables(report, "fb", "85", _rounds(kept, "fb", "85", _paper_sizes(), at_once=False))
    kept.clear()


def _cells(*, quick: bool) -> list[tuple[str, str]]:
    paper = [(name, mix) for name in PAPER for mix in _BOUNDS[name]]
    if quick:
        return [*paper, ("osm", "erases")]
    others = [(name, mix) for name in NAMES if name not in PAPER for mix in ("read-only", "50")]
    return [*paper, *((name, mix) for name in PAPER for mix in _FURTHER), *others]


def _paper_sizes() -> Sizes:
    return Sizes(loaded=FULL.loaded, operations=_LARGE, rounds=1)


def _rounds(
    kept: KeptRows, name: str, mix: str, size: Sizes, *, at_once: bool = True
) -> list[Round]:
    """Return the rounds of a cell; those of an interrupted run are kept."""
    keys = [f"{name} {mix} {size.operations} {number}" for number in range(size.rounds)]
    if not all(key in kept.rows for key in keys):
        made = workload(name, size.loaded, [(size.operations, MIXES[mix])])
        choice = choose_or_default(made)
        for number, key in enumerate(keys):
            if key not in kept.rows:
                found = _round(made, mix, choice, size, number, at_once=at_once)
                kept.add(key, {**found, "choice": choice.name})
    rounds = [{k: v for k, v in kept.rows[key].items() if k != "choice"} for key in keys]
    for each in rounds:
        answers.count(wrong_answers(each))
    return rounds


def _round(
    made: Workload, mix: str, choice: Choice, size: Sizes, number: int, *, at_once: bool
) -> dict[str, Any]:
    """Run one round of a cell: the maps take turns, or one runs after the other."""
    maps = [
        ABSL,
        JUDY,
        headrace(told(MIXES[mix]), "headrace gapped"),
        headrace(choice.settings),
    ]
    groups = [maps] if at_once else [[each] for each in maps]
    found: dict[str, Any] = {}
    with on_disk(made) as path:
        for group in groups:
            with running(group, path) as started:
                found.update(turns(started, size.operations, slices=size.slices))
                for each in started:
                    found[each.label]["memory"] = each.ask("memory")
                found[group[-1].label]["wrong"] += check(started, size.operations)
        if number == 0 and at_once:
            found.update(_bounded(path, MIXES[mix], size))
    return found


def _bounded(path: Path, mix: Mix, size: Sizes) -> dict[str, Any]:
    """Run the slow rivals: on a sorted vector few of the changes, as each moves half of it.

    In a quick run the tree of the standard library replays a fifth.
    """
    changes = mix.inserts + mix.erases
    few = round(_VECTOR_CHANGES / changes) if changes else size.operations
    part = size.operations // 5 if size == QUICK else size.operations
    found: dict[str, Any] = {}
    for each, most in ((STANDARD, part), (VECTOR, min(few, size.operations))):
        with running([each], path) as (slow,):
            sums = turns([slow], most, slices=1)[slow.label]
            # the sum of scanned keys is of another part than the others'
            found[slow.label] = {**sums, "checksum": 0, "memory": slow.ask("memory")}
    return found


def _tables(report: Report, name: str, mix: str, rounds: Sequence[Round]) -> None:
    first = rounds[0]
    operations = first["absl"]["operations"]
    cell = {"keys": name, "mix": mix, "operations": operations}
    rates = {label: round(per_s(sums) / 1e6, 3) for label, sums in first.items()}
    report.row("rates of unique keys (Figure 6.6), million operations a second", **cell, **rates)
    over = {f"over {rival}": ratio(list(rounds), "headrace", rival) for rival in _RIVALS}
    report.row("headrace over rivals, medians of rounds", **cell, **over)
    bytes_per_key = {
        label: round(sums["memory"]["resident"] / sums["memory"]["size"], 2)
        for label, sums in first.items()
    }
    report.row("memory at the end (Figure 6.7), bytes a key", **cell, **bytes_per_key)


def race(maps: Sequence[OrderedMap], made: Workload, size: Sizes) -> list[Round]:
    """Return rounds of maps on a workload, for other sections; wrong answers are counted."""
    rounds: list[Round] = []
    with on_disk(made) as path:
        for _ in range(size.rounds):
            with running(maps, path) as started:
                rounds.append(turns(started, len(made.codes), slices=size.slices))
                answers.count(check(started, len(made.codes)))
            answers.count(wrong_answers(rounds[-1]))
    return rounds
