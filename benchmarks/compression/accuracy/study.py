"""The runs of the accuracy study, resumable: each finished one is a line of results.jsonl.

::

    PYTHONPATH=. .venv/bin/python -m benchmarks.compression.accuracy [--jobs 2]

continues where it was stopped. What the bars compare comes first, seed by seed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.compression.accuracy.tasks import TASKS, Task
from benchmarks.compression.accuracy.training import RULES, train, train_batches
from headrace.compression.adapt.accordion import Accordion
from headrace.compression.adapt.controls import AdaQS, HandSet
from headrace.compression.adapt.schedule import LevelSchedule

FOLDER = Path("build/accuracy")
KEPT = Path(__file__).parent / "kept.jsonl"
"""Finished runs that git has, without their decisions: they stand in for runs not made here."""
SEEDS = range(22, 32)
"""None of those with which the levels, epochs and rates of the tasks were chosen."""
REGIMES = (
    "gentle",
    "harsh",
    "accordion",
    "none",
    "hand-set",
    "reversed",
    "adaqs",
    "batches",
    "large-batches",
)
"""Runs of a task and seed."""
COMPARED = 3
"""Number of regimes, the first ones, that the bars compare."""


def schedule_of(task: Task, regime: str) -> LevelSchedule | str:
    """Return the schedule, or the one codec, of a regime."""
    match regime:
        case "none":
            return "none"
        case "gentle":
            return task.low
        case "harsh":
            return task.high
        case "accordion":
            return Accordion(low=task.low, high=task.high, window=task.window, rules=RULES)
        case "adaqs":
            return AdaQS(levels=task.ladder, window=task.window, rules=RULES)
        case "hand-set":
            return HandSet(levels=critical_epochs(task, task.low, task.high), rules=RULES)
        case _:
            return HandSet(levels=critical_epochs(task, task.high, "none"), rules=RULES)


def critical_epochs(task: Task, inside: str, outside: str) -> list[tuple[int, str]]:
    """Return levels by 3.2.1: `inside` in the first two windows and in one after each decay."""
    window = task.window
    marks = {epoch: inside for start in task.decays for epoch in range(start, start + window)}
    marks |= dict.fromkeys(range(2 * window), inside)
    levels: list[tuple[int, str]] = []
    for epoch in range(task.epochs):
        codec = marks.get(epoch, outside)
        if not levels or levels[-1][1] != codec:
            levels.append((epoch, codec))
    return levels


def settings_of(task: Task) -> str:
    """Return a digest of a task's settings: results of other settings are not mixed with these."""
    fields = {key: str(value) for key, value in asdict(task).items() if not callable(value)}
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]


def planned() -> Iterator[tuple[str, int, str]]:
    """Yield (task, seed, regime) in the order in which they are run: those of the bars first."""
    for regimes in (REGIMES[:COMPARED], REGIMES[COMPARED:]):
        for seed in SEEDS:
            for name in TASKS:
                for regime in regimes:
                    yield name, seed, regime


def results(folder: Path = FOLDER, kept: Path = KEPT) -> list[dict[str, Any]]:
    """Return the finished runs of the present settings: those made here, then kept ones."""
    current = {name: settings_of(task) for name, task in TASKS.items()}
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for path in (kept, folder / "results.jsonl"):
        for row in map(json.loads, path.read_text().splitlines() if path.is_file() else []):
            if current.get(row["task"]) == row["settings"]:
                found[row["task"], row["seed"], row["regime"]] = row
    return list(found.values())


def keep() -> None:
    """Write the finished runs where git sees them."""
    rows = [{**row, "decisions": []} for row in results()]
    rows.sort(key=lambda row: (row["task"], row["seed"], REGIMES.index(row["regime"])))
    KEPT.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def run_one(name: str, seed: int, regime: str, folder: Path = FOLDER) -> Mapping[str, Any]:
    """Run one training, and add its line to the results."""
    task = TASKS[name]
    if regime.endswith("batches"):
        found = train_batches(task, seed, extreme=regime.startswith("large"))
    else:
        found = train(task, seed, schedule_of(task, regime))
    row = {"task": name, "seed": seed, "regime": regime, "settings": settings_of(task), **found}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def run_left(runs: Iterable[tuple[str, int, str]], jobs: int) -> None:
    """Run those of `runs` that are not done, `jobs` at a time, each in a process of its own."""
    done = {(row["task"], row["seed"], row["regime"]) for row in results()}
    left = [run for run in runs if run not in done]
    print(f"{len(done)} runs are done, {len(left)} are left", file=sys.stderr, flush=True)

    def start(run: tuple[str, int, str]) -> None:
        command = [sys.executable, "-m", __package__, "--one", *map(str, run)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            print(f"failed: {run}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(start, left))


def main() -> None:
    """Run what is left, by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="the first so many")
    parser.add_argument("--keep", action="store_true", help="write finished runs for git")
    parser.add_argument("--one", nargs=3, metavar=("TASK", "SEED", "REGIME"))
    given = parser.parse_args()
    if given.one:
        row = run_one(given.one[0], int(given.one[1]), given.one[2])
        shown = {key: value for key, value in row.items() if key != "decisions"}
        print(json.dumps(shown), flush=True)
        return
    if given.keep:
        keep()
        return
    run_left([run for run in planned() if run[1] in SEEDS[: given.seeds]], given.jobs)
