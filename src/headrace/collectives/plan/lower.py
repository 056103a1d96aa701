"""Lowering: from a schedule's one global order to the lanes and dependencies of a program.

Every transfer becomes a send step at its source and a receive step at its destination (a local
step where they are the same rank). The global order fixes, at every rank, who reads and writes
each slot after whom; the order of two conflicting accesses is kept by the lane they share or by
an explicit dependency. Nothing else is ordered, so all else runs concurrently.
"""

import numpy as np

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
from headrace.errors import ProgramError

_SEND, _RECV, _LOCAL = int(Direction.SEND), int(Direction.RECV), int(Direction.LOCAL)


def lower(schedule: Schedule) -> Program:
    """Return the program that runs `schedule`.

    Dependencies are the hazards between accesses of one slot at one rank: read after write,
    write after read, write after write, against the last write and the reads since. Left out are
    those that the order of a lane implies: between two steps of the same lane, and on a step that
    an earlier step of the waiting lane already waited for (or for a later one of its lane).

    Messages are numbered in the order of the schedule; a transfer that is `joined` gets the number
    of the one before it.

    Raises
    ------
    ProgramError : for a transfer out of range, a local one whose slots overlap, or one joined to
        what it cannot be one message with.
    """
    demand = schedule.demand
    slots = demand.slots + schedule.scratch_slots
    emit = _Emitter(demand.ranks, slots)
    message, before = -1, (-1, -1, -1)
    for index, transfer in enumerate(schedule.transfers):
        _check(index, transfer, demand.ranks, slots)
        src, dst, src_slot, dst_slot, reduce, count, channel, joined = transfer
        if not joined:
            message += 1
        elif before != (src, dst, channel) or src == dst:
            raise ProgramError(
                f"transfers[{index}] is joined to the transfer before it; needs one from the same "
                f"rank {src} to the same rank {dst}, not local, on the same channel {channel}"
            )
        emit.message = message
        before = (src, dst, channel)
        if src == dst:
            op = int(Op.REDUCE if reduce else Op.COPY)
            emit.step((src, _LOCAL, -1, channel), op, dst_slot, src_slot, count)
        else:
            emit.step((src, _SEND, dst, channel), int(Op.SEND), src_slot, -1, count)
            op = int(Op.RECV_REDUCE if reduce else Op.RECV)
            emit.step((dst, _RECV, src, channel), op, dst_slot, -1, count)
    return emit.program(schedule)


def _check(index: int, transfer: Transfer, ranks: int, slots: int) -> None:
    src, dst, src_slot, dst_slot, _, count, _, _ = transfer
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


class _Emitter:
    """Steps in emission order, with the hazard state of every slot of every rank."""

    def __init__(self, ranks: int, slots: int) -> None:
        self.message = 0  # of the steps that come next
        self._slots = slots
        self._writer = [-1] * (ranks * slots)
        self._readers: list[list[int]] = [[] for _ in range(ranks * slots)]
        self._lanes: dict[tuple[int, int, int, int], int] = {}
        self._waited: list[dict[int, int]] = []  # per lane: other lane -> last step waited for
        self._lane_of: list[int] = []
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._edges: list[tuple[int, int]] = []

    def step(
        self, key: tuple[int, int, int, int], op: int, slot: int, src_slot: int, count: int
    ) -> None:
        """Append a step to the lane `key` (rank, direction, peer, channel)."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = len(self._lanes)
            self._waited.append({})
        me = len(self._rows)
        self._rows.append((op, slot, src_slot, count, self.message))
        self._lane_of.append(lane)
        base = key[0] * self._slots
        before: set[int] = set()
        if op == Op.SEND:
            self._read(me, base + slot, count, before)
        else:
            if src_slot >= 0:
                self._read(me, base + src_slot, count, before)
            self._write(me, base + slot, count, before)
        if before:
            self._wait(me, lane, before)

    def _read(self, me: int, first: int, count: int, before: set[int]) -> None:
        for cell in range(first, first + count):
            writer = self._writer[cell]
            if writer >= 0:
                before.add(writer)
            self._readers[cell].append(me)

    def _write(self, me: int, first: int, count: int, before: set[int]) -> None:
        for cell in range(first, first + count):
            readers = self._readers[cell]
            if readers:  # they come after the last write themselves
                before.update(readers)
                self._readers[cell] = []
            elif self._writer[cell] >= 0:
                before.add(self._writer[cell])
            self._writer[cell] = me

    def _wait(self, me: int, lane: int, before: set[int]) -> None:
        # A step starts after everything earlier in its lane has finished, so of several steps of
        # one lane only the last needs an edge, and none if this lane waited that far already.
        waited = self._waited[lane]
        lane_of = self._lane_of
        for on in sorted(before, reverse=True):
            other = lane_of[on]
            if other != lane and waited.get(other, -1) < on:
                waited[other] = on
                self._edges.append((me, on))

    def program(self, schedule: Schedule) -> Program:
        """Number lanes by (rank, direction, peer, channel) and steps by lane."""
        keys = sorted(self._lanes)
        lane_number = np.empty(len(keys), dtype=np.int64)
        lane_number[[self._lanes[key] for key in keys]] = np.arange(len(keys))
        lane = lane_number[np.array(self._lane_of, dtype=np.int64)]
        order = np.argsort(lane, kind="stable")
        step_number = np.empty(len(order), dtype=np.int64)
        step_number[order] = np.arange(len(order))
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 5)[order]
        edges = step_number[np.array(self._edges, dtype=np.int64).reshape(-1, 2)]
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        lane_columns = np.array(keys, dtype=np.int64).reshape(-1, 4)
        return Program(
            demand=schedule.demand,
            scratch_slots=schedule.scratch_slots,
            lanes=_typed(lane_columns, LANE_COLUMNS),
            steps=_typed(np.column_stack([lane[order], rows]), STEP_COLUMNS),
            dependencies=_typed(edges, DEPENDENCY_COLUMNS),
        )


def _typed(values: np.ndarray, dtypes: dict[str, np.dtype]) -> dict[str, np.ndarray]:
    columns = enumerate(dtypes.items())
    return {name: np.ascontiguousarray(values[:, i], dtype=dtype) for i, (name, dtype) in columns}
