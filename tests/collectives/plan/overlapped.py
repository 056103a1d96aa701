"""Two halves of an allreduce merged by time: sends whose chunks are under way in both at once."""

from dataclasses import replace

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.ir.sends import Sends, concatenated


def overlapped(first: Sends, second: Sends) -> Sends:
    """Return both merged by time: `second` sends a chunk as soon as `first` has finished it.

    For an allreduce: `first` is a reduce_scatter, `second` an allgather of the same chunks. Times
    of a chunk in `second` are shifted so that it first leaves when `first` last moves it. Messages
    of several chunks follow the latest. One whose arrival is not known takes no time.

    Raises
    ------
    ProgramError : if the two do not both have starting times.
    """
    if len(first.start_us) != len(first.chunk) or len(second.start_us) != len(second.chunk):
        raise ProgramError("start_us is empty, needs the starting times of both halves to overlap")
    takes, later_takes = _durations(first), _durations(second)
    chunks = 1 + int(max(first.chunk.max(initial=-1), second.chunk.max(initial=-1)))
    # Its order respects causality; its times need not, if it has no durations.
    begins = np.maximum.accumulate(first.start_us)
    done = np.zeros(chunks)
    np.maximum.at(done, first.chunk, begins + takes)
    leaves = np.full(chunks, np.inf)
    np.minimum.at(leaves, second.chunk, second.start_us)
    shift = done - leaves
    starts = np.concatenate([begins, _shifted(second, shift[second.chunk], later_takes)])
    known = len(first.arrive_us) and len(second.arrive_us)
    arrive_us = starts + np.concatenate([takes, later_takes]) if known else np.empty(0)
    both = replace(concatenated(first, second), start_us=starts, arrive_us=arrive_us)
    # Stable: at equal times `first` comes first, and each half keeps its own order.
    by_message = np.flatnonzero(np.diff(both.message, prepend=-1))
    order = np.argsort(both.start_us[by_message], kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = np.argsort(rank[both.message], kind="stable")
    return replace(both.take(rows), message=rank[both.message[rows]].astype(np.int32))


def _durations(sends: Sends) -> np.ndarray:
    if len(sends.arrive_us):
        return sends.arrive_us - sends.start_us
    return np.zeros(len(sends.chunk))


def _shifted(sends: Sends, shift: np.ndarray, takes: np.ndarray) -> np.ndarray:
    """Return the start of every row: shifted, but not before its chunk is at its sender."""
    there: dict[tuple[int, int], float] = {}
    starts = np.empty(len(sends.chunk))
    ends = np.append(np.flatnonzero(np.diff(sends.message)) + 1, len(sends.chunk))
    chunk, src, dst = sends.chunk.tolist(), sends.src.tolist(), sends.dst.tolist()
    begin = 0
    for end in ends.tolist() if len(chunk) else []:
        rows = range(begin, end)
        start = float((sends.start_us[begin:end] + shift[begin:end]).max())
        start = max(start, *(there.get((chunk[row], src[row]), 0.0) for row in rows))
        starts[begin:end] = start
        for row in rows:
            there[chunk[row], dst[row]] = start + float(takes[row])
        begin = end
    return starts
