"""Run the grid's configurations on training traces, and keep encodings and results.

    PYTHONPATH=. .venv/bin/python -m benchmarks.index.training.collect --minutes 25

One file a trace is written to the folder, by the trace's seed. A trace that has its file is not run
again, so the command goes on where it was interrupted, and more minutes add more traces. Trials
count processor time; on a busy machine they are noisy still, as caches and memory are shared.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.index.training.traces import draw, trace_of
from headrace.index.configuration import Configuration
from headrace.index.measure.survey import encode_trace
from headrace.index.plan.grid import grid
from headrace.index.plan.trial import ConfigurationTrial, TrialProvider
from headrace.index.trace import Trace

FOLDER = Path("build/index-training")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trace")
    parser.add_argument("--least", type=int, default=40_000, help="fewest keys of a trace")
    parser.add_argument("--most", type=int, default=600_000, help="most keys of a trace")
    parser.add_argument("--wait-while", type=Path, help="pause while this file exists")
    options = parser.parse_args()
    from headrace.index.run.trial import trial

    options.folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * options.minutes
    seed = options.first
    while time.monotonic() < end:
        file = options.folder / f"{seed:06d}.npz"
        if not file.exists():
            begun = time.monotonic()
            paused = pausing(trial, options.wait_while)
            description = collect(seed, options.least, options.most, paused, file)
            print(f"{seed} {time.monotonic() - begun:.1f} s: {description}", flush=True)
        seed += 1
    return 0


def pausing(trial: TrialProvider, path: Path | None) -> TrialProvider:
    """Return the provider, waiting before each trial until a file does not exist."""

    def paused(
        configurations: Sequence[Configuration], trace: Trace
    ) -> Sequence[ConfigurationTrial]:
        while path is not None and path.exists():
            time.sleep(1)
        return trial(configurations, trace)

    return paused


def collect(seed: int, least: int, most: int, trial: TrialProvider, file: Path) -> str:
    """Write the file of one trace: its encoding, and the results of all configurations."""
    drawn = draw(seed, least=least, most=most)
    trace = trace_of(drawn)
    encoding = encode_trace(trace, trace)
    configurations = grid()
    results = [result for each in configurations for result in trial([each], trace)]
    keys = max(trace.final_size(), 1)
    temporary = file.with_suffix(".part.npz")
    np.savez_compressed(
        temporary,
        **{
            f"{table}.{column}": values
            for table, columns in encoding.to_tables().items()
            for column, values in columns.items()
        },
        features=json.dumps(dict(encoding.features)),
        configurations=json.dumps([each.to_head() for each in configurations]),
        per_s=np.array([each.operations_per_s for each in results]),
        bytes_per_key=np.array([each.bytes / keys for each in results]),
        drawn=json.dumps(drawn.describe()),
    )
    temporary.replace(file)
    best = max(range(len(results)), key=lambda place: results[place].operations_per_s)
    return f"{drawn.family} {drawn.arrival} {len(trace.loaded)}+{len(trace)}: " + (
        f"{configurations[best].name} {results[best].operations_per_s / 1e6:.3g} M/s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
