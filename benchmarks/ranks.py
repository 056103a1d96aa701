"""Timing collectives between ranks on a testbed: a worker per rank, and their results."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import worker_results
from headrace.collectives.demand import Collective
from headrace.testbed import Testbed

KIB, MIB = 1 << 10, 1 << 20
SMALL_BYTES = 4 * KIB
WORKER = Path(__file__).resolve().parent / "rank_worker.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One collective of one size, in bytes of the whole data buffer."""

    collective: Collective
    bytes: int
    repeats: int
    warm_up: int = 1

    def to_task(self) -> dict[str, Any]:
        """Return the worker's task."""
        return {
            "collective": self.collective.value,
            "bytes": self.bytes,
            "repeats": self.repeats,
            "warm_up": self.warm_up,
        }


def time_cases(
    testbed: Testbed,
    order: Sequence[int],
    backends: Mapping[str, Path | None],
    cases: Sequence[Case],
    *,
    torch_book: Path | None = None,
    timeout_s: float = 300.0,
) -> list[dict[str, float]]:
    """Return the typical time (us) per case and backend; see `typical_us`.

    Parameters
    ----------
    order : the host of every rank, by index.
    backends : by name the plan book of a native executor, or None: a backend of torch.
    torch_book : the plan book of headrace through torch.
    """
    task = {
        "backends": {name: None if book is None else str(book) for name, book in backends.items()},
        "cases": [case.to_task() for case in cases],
    }
    environment = {"HEADRACE_MEASURE": "off"}  # the compared programs are given
    if torch_book is not None:
        environment["HEADRACE_PLAN_BOOK"] = str(torch_book)
    argv = [sys.executable, str(WORKER)]
    by_rank = worker_results(testbed, argv, order, task, env=environment, timeout_s=timeout_s)
    return [
        {name: typical_us(case, [result[name] for result in results]) for name in results[0]}
        for case, results in zip(cases, zip(*by_rank, strict=True), strict=True)
    ]


def typical_us(case: Case, ranks: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return a case's time from (begin, end) of every call of every rank, on their shared clock.

    A small collective: the median call of the slowest rank, as a caller sees it. A large one: the
    median over repetitions of the time from the ranks' mean call to the last rank's end; all
    call at the same tick of the clock, within the latency of waking.
    """
    if case.bytes <= SMALL_BYTES:
        return max(statistics.median(end - begin for begin, end in calls) for calls in ranks)
    return statistics.median(
        max(end for _, end in calls) - statistics.fmean(begin for begin, _ in calls)
        for calls in zip(*ranks, strict=True)
    )
