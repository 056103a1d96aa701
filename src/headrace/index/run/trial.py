"""Trials: a trace is run natively by configurations, by turns, and timed."""

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace import _native
from headrace.index.configuration import Configuration
from headrace.index.errors import InvariantError, TraceError
from headrace.index.plan.trial import TOGETHER, ConfigurationTrial
from headrace.index.run.index import native_configuration
from headrace.index.tables import LEAVES
from headrace.index.trace import INSERT, Trace

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of mallopt
_NO_TRIM = (1 << 31) - 1
_BYTES_PER_KEY = 40
"""Of most configurations what they need, and a half more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Result of a trace's run.

    Attributes
    ----------
    load_s : elapsed time of loading.
    seconds : processor time of the operations, which other work of the machine prolongs least.
    operations : that were run.
    found, inserted, erased, scanned : keys that finds found, new ones, those erased, and those that
        scans returned.
    checked : keys that were found or scanned, and whose values were checked.
    statistics : of the index at the end, see `Index.statistics`.
    """

    load_s: float
    seconds: float
    operations: int
    found: int
    inserted: int
    erased: int
    scanned: int
    checked: int
    statistics: Mapping[str, Any]

    @property
    def operations_per_s(self) -> float:
        """Operations per second, without loading; 0 if there are none."""
        return self.operations / max(self.seconds, 1e-9)


def replay(configuration: Configuration, trace: Trace, **options: Any) -> ReplayResult:
    """Return the result of one configuration; the options and errors are those of `replays`."""
    (result,) = replays([configuration], trace, **options)
    return result


def replays(
    configurations: Sequence[Configuration],
    trace: Trace,
    *,
    value_bytes: int = 8,
    batch: int = 1,
    most_s: float = float("inf"),
    threads: int = 1,
) -> list[ReplayResult]:
    """Load an index of each configuration, run a trace on them, and check all that they return.

    They take turns of some thousand operations, so that a machine whose speed changes within
    milliseconds, as where its caches are shared, slows all alike.

    Parameters
    ----------
    value_bytes : 0, 4 or 8.
    batch : 1: one operation after another. Else windows of so many, whose finds, inserts, erases
        and scans run as one batch each, in this order.
    most_s : processor time of one's operations, their mean of several, after which no turn begins.
    threads : for sorting what is loaded.

    Raises
    ------
    InvariantError : a value or the order of keys was wrong.
    TraceError : `value_bytes` is none of these, or the batch is 0.
    """
    if batch < 1:
        raise TraceError(f"batch is {batch}, needs at least 1")
    try:
        figures = _native.replay_index(
            value_bytes,
            [native_configuration(configuration) for configuration in configurations],
            np.ascontiguousarray(trace.loaded),
            np.ascontiguousarray(trace.operations),
            np.ascontiguousarray(trace.keys),
            batch,
            most_s,
            threads,
        )
    except ValueError as error:
        raise TraceError(str(error)) from error
    return list(map(_result, configurations, figures))


def _result(configuration: Configuration, figures: dict[str, Any]) -> ReplayResult:
    wrong = figures.pop("wrong")
    if wrong:
        raise InvariantError(
            f"{configuration.name}: {wrong} of {figures['checked']} keys had a wrong value or order"
        )
    return ReplayResult(load_s=figures.pop("load_seconds"), **figures)


def keep_memory(trace: Trace) -> None:
    """Let this process keep the memory that it frees, and have enough for a trial of a trace.

    For processes that end after their trials. Without it each trial gets its memory from the
    system: in virtual machines the first write to a page can take longer than the inserts into it,
    and not equally long in each trial. Without effect where libc has no ``mallopt``.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NO_TRIM)
        most_keys = len(trace.loaded) + np.count_nonzero(trace.operations == INSERT)
        np.ones(TOGETHER * _BYTES_PER_KEY * most_keys, dtype=np.uint8)  # written to, and freed


def trial(
    configurations: Sequence[Configuration],
    trace: Trace,
    *,
    value_bytes: int = 8,
    batch: int = 1,
    most_s: float = float("inf"),
) -> list[ConfigurationTrial]:
    """Return the speed and memory of configurations by turns on a trace: a provider of trials.

    The parameters are those of `replays`. Memory is that after the last operation that was run.

    Raises
    ------
    InvariantError, TraceError : as `replays`; the trace has no operations.
    """
    if len(trace) == 0:
        raise TraceError("the trace has no operations to be timed")
    begun = time.perf_counter()
    results = replays(configurations, trace, value_bytes=value_bytes, batch=batch, most_s=most_s)
    elapsed_s = time.perf_counter() - begun
    return [_trial(result, elapsed_s / len(results)) for result in results]


def _trial(replayed: ReplayResult, seconds: float) -> ConfigurationTrial:
    gapped, log, hashed, perfect = (replayed.statistics["leaves"][name] for name in LEAVES)
    return ConfigurationTrial(
        operations_per_s=replayed.operations_per_s,
        bytes=replayed.statistics["bytes"],
        keys=max(sum(replayed.statistics["keys"].values()), 1),
        seconds=seconds,
        leaves=(gapped, log, hashed, perfect),
    )
