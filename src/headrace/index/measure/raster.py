"""The image of a trace (section 6.3.3): operations over time and key, reads and writes apart."""

import numpy as np

from headrace.index.profile import SIDE
from headrace.index.trace import ERASE, INSERT, Trace


def trace_image(trace: Trace) -> np.ndarray:
    """Return counts of operations (uint32) by time, key, and reads (0) or writes (1).

    Of 256 by 256 pixels, as in the paper (section 6.5.1). Time is the place of the operation in the
    trace. Keys are linear between the least and the greatest, as in the paper: extreme outliers
    leave all others in one column.
    """
    image = np.zeros((SIDE, SIDE, 2), dtype=np.uint32)
    if not len(trace):
        return image
    low, high = key_range(trace)
    time = np.arange(len(trace)) * SIDE // len(trace)
    writes = (trace.operations == INSERT) | (trace.operations == ERASE)
    cells = (time * SIDE + columns(trace.keys, low, high)) * 2 + writes
    counts = np.bincount(cells, minlength=image.size)
    return counts.astype(np.uint32).reshape(image.shape)


def loaded_image(trace: Trace) -> np.ndarray:
    """Return counts (uint32) of the loaded keys by key, on the axis of `trace_image`."""
    if not len(trace.loaded):
        return np.zeros(SIDE, dtype=np.uint32)
    low, high = key_range(trace)
    return np.bincount(columns(trace.loaded, low, high), minlength=SIDE).astype(np.uint32)


def key_range(trace: Trace) -> tuple[int, int]:
    """Return the least and the greatest code of a trace; (0, 0) if it is empty."""
    parts = [codes for codes in (trace.loaded, trace.keys) if len(codes)]
    if not parts:
        return 0, 0
    return min(int(codes.min()) for codes in parts), max(int(codes.max()) for codes in parts)


def columns(codes: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the columns of codes between `low` and `high`."""
    share = (codes - np.uint64(low)).astype(np.float64) / max(high - low, 1)
    return (share * SIDE).astype(np.int64).clip(0, SIDE - 1)
