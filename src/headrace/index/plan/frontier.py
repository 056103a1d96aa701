"""The read-write frontier (Figure 6.4): time of a find against that of an insert."""

from collections.abc import Sequence

import numpy as np

from headrace.index.trace import FIND, INSERT, SCAN, Trace, distinct


def pareto_front(read_ns: Sequence[float], write_ns: Sequence[float]) -> list[int]:
    """Return the points that no other betters in both, by ascending `read_ns`."""
    order = sorted(range(len(read_ns)), key=lambda point: (read_ns[point], write_ns[point]))
    front: list[int] = []
    for point in order:
        if not front or write_ns[point] < write_ns[front[-1]]:
            front.append(point)
    return front


def reads_of(trace: Trace) -> Trace:
    """Return the trace's finds alone, or as many of its loaded keys, with all keys loaded."""
    keys = trace.keys[(trace.operations == FIND) | (trace.operations == SCAN)]
    everything = _distinct(trace)
    if len(keys) < max(len(trace) // 8, 1):
        keys = everything[_chosen(len(everything), max(len(trace), 1))]
    return Trace(
        loaded=everything,
        operations=np.full(len(keys), FIND, dtype=np.uint8),
        keys=keys,
        kind=trace.kind,
    )


def inserts_of(trace: Trace) -> Trace:
    """Return the trace's inserts alone; with few, half of all keys are inserted at random."""
    inserts = trace.operations == INSERT
    loaded, keys = trace.loaded, trace.keys[inserts]
    if len(keys) < max(len(trace) // 8, 1):
        everything = _distinct(trace)
        order = np.random.default_rng(0).permutation(len(everything))
        loaded, keys = np.split(everything[order], [len(everything) // 2])
    return Trace(
        loaded=loaded,
        operations=np.full(len(keys), INSERT, dtype=np.uint8),
        keys=keys,
        kind=trace.kind,
    )


def _distinct(trace: Trace) -> np.ndarray:
    inserted = trace.keys[trace.operations == INSERT]
    return distinct(np.concatenate([trace.loaded, inserted]))


def _chosen(keys: int, count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, max(keys, 1), count if keys else 0)
