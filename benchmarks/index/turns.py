"""Configurations that replay a workload by turns, in a process of their own.

In a virtual machine the rate of one configuration drifts within milliseconds, with other work on
the caches that it shares: ratios of separate runs vary more than those of turns of some thousand
operations (section `chosen` prints by how much).
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.index.maps import HUGE_PAGES
from benchmarks.index.workload import FIND, MISS, Workload
from headrace.index.configuration import Configuration
from headrace.index.run.trial import keep_memory, replays
from headrace.index.trace import Trace

_TUNABLES = "GLIBC_TUNABLES"

_traces: list[Trace] = []
"""Of this process, if it is one that replays."""


@dataclass(slots=True)
class Turns:
    """A process that replays a workload.

    Attributes
    ----------
    wrong : runs in which the maps differed in what they found, inserted, erased or scanned; values
        and the order of keys are checked in each.
    """

    _pool: ProcessPoolExecutor
    wrong: int = 0

    def rates(
        self, settings: Sequence[Mapping[str, Any]], operations: int | None = None
    ) -> list[float]:
        """Return operations a second of processor time, of maps that take turns.

        Parameters
        ----------
        operations : of the workload that are run, the first ones; None: all.
        """
        per_s, agree = self._pool.submit(_run, list(map(dict, settings)), operations).result()
        self.wrong += not agree
        return per_s

    def over(self, first: Mapping[str, Any], second: Mapping[str, Any], runs: int) -> float:
        """Return the rate of the first over that of the second: the mean of some runs."""
        logs: list[float] = []
        for run in range(runs):
            pair = self.rates([first, second] if run % 2 == 0 else [second, first])
            logs.append(math.log(pair[run % 2] / pair[1 - run % 2]))
        return math.exp(float(np.mean(logs)))


@contextmanager
def turns(made: Workload) -> Iterator[Turns]:
    """Start a process that replays a workload; it ends with the block."""
    trace = Trace(
        loaded=made.loaded,
        operations=np.where(made.operations == MISS, FIND, made.operations).astype(np.uint8),
        keys=made.codes,
    )
    before = os.environ.get(_TUNABLES)
    os.environ[_TUNABLES] = HUGE_PAGES  # read where a program starts
    try:
        pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (trace,))
        with pool:
            pool.submit(len, ()).result()  # it has started
            yield Turns(pool)
    finally:
        if before is None:
            del os.environ[_TUNABLES]
        else:
            os.environ[_TUNABLES] = before


def _begin(trace: Trace) -> None:
    _traces.append(trace)
    keep_memory(trace)


def _run(settings: list[dict[str, Any]], operations: int | None) -> tuple[list[float], bool]:
    (trace,) = _traces
    part = Trace(
        loaded=trace.loaded, operations=trace.operations[:operations], keys=trace.keys[:operations]
    )
    results = replays([Configuration(**fields) for fields in settings], part)
    counts = {(map_.found, map_.inserted, map_.erased, map_.scanned) for map_ in results}
    return [map_.operations_per_s for map_ in results], len(counts) == 1
