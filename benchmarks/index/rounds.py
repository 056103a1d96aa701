"""Paired rounds: maps are loaded anew and run the same commands by turns; medians count."""

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.index import answers
from benchmarks.index.cells import per_s
from benchmarks.index.maps import Running

ROUNDS: Mapping[int, int] = {1_000: 101, 100_000: 15, 1_000_000: 5, 10_000_000: 3}
"""Rounds by keys: a measurement of few keys takes microseconds."""

Round = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The answers of a round, by operation and by the map's label."""


def paired_round(
    maps: Sequence[Running],
    commands: Mapping[str, str],
    number: int,
    *,
    skipped: Collection[tuple[str, str]] = (),
) -> Round:
    """Load all maps, and run each command on all of them in turn; the order of turns rotates.

    Answers that differ from `absl`'s count as wrong.

    Parameters
    ----------
    commands : of the native benchmark, by the operation that they measure.
    number : of the round.
    skipped : operations, with the labels of maps that do not run them.
    """
    turns = [*maps[number % len(maps) :], *maps[: number % len(maps)]]
    for each in turns:
        each.ask("build")
    measured = {
        operation: {
            each.label: each.ask(command)
            for each in turns
            if (operation, each.label) not in skipped
        }
        for operation, command in commands.items()
    }
    for by_label in measured.values():
        for label, sums in by_label.items():
            wrong = sums["wrong"] + (sums["checksum"] != by_label["absl"]["checksum"])
            answers.count(wrong if label.startswith("headrace") else 0)
    return measured


def median_ratio(rounds: Sequence[Round], operation: str, ours: str, rival: str) -> float:
    """Return the median over rounds of the ratio of two maps' rates."""
    by_label = [measured[operation] for measured in rounds]
    return median(per_s(rates[ours]) / per_s(rates[rival]) for rates in by_label)


def median_ns(rounds: Sequence[Round], operation: str, label: str) -> float:
    """Return the median over rounds of an operation's processor time, in nanoseconds."""
    return median(1e9 / per_s(measured[operation][label]) for measured in rounds)
