"""Cells: a key set with a mix of operations, at the sizes of a full or a quick run."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Report
from benchmarks.index.datasets import HOT, generate
from benchmarks.index.maps import HUGE_PAGES
from benchmarks.index.workload import Mix, Phases, Workload, arrivals_needed, make

SOSD = Path(os.environ["SOSD"]) if os.environ.get("SOSD") else None
"""Folder of SOSD's files, if there is one: `make bench CLAIM=index SOSD=/folder`."""

MIXES: Mapping[str, Mix] = {
    "read-only": Mix(),
    "15": Mix(inserts=0.15),
    "50": Mix(inserts=0.5),
    "85": Mix(inserts=0.85),
    "write-only": Mix(inserts=1.0),
    "erases": Mix(inserts=0.45, erases=0.1, misses=0.05),
    "scans": Mix(inserts=0.05, scans=0.95),
}
"""By name: insert fractions in percent, a tenth of erases, scans of 100 keys."""

BATCH = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Keys to load, operations, turns of each map in a round, and rounds."""

    loaded: int
    operations: int
    slices: int = 1
    rounds: int


FULL = Sizes(loaded=10_000_000, operations=20_000_000, slices=10, rounds=3)
QUICK = Sizes(loaded=1_000_000, operations=1_000_000, slices=5, rounds=1)


def sizes(*, quick: bool) -> Sizes:
    """Return the sizes of a run."""
    return QUICK if quick else FULL


@lru_cache(maxsize=1)
def arrivals(name: str, count: int, seed: int = 0) -> NDArray[np.uint64]:
    """Return codes of a key set in order of arrival; those of the last call are kept."""
    return generate(name, count, seed, sosd=SOSD)


def workload(name: str, loaded: int, phases: Phases, *, seed: int = 0) -> Workload:
    """Return a workload on a key set. All mixes of one size share their arrivals."""
    most = loaded + sum(count for count, _ in phases)
    enough = max(arrivals_needed(loaded, phases), most)
    return make(arrivals(name, enough), loaded=loaded, phases=phases, seed=seed, hot=name in HOT)


@contextmanager
def on_disk(made: Workload) -> Iterator[Path]:
    """Write a workload to a file that is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="headrace-index-") as folder:
        yield made.write(Path(folder) / "workload")


def per_s(sums: Mapping[str, Any]) -> float:
    """Return operations per second of processor time."""
    return 1e9 * sums["operations"] / sums["cpu_ns"]


def ratio(rounds: list[Mapping[str, Mapping[str, Any]]], ours: str, rival: str) -> float | None:
    """Return the median of the rounds' ratios of rates; None: one of the two did not run."""
    paired = [
        per_s(each[ours]) / per_s(each[rival]) for each in rounds if ours in each and rival in each
    ]
    return median(paired) if paired else None


def caches() -> dict[str, str]:
    """Return sizes of the first core's caches by level and kind, such as "L2 unified": "1024K"."""
    folders = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    texts = [
        [(folder / name).read_text().strip() for name in ("level", "type", "size")]
        for folder in folders
    ]
    return {f"L{level} {kind.lower()}": size for level, kind, size in texts}


def describe_machine(report: Report) -> None:
    """Note caches and huge pages, which figures depend on; once in a report."""
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    found = policy.read_text().strip() if policy.exists() else "none"
    sizes = ", ".join(f"{name} {size}" for name, size in caches().items())
    text = (
        f"caches: {sizes}; transparent huge pages: {found}; all maps: glibc's malloc "
        f"with GLIBC_TUNABLES={HUGE_PAGES}, rates by processor time of one thread"
    )
    if text not in report.notes:
        report.note(text)
