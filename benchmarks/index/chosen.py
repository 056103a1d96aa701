"""The planner's choice against the best of its grid, simple rules, and trials without a model.

Training has generators of its own (`benchmarks/index/training`), so none of the key sets here was
seen. Every configuration of the grid replays a cell once; the fastest of them, the choice and
those of the rivals then replay it again in rounds, by turns: all in eight, the choice and what may
still be the fastest in two dozen. A rate is the mean of the faster half of its rounds: in a virtual
machine the rate of one configuration drifts by up to a factor of two within seconds, with other
work on the caches that it shares, and of few runs the best of several would be above the choice.
One process at a time replays the whole cell, as after shorter turns the caches hold
another map, which slows configurations unequally. Maps take memory that has been written to
(`--touched`).
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from benchmarks.harness import Report, machine
from benchmarks.index import answers
from benchmarks.index.cells import (
    MIXES,
    Sizes,
    describe_machine,
    on_disk,
    per_s,
    workload,
)
from benchmarks.index.choices import choose, headrace, told
from benchmarks.index.datasets import NAMES
from benchmarks.index.maps import OrderedMap, running
from benchmarks.index.workload import INSERT, MISS, Workload
from benchmarks.kept import KeptRows
from headrace.host_memory import last_level_cache_bytes

_FULL = Sizes(loaded=4_000_000, operations=4_000_000, rounds=24)
_QUICK = Sizes(loaded=400_000, operations=1_000_000, rounds=24)
_QUICK_CELLS = (("osm", "read-only"), ("fb", "85"), ("gaps", "50"), ("zipf", "scans"))
_FINALISTS = 4
_ROUNDS_OF_ALL = 8
_NEAR = 0.4
"""Share that one round's rate may be below the fastest by noise; of n rounds, over their root."""
_BYTES_PER_KEY = 25
"""Of most configurations, with values of 8 bytes."""
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
    kept = KeptRows("index", "chosen", quick=quick, folder=report.state_folder, quiet=("rates",))
    cells = _QUICK_CELLS if quick else [(name, mix) for name in NAMES for mix in MIXES]
    for name, mix in cells:
        _cell(kept, name, mix, _QUICK if quick else _FULL)
        row = kept.rows[_key(name, mix)]
        answers.count(row["wrong"])
        shown = {each: value for each, value in row.items() if each != "wrong"}
        report.row("choices", keys=name, mix=mix, **shown)
    rows = [kept.rows[_key(name, mix)] for name, mix in cells]
    report.attach("grid", kept.rows)
    _apart(report, rows)
    report.bar("chosen-within-5-percent", mean(row["of_best"] >= 0.95 for row in rows))
    report.bar("chosen-worst", 1.0 - min(row["of_best"] for row in rows))
    for rival in _RIVALS:
        report.bar(f"over-{rival.replace(' ', '-')}", mean(row[f"over {rival}"] for row in rows))
    report.bar("choosing-s", max(row["seconds"] for row in rows))
    kept.clear()


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
    from headrace.index.plan.grid import grid

    key = _key(name, mix)
    if key in kept.rows:
        return
    scans = mix == "scans"
    count = size.operations // (10 if scans else 1)
    made = workload(name, size.loaded, [(count, MIXES[mix])])
    every = f"{key} grid"
    if every not in kept.rows:
        rates, wrong = _grid_rates(made, [asdict(each) for each in grid()])
        kept.add(every, {"rates": rates, "wrong": wrong})
    rates, wrong = kept.rows[every]["rates"], kept.rows[every]["wrong"]
    choice = choose(made)
    best = sorted(range(len(rates)), key=lambda place: -rates[place])[:_FINALISTS]
    finalists = {grid()[place].name: asdict(grid()[place]) for place in best}
    rivals: dict[str, Mapping[str, Any]] = {
        "chosen": choice.settings,
        "always gapped": told(MIXES[mix]),
        "simple rule": _simple_rule(made),
        "trials only": _by_trials_only(made, choice.seconds),
    }
    final, more_wrong = _final_rates(made, {**finalists, **rivals}, size)
    chosen = final["chosen"]
    row = {
        "chosen": choice.name,
        "best": max(finalists, key=lambda each: final[each]),
        "of_best": chosen / max(final.values()),
        **{f"over {rival}": chosen / final[rival] for rival in _RIVALS},
        "chosen_per_s": round(chosen),
        "seconds": round(choice.seconds, 2),
        "in_cache": _BYTES_PER_KEY * _keys_at_the_end(made) <= (last_level_cache_bytes() or 0),
        "wrong": wrong + more_wrong,
    }
    kept.add(key, row)


def _grid_rates(made: Workload, grid: list[dict[str, Any]]) -> tuple[list[float], int]:
    """Return operations a second of every configuration, and wrong answers."""
    rates: list[float] = []
    wrong = 0
    with on_disk(made) as path:
        for settings in grid:
            found = _replayed(headrace(settings, touched_bytes=_touched(made)), path, made)
            rates.append(per_s(found))
            wrong += found["wrong"]
    return rates, wrong


def _replayed(map_: OrderedMap, path: Path, made: Workload) -> dict[str, Any]:
    with running([map_], path) as (started,):
        return started.ask(f"run 0 {len(made.codes)}")


def _touched(made: Workload) -> int:
    """Return bytes for twice the size of most configurations, and the arrays that are loaded."""
    return 80 * _keys_at_the_end(made)


def _keys_at_the_end(made: Workload) -> int:
    """Return the loaded keys and the inserted ones, of which a few may be erased again."""
    return len(made.loaded) + int((made.operations == INSERT).sum())


def _final_rates(
    made: Workload, settings: Mapping[str, Mapping[str, Any]], size: Sizes
) -> tuple[dict[str, float], int]:
    """Return rates by name, and wrong answers; equal configurations have one rate."""
    distinct: dict[str, str] = {}
    for name, each in settings.items():
        distinct.setdefault(repr(sorted(each.items())), name)
    runner = {name: distinct[repr(sorted(each.items()))] for name, each in settings.items()}
    maps = {
        name: headrace(settings[name], f"headrace {name}", touched_bytes=_touched(made))
        for name in distinct.values()
    }
    rates: dict[str, list[float]] = {name: [] for name in maps}
    wrong = 0
    with on_disk(made) as path:
        for number in range(size.rounds):
            names = [*maps]
            if number >= _ROUNDS_OF_ALL:
                least = (1 - _NEAR / math.sqrt(number)) * max(map(_rate, rates.values()))
                near = {name for name in maps if _rate(rates[name]) >= least}
                names = [name for name in maps if name in near or name == runner["chosen"]]
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                result = _replayed(maps[name], path, made)
                rates[name].append(per_s(result))
                wrong += result["wrong"]
    return {name: _rate(rates[runner[name]]) for name in settings}, wrong


def _rate(rates: Sequence[float]) -> float:
    """Return the mean of the faster half."""
    return mean(sorted(rates)[len(rates) // 2 :])


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
    from headrace.index.plan.grid import grid
    from headrace.index.run.trial import trial
    from headrace.index.trace import Trace

    begun = time.perf_counter()
    kept = made.operations != MISS
    trace = Trace(loaded=made.loaded, operations=made.operations[kept], keys=made.codes[kept])
    sample = survey_trace(trace).sample
    tried: list[tuple[float, int]] = []
    for place in np.random.default_rng(seed).permutation(len(grid())).tolist():
        tried.append((trial(grid()[place], sample).operations_per_s, place))
        if time.perf_counter() - begun > seconds:
            break
    return asdict(grid()[max(tried)[1]])
