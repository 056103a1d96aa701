"""The planner's choice against the best of its grid, simple rules, and trials without a model.

Training has generators of its own (`benchmarks/index/training`), so none of the key sets here was
seen. The choice and another configuration take turns of some thousand operations, so that both have
the same machine, and their ratio counts. In turns with the choice all others of the grid run a part
of a cell, the faster ones of them all of it, and the fastest of those run beside it in pairs, as do
the rivals' choices.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.harness import Report, machine
from benchmarks.index import answers
from benchmarks.index.cells import (
    MIXES,
    Sizes,
    describe_machine,
    workload,
)
from benchmarks.index.choices import choose, told
from benchmarks.index.datasets import NAMES
from benchmarks.index.turns import Turns, turns
from benchmarks.index.workload import INSERT, MISS, Workload
from benchmarks.kept import KeptRows
from headrace.host_memory import last_level_cache_bytes
from headrace.index.configuration import Configuration
from headrace.index.plan.grid import grid
from headrace.index.plan.trial import TOGETHER

_FULL = Sizes(loaded=4_000_000, operations=4_000_000, rounds=2)
_QUICK = Sizes(loaded=400_000, operations=1_000_000, rounds=4)
_QUICK_CELLS = (("osm", "read-only"), ("fb", "85"), ("gaps", "50"), ("zipf", "scans"))
_PART = 1 / 4
_WHOLE, _FINALISTS = 12, 4
"""Of the grid, those that run whole cells, and those that run beside the choice in pairs."""
_BYTES_PER_KEY = 25
"""Of most configurations, with values of 8 bytes."""
_NOISE_RUNS = 16
_RIVALS = ("always gapped", "simple rule", "trials only")


def bars() -> dict[str, str]:
    return {
        "chosen-within-5-percent": ">= 0.9",
        "chosen-worst": "<= 0.15",
        "over-always-gapped": ">= 1",
        "over-simple-rule": ">= 1",
        "over-trials-only": ">= 1",
        "choosing-s": "<= 10",
    }


def measure(report: Report, *, quick: bool) -> None:
    describe_machine(report)
    report.note(f"choices: on {machine()['processor']}, rows kept of it alone")
    kept = KeptRows("index", "chosen", quick=quick, folder=report.state_folder)
    cells = _QUICK_CELLS if quick else [(name, mix) for name in NAMES for mix in MIXES]
    for name, mix in cells:
        _cell(kept, name, mix, _QUICK if quick else _FULL)
        row = kept.rows[_key(name, mix)]
        answers.count(row["wrong"])
        shown = {each: value for each, value in row.items() if each != "wrong"}
        report.row("choices", keys=name, mix=mix, **shown)
    rows = [kept.rows[_key(name, mix)] for name, mix in cells]
    _apart(report, rows)
    report.bar("chosen-within-5-percent", mean(row["of_best"] >= 0.95 for row in rows))
    report.bar("chosen-worst", 1.0 - min(row["of_best"] for row in rows))
    for rival in _RIVALS:
        report.bar(f"over-{rival.replace(' ', '-')}", mean(row[f"over {rival}"] for row in rows))
    report.bar("choosing-s", max(row["seconds"] for row in rows))
    _noise(report)
    kept.clear()


def _noise(report: Report) -> None:
    """Report the deviation of ratios of two configurations: of runs one after another, by turns."""
    pair = [{"leaf": "hashed", "fragment_keys": keys, "fill": 0.5} for keys in (512, 2048)]
    made = workload("osm", _QUICK.loaded, [(_QUICK.operations, MIXES["50"])])
    with turns(made) as process:
        apart = [[process.rates([each])[0] for each in pair] for _ in range(_NOISE_RUNS)]
        by_turns = [process.rates(pair) for _ in range(_NOISE_RUNS)]
    for how, runs in (("one after another", apart), ("by turns", by_turns)):
        logs = [math.log(first / second) for first, second in runs]
        report.row("deviation of ratios of two rates", runs=how, deviation=round(stdev(logs), 4))


def _key(name: str, mix: str) -> str:
    """Return the key of a cell's kept row: on another processor it is measured again."""
    return f"{machine()['processor']}: {name} {mix}"


def _apart(report: Report, rows: list[dict[str, Any]]) -> None:
    """Report cells whose keys fit into the last-level cache apart from those whose do not."""
    for cells, fit in (("in the last-level cache", True), ("beyond it", False)):
        some = [row for row in rows if row["in_cache"] == fit]
        if some:
            report.row(
                "choices, by where the keys are at the end",
                keys=cells,
                cells=len(some),
                within_5_percent=round(mean(row["of_best"] >= 0.95 for row in some), 3),
                worst=round(1.0 - min(row["of_best"] for row in some), 3),
                over_trials_only=round(mean(row["over trials only"] for row in some), 3),
            )


def _cell(kept: KeptRows, name: str, mix: str, size: Sizes) -> None:
    key = _key(name, mix)
    if key in kept.rows:
        return
    scans = mix == "scans"
    count = size.operations // (10 if scans else 1)
    made = workload(name, size.loaded, [(count, MIXES[mix])])
    choice = choose(made)
    rivals: dict[str, Mapping[str, Any]] = {
        "always gapped": told(MIXES[mix]),
        "simple rule": _simple_rule(made),
        "trials only": _by_trials_only(made, choice.seconds),
    }
    with turns(made) as process:
        fastest = _fastest(process, choice.settings, round(_PART * count))
        over = {
            configuration.name: process.over(choice.settings, asdict(configuration), size.rounds)
            for configuration in fastest
        }
        best = min(over, key=lambda each: over[each])
        row = {
            "chosen": choice.name,
            "best": best if over[best] < 1 else choice.name,
            "of_best": min(over[best], 1.0),
            **{
                f"over {rival}": process.over(choice.settings, settings, size.rounds)
                for rival, settings in rivals.items()
            },
            "seconds": round(choice.seconds, 2),
            "in_cache": _BYTES_PER_KEY * _keys_at_the_end(made) <= (last_level_cache_bytes() or 0),
            "wrong": process.wrong,
        }
    kept.add(key, row)


def _fastest(process: Turns, chosen: Mapping[str, Any], part: int) -> Sequence[Configuration]:
    """Return the fastest of the grid but for the choice, by runs of it with others by turns."""
    left = [each for each in grid() if asdict(each) != chosen]
    for count, operations in ((_WHOLE, part), (_FINALISTS, None)):
        over: dict[Configuration, float] = {}
        for group in _groups(left, TOGETHER - 1):
            own, *others = process.rates([chosen, *map(asdict, group)], operations)
            over |= {each: rate / own for each, rate in zip(group, others, strict=True)}
        left = sorted(left, key=lambda each: -over[each])[:count]
    return left


def _keys_at_the_end(made: Workload) -> int:
    """Return the loaded keys and the inserted ones, of which a few may be erased again."""
    return len(made.loaded) + int((made.operations == INSERT).sum())


def _simple_rule(made: Workload) -> Mapping[str, Any]:
    """Return a configuration by three features: shares of scans and inserts, and of appends."""
    shares = np.bincount(made.operations, minlength=5) / len(made.operations)
    inserted = made.codes[made.operations == 1]
    appends = float((inserted > made.loaded[-1]).mean()) if len(inserted) else 0.0
    if shares[3] > 0.5:
        return {"leaf": "gapped", "insert_fraction": round(float(shares[1]), 3)}
    if appends > 0.5:
        return {"leaf": "gapped", "insert_fraction": 1.0}
    return {"leaf": "hashed", "fill": 0.75 if shares[1] < 0.5 else 0.6}


def _by_trials_only(made: Workload, seconds: float, seed: int = 0) -> Mapping[str, Any]:
    """Return the best of as many trials, in random order, as choosing took the time of."""
    from headrace.index.measure.survey import survey_trace
    from headrace.index.run.trial import trial
    from headrace.index.trace import Trace

    begun = time.perf_counter()
    kept = made.operations != MISS
    trace = Trace(loaded=made.loaded, operations=made.operations[kept], keys=made.codes[kept])
    sample = survey_trace(trace).sample
    tried: list[tuple[float, int]] = []
    order = np.random.default_rng(seed).permutation(len(grid())).tolist()
    for places in _groups(order, TOGETHER):
        results = trial([grid()[place] for place in places], sample)
        tried += zip([each.operations_per_s for each in results], places, strict=True)
        if time.perf_counter() - begun > seconds:
            break
    return asdict(grid()[max(tried)[1]])


def _groups(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[first : first + size] for first in range(0, len(items), size)]
