"""Sends: a synthesizer's answer, and how two answers become one.

What combines is carried backwards: a reduce_scatter is an allgather run backwards on the transposed
topology (TACCL 5.7), and an allreduce is a reduce_scatter followed, or overlapped, by an allgather.
"""

from dataclasses import dataclass

import numpy as np

from headrace.errors import ProgramError

__all__ = ["Carriage", "Sends", "check_sends", "concatenated", "overlapped", "reversed_sends"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Carriage:
    """What is to be carried: a collective without its combining.

    Attributes
    ----------
    ranks : number of ranks.
    origin : (chunks,) int32, the rank that holds the chunk at first.
    targets : (chunks, ranks) bool, who must get it; False at the origin.
    """

    ranks: int
    origin: np.ndarray
    targets: np.ndarray

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.origin)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sends:
    """Who sends which chunk to whom; columns of equal length, in one global order.

    Every send comes after all that it depends on. Rows with the same `message` are one message:
    consecutive, between the same two ranks, charged alpha once, complete when all have arrived.

    Attributes
    ----------
    chunk, src, dst : int32.
    reduce : bool; the chunk is combined into what `dst` holds of it, else it replaces it.
    message : int32, starting at 0 and growing by 1 from message to message.
    start_us : float64, when the planner wants the message to begin (all rows of a message alike);
        an empty array if it has no opinion.
    """

    chunk: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    reduce: np.ndarray
    message: np.ndarray
    start_us: np.ndarray


def check_sends(sends: Sends) -> None:
    """Raise ProgramError if columns differ in length or messages are not as `Sends` says."""
    columns = (sends.src, sends.dst, sends.reduce, sends.message)
    if any(len(column) != len(sends.chunk) for column in columns) or len(sends.start_us) not in (
        0,
        len(sends.chunk),
    ):
        raise ProgramError("sends: columns differ in length")
    if not len(sends.chunk):
        return
    step = np.diff(sends.message, prepend=-1)
    same = step == 0
    moved = (np.diff(sends.src, prepend=-1) != 0) | (np.diff(sends.dst, prepend=-1) != 0)
    for bad, problem in (
        ((step < 0) | (step > 1), "needs 0 at first, then the same or 1 more"),
        (same & moved, "needs one sender and one receiver in a message"),
        (sends.src == sends.dst, "goes from a rank to itself"),
    ):
        rows = np.flatnonzero(bad)
        if len(rows):
            row = rows[0]
            raise ProgramError(
                f"sends: row {row} (chunk {sends.chunk[row]}, {sends.src[row]} -> "
                f"{sends.dst[row]}, message {sends.message[row]}): {problem}"
            )


def reversed_sends(sends: Sends, duration_us: np.ndarray | None = None) -> Sends:
    """Return `sends` backwards: what spread from one rank is combined there.

    An allgather on the transposed topology so becomes a reduce_scatter.

    Parameters
    ----------
    duration_us : (rows,) how long each row's message takes; a message that began at t then begins
        ``end - t - duration``, with `end` the end of all. None: no time at all.
    """
    start_us = sends.start_us
    if len(start_us):
        ends = start_us if duration_us is None else start_us + duration_us
        start_us = (float(ends.max()) - ends)[::-1].copy()
    last = int(sends.message[-1]) if len(sends.message) else 0
    return Sends(
        chunk=sends.chunk[::-1].copy(),
        src=sends.dst[::-1].copy(),
        dst=sends.src[::-1].copy(),
        reduce=np.ones(len(sends.chunk), dtype=bool),
        message=(last - sends.message[::-1]).astype(np.int32),
        start_us=start_us,
    )


def concatenated(first: Sends, second: Sends, duration_us: np.ndarray | None = None) -> Sends:
    """Return `first`, then `second`.

    Parameters
    ----------
    duration_us : (rows of `first`,) how long each row's message takes; `second` is planned to
        begin when all of them have ended. None: no time at all.
    """
    start_us = np.empty(0)
    if len(first.start_us) and len(second.start_us):
        ends = first.start_us if duration_us is None else first.start_us + duration_us
        start_us = np.concatenate([first.start_us, second.start_us + float(ends.max())])
    return _joined(first, second, start_us)


def overlapped(
    first: Sends,
    second: Sends,
    first_us: np.ndarray | None = None,
    second_us: np.ndarray | None = None,
) -> Sends:
    """Return both merged by time: `second` sends a chunk on as soon as `first` is done with it.

    For an allreduce: `first` is a reduce_scatter, `second` an allgather of the same chunks. Every
    chunk of `second` keeps its plan but for one shift: it first leaves when `first` last moves it.
    Messages of several chunks follow the latest.

    Parameters
    ----------
    first_us, second_us : (rows,) how long each row's message takes. None: no time at all.

    Raises
    ------
    ProgramError : if the two do not both have starting times.
    """
    if len(first.start_us) != len(first.chunk) or len(second.start_us) != len(second.chunk):
        raise ProgramError("start_us is empty, needs the starting times of both halves to overlap")
    takes = np.zeros(len(first.chunk)) if first_us is None else first_us
    chunks = 1 + int(max(first.chunk.max(initial=-1), second.chunk.max(initial=-1)))
    # Its order is known to respect cause and effect; its times need not, if it has no durations.
    begins = np.maximum.accumulate(first.start_us)
    done = np.zeros(chunks)
    np.maximum.at(done, first.chunk, begins + takes)
    leaves = np.full(chunks, np.inf)
    np.minimum.at(leaves, second.chunk, second.start_us)
    shift = done - leaves
    starts = _shifted(second, shift[second.chunk], second_us)
    both = _joined(first, second, np.concatenate([begins, starts]))
    # Stable: at equal times `first` comes first, and each half keeps its own order.
    by_message = np.flatnonzero(np.diff(both.message, prepend=-1))
    order = np.argsort(both.start_us[by_message], kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    rows = np.argsort(rank[both.message], kind="stable")
    return Sends(
        chunk=both.chunk[rows],
        src=both.src[rows],
        dst=both.dst[rows],
        reduce=both.reduce[rows],
        message=rank[both.message[rows]].astype(np.int32),
        start_us=both.start_us[rows],
    )


def _shifted(sends: Sends, shift: np.ndarray, takes: np.ndarray | None) -> np.ndarray:
    """Return when every row begins: shifted, but not before its chunk has come to its sender."""
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
            there[chunk[row], dst[row]] = start + (0.0 if takes is None else float(takes[row]))
        begin = end
    return starts


def _joined(first: Sends, second: Sends, start_us: np.ndarray) -> Sends:
    after = int(first.message[-1]) + 1 if len(first.message) else 0
    return Sends(
        chunk=np.concatenate([first.chunk, second.chunk]),
        src=np.concatenate([first.src, second.src]),
        dst=np.concatenate([first.dst, second.dst]),
        reduce=np.concatenate([first.reduce, second.reduce]),
        message=np.concatenate([first.message, second.message + after]).astype(np.int32),
        start_us=start_us,
    )
