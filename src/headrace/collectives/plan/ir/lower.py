"""Lowering: from a schedule's one global order to the lanes and dependencies of a program.

Every transfer becomes a send step at its source and a receive step at its destination (a local
step where they are the same rank). The global order fixes the order of accesses to each slot of
every rank; two conflicting accesses are ordered by the lane they share or by an explicit
dependency. Nothing else is ordered, so all else runs concurrently.

Transfers, steps and accesses are processed as columns: schedules of large machines have a million
of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.errors import ProgramError
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Direction,
    Op,
    Program,
    Schedule,
    Transfer,
)

_SEND, _RECV, _LOCAL = int(Direction.SEND), int(Direction.RECV), int(Direction.LOCAL)

_NO_EDGES = np.empty((2, 0), dtype=np.int64)

_ACCESSES = 1 << 18
"""Accesses of slots processed at a time, which takes some tens of MB."""


def lower(schedule: Schedule) -> Program:
    """Return the program that runs `schedule`.

    Dependencies are the hazards between accesses of one slot at one rank: read after write,
    write after read, write after write, against the last write and the reads since. Left out are
    those that the order of a lane implies: between two steps of the same lane, and on a step that
    an earlier step of the waiting lane already waited for (or for a later one of its lane).

    Messages are numbered in the order of the schedule, or by its `begins`; a transfer that is
    `joined` gets the number of the one before it.

    Raises
    ------
    ProgramError : for a transfer out of range, a local one whose slots overlap, one joined to
        what it cannot be one message with, or `begins` that are no order of the messages.
    """
    demand = schedule.demand
    slots = demand.slots + schedule.scratch_slots
    rows = np.array(schedule.transfers, dtype=np.int64).reshape(-1, len(Transfer._fields))
    _check(schedule, rows, slots)
    numbered = _Steps.of(rows, _messages(schedule, rows))
    # Steps are numbered by lane; by these numbers the columns are sorted from here on.
    key = (
        (numbered.rank * len(Direction) + numbered.direction) * (demand.ranks + 1)
        + numbered.peer
        + 1
    )
    low = int(numbered.channel.min(initial=0))
    key = key * (int(numbered.channel.max(initial=0)) - low + 1) + numbered.channel - low
    when = np.argsort(key, kind="stable")
    steps = numbered.rows(when)
    new = np.append(True, np.diff(key[when]) != 0)[: len(when)]
    lane, heads = np.cumsum(new) - 1, np.flatnonzero(new)
    edges = [_waits(lane, *pairs) for pairs in _hazards(steps, when, slots)]
    columns = (steps.rank, steps.direction, steps.peer, steps.channel)
    operands = (steps.op, steps.slot, steps.src_slot, steps.count, steps.message)
    return Program(
        demand=demand,
        scratch_slots=schedule.scratch_slots,
        lanes=_typed([column[heads] for column in columns], LANE_COLUMNS),
        steps=_typed([lane, *operands], STEP_COLUMNS),
        dependencies=_typed(list(np.hstack([_NO_EDGES, *edges])), DEPENDENCY_COLUMNS),
    )


def _typed(values: list[np.ndarray], dtypes: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    columns = zip(dtypes.items(), values, strict=True)
    return {name: np.ascontiguousarray(column, dtype=dtype) for (name, dtype), column in columns}


def _check(schedule: Schedule, rows: np.ndarray, slots: int) -> None:
    """Check all transfers in bulk; `_explain` raises the error of the first bad one."""
    src, dst, src_slot, dst_slot, _, count, _, joined = rows.T
    ranks = schedule.demand.ranks
    bad = (np.minimum(src, dst) < 0) | (np.maximum(src, dst) >= ranks) | (count < 1)
    bad |= (np.minimum(src_slot, dst_slot) < 0) | (np.maximum(src_slot, dst_slot) + count > slots)
    bad |= (src == dst) & ((np.abs(src_slot - dst_slot) < count) | (joined != 0))
    # From the same rank to the same rank on the same channel as the one before.
    ends = rows[:, [0, 1, 6]]
    like = np.append(False, (ends[1:] == ends[:-1]).all(axis=1))[: len(rows)]
    bad |= (joined != 0) & ~like
    if bad.any():
        index = int(bad.argmax())
        _explain(index, schedule.transfers[index], ranks, slots)


def _explain(index: int, transfer: Transfer, ranks: int, slots: int) -> None:
    src, dst, src_slot, dst_slot, _, count, channel, _ = transfer
    if not (0 <= src < ranks and 0 <= dst < ranks):
        raise ProgramError(f"transfers[{index}] is {src} -> {dst}, ranks need 0 to {ranks - 1}")
    if count < 1 or min(src_slot, dst_slot) < 0 or max(src_slot, dst_slot) + count > slots:
        raise ProgramError(
            f"transfers[{index}] moves {count} slots from {src_slot} to {dst_slot}, "
            f"needs at least 1 slot within 0 to {slots - 1}"
        )
    if src == dst and abs(src_slot - dst_slot) < count:
        raise ProgramError(
            f"transfers[{index}]: {count} slots from {src_slot} and from {dst_slot} at rank "
            f"{src} overlap, needs disjoint ranges"
        )
    raise ProgramError(
        f"transfers[{index}] is joined to the transfer before it; needs one from the same "
        f"rank {src} to the same rank {dst}, not local, on the same channel {channel}"
    )


def _messages(schedule: Schedule, rows: np.ndarray) -> np.ndarray:
    """Message number of every transfer."""
    number = np.cumsum(rows[:, 7] == 0) - 1
    begins = np.array(schedule.begins, dtype=np.int64)
    if not len(begins):
        return number
    messages = int(number[-1]) + 1 if len(number) else 0
    if not np.array_equal(np.sort(begins), np.arange(messages)):
        raise ProgramError(
            f"begins has {len(begins)} entries from {begins.min()} to {begins.max()}, needs each "
            f"of 0 to {messages - 1} once, or nothing"
        )
    return begins[number]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """Steps with their lanes: columns of int64. `src_slot` is -1 unless the step is local."""

    rank: np.ndarray
    direction: np.ndarray
    peer: np.ndarray
    channel: np.ndarray
    op: np.ndarray
    slot: np.ndarray
    src_slot: np.ndarray
    count: np.ndarray
    message: np.ndarray

    @classmethod
    def of(cls, transfers: np.ndarray, message: np.ndarray) -> "_Steps":
        """The steps in the order of the transfers; a send comes just before its receive."""
        src, dst, src_slot, dst_slot, reduce, count, channel, _ = transfers.T
        local = src == dst
        row = np.repeat(np.arange(len(src)), np.where(local, 1, 2))
        second = np.append(False, row[1:] == row[:-1])[: len(row)]
        local, first = local[row], ~second & ~local[row]
        src, dst, reduce = src[row], dst[row], reduce[row] != 0
        combined = np.where(local, int(Op.REDUCE), int(Op.RECV_REDUCE))
        moved = np.where(local, int(Op.COPY), int(Op.RECV))
        return cls(
            rank=np.where(first, src, dst),
            direction=np.where(local, _LOCAL, np.where(first, _SEND, _RECV)),
            peer=np.where(local, -1, np.where(first, dst, src)),
            channel=channel[row],
            op=np.where(first, int(Op.SEND), np.where(reduce, combined, moved)),
            slot=np.where(first, src_slot[row], dst_slot[row]),
            src_slot=np.where(local, src_slot[row], -1),
            count=count[row],
            message=message[row],
        )

    def rows(self, index: np.ndarray) -> "_Steps":
        """Return those of `index`, in its order."""
        return _Steps(**{name: getattr(self, name)[index] for name in self.__slots__})


def _hazards(
    steps: _Steps, when: np.ndarray, slots: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (waiting, on) pairs of steps, some ranks at a time, with duplicates.

    Parameters
    ----------
    steps : sorted by rank.
    when : position of every step in the order to preserve.
    """
    if not len(when):
        return
    ends = np.append(np.flatnonzero(np.diff(steps.rank)) + 1, len(when))
    work = np.append(0, np.cumsum(steps.count))
    begin = 0
    while begin < len(when):
        most = work[begin] + _ACCESSES
        fit = ends[(ends > begin) & (work[ends] <= most)]
        end = int(fit[-1]) if len(fit) else int(ends[np.searchsorted(ends, begin, side="right")])
        yield _conflicts(steps, np.arange(begin, end), when, slots)
        begin = end


def _conflicts(
    steps: _Steps, index: np.ndarray, when: np.ndarray, slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Hazards among the steps `index`, which are all steps of some ranks."""
    sends, local = steps.op[index] == int(Op.SEND), steps.src_slot[index] >= 0
    reads, writes = np.append(index[sends], index[local]), index[~sends]
    step = np.append(reads, writes)
    read_from = np.where(steps.src_slot[reads] >= 0, steps.src_slot[reads], steps.slot[reads])
    start = np.append(read_from, steps.slot[writes])
    count = steps.count[step]
    k = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    cell = np.repeat(steps.rank[step] * slots + start, count) + k
    is_write = np.repeat(np.append(np.zeros(len(reads), bool), np.ones(len(writes), bool)), count)
    step = np.repeat(step, count)
    order = np.lexsort((when[step], cell))
    step, cell, is_write = step[order], cell[order], is_write[order]
    row = np.arange(len(step))
    # The rows of a cell are consecutive, in the order to preserve.
    first = np.maximum.accumulate(np.where(np.append(True, np.diff(cell) != 0), row, 0))
    written = np.append(-1, np.maximum.accumulate(np.where(is_write, row, -1))[:-1])
    later = np.minimum.accumulate(np.where(is_write, row, len(row))[::-1])[::-1]
    later = np.where(cell[np.minimum(later, len(row) - 1)] == cell, later, len(row))
    # A read waits for the last write, a write for all reads since, or else for the last write.
    after_write = np.flatnonzero((written >= first) & (~is_write | (written == row - 1)))
    after_read = np.flatnonzero(~is_write & (later < len(row)))
    waiting = np.append(step[after_write], step[later[after_read]])
    return waiting, np.append(step[written[after_write]], step[after_read])


def _waits(lane: np.ndarray, waiting: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Return (2, edges): the pairs that the order of lanes does not imply, sorted.

    A step starts after everything earlier in its lane has finished, so of several steps of one
    lane only the last needs an edge, and none if this lane waited that far already.
    """
    apart = lane[waiting] != lane[on]
    waiting, on = waiting[apart], on[apart]
    if not len(on):
        return _NO_EDGES
    base = int(min(waiting.min(), on.min()))
    wide = int(max(waiting.max(), on.max())) - base + 1
    # By the lane waited for, then the waiting step, then the step waited for: lanes are runs.
    pairs = np.sort(((lane[on] - lane[base]) * wide + waiting - base) * wide + on - base)
    packed, on = np.divmod(pairs[np.append(True, np.diff(pairs) != 0)], wide)
    waiting, on = packed % wide + base, on + base
    run = np.append(True, (np.diff(lane[on]) != 0) | (np.diff(lane[waiting]) != 0))
    reach = (np.cumsum(run) - 1) * len(lane) + on
    last = np.append((np.diff(waiting) != 0) | run[1:], True)
    reach, waiting, on = reach[last], waiting[last], on[last]
    news = np.append(True, reach[1:] > np.maximum.accumulate(reach)[:-1])
    waiting, on = waiting[news], on[news]
    order = np.lexsort((on, waiting))
    return np.stack([waiting[order], on[order]])
