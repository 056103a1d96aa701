"""Traces to train on: a key set, an order of arrival and a workload, drawn by a seed."""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.index.training.generators import FAMILIES, generate
from headrace.index.measure.workload import Workload, workload_trace
from headrace.index.trace import Trace

ARRIVALS = ("random", "random", "random", "ascending", "late", "descending", "blocks")
_INSERTS = (0.0, 0.0, 0.05, 0.15, 0.3, 0.5, 0.5, 0.7, 0.85, 1.0, 1.0)
_SKEWS = (0.0, 0.0, 0.0, 0.7, 0.99, 1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A training trace, by its parameters; equal ones give equal traces."""

    seed: int
    family: str
    arrival: str
    keys: int
    workload: Workload

    def describe(self) -> dict[str, Any]:
        """Return the parameters as JSON."""
        return asdict(self)


def draw(seed: int, *, least: int, most: int) -> Draw:
    """Return the parameters of a seed's trace, of `least` to `most` keys (log-uniform).

    Families take turns, so that any number of traces has them alike.
    """
    random = np.random.default_rng([18, seed])
    inserts = float(random.choice(_INSERTS))
    erases = float(random.choice([0.0, 0.0, 0.05, 0.1])) * (1 - inserts)
    scans = float(random.choice([0.0, 0.0, 0.0, 0.05, 0.5, 0.95])) * (1 - inserts - erases)
    loaded = 1.0 if inserts == 0 else float(random.uniform(0.2, 0.8))
    keys = int(np.exp(random.uniform(np.log(least), np.log(most))))
    wanted = min(keys, int((1 - loaded) * keys / inserts) if inserts else keys)
    if scans > 0.2:
        wanted = max(wanted // 10, 10_000)
    return Draw(
        seed=seed,
        family=FAMILIES[seed % len(FAMILIES)],
        arrival=str(random.choice(ARRIVALS)),
        keys=keys,
        workload=Workload(
            loaded=loaded,
            operations=wanted,
            inserts=inserts,
            erases=erases,
            scans=scans,
            missing=float(random.choice([0.0, 0.0, 0.05, 0.3, 0.9])),
            skew=float(random.choice(_SKEWS)),
            shuffled=False,
            seed=seed,
        ),
    )


def trace_of(drawn: Draw) -> Trace:
    """Return the trace of a draw."""
    random = np.random.default_rng([19, drawn.seed])
    codes = _arrive(generate(drawn.family, drawn.keys, random), drawn.arrival, random)
    trace = workload_trace(codes, drawn.workload)
    return replace(trace, loaded=np.sort(trace.loaded))


def _arrive(codes: np.ndarray, arrival: str, random: np.random.Generator) -> np.ndarray:
    if arrival == "ascending":
        return codes
    if arrival == "descending":
        return codes[::-1].copy()
    if arrival == "late":
        delays = random.exponential(random.choice([10.0, 1000.0]), len(codes))
        return codes[np.argsort(np.arange(len(codes)) + delays, kind="stable")]
    if arrival == "blocks":
        size = int(2 ** random.uniform(6, 14))
        order = random.permutation(len(codes) // size + 1)
        places = order[np.arange(len(codes)) // size] * size + np.arange(len(codes)) % size
        return codes[np.argsort(places, kind="stable")]
    return random.permutation(codes)
