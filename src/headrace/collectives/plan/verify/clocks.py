"""Vector clocks over lanes, of one rank or all: which steps are ordered, by any path.

The order of bytes is defined in `races`. With all ranks a receive follows its send byte by byte, as
a streaming dependency does. ``finished[s][lane]`` is the last position in `lane` that
finishes before s begins, ``reached[s][lane]`` the last whose byte k precedes byte k of s.
"""

from dataclasses import dataclass, field

import numpy as np

from headrace.collectives.plan.verify.structure import COPY, REDUCE, SEND, Structure, fail

_Access = tuple[int, int]
"""(step, first slot of the range that the access belongs to)."""


@dataclass(slots=True)
class _Slot:
    writer: _Access | None = None
    readers: dict[int, _Access] = field(default_factory=dict[int, _Access])
    """Since the last write, by lane: of two readers in a lane the later ends after the earlier."""


class Clocks:
    """The clocks of one rank or of all, whose steps and lanes are consecutive.

    Parameters
    ----------
    order : the steps, each after all that it waits for.
    messages : the steps are all ranks', and messages order them, too.
    """

    def __init__(self, s: Structure, order: np.ndarray, *, messages: bool = False) -> None:
        self.s = s
        self.order: list[int] = order.tolist()
        first, last = int(order.min()), int(order.max())
        self._first_lane = int(s.lane[first])
        self.lanes = int(s.lane[last]) - self._first_lane + 1
        rows = slice(first, last + 1)
        self._first = first
        self._lane: list[int] = (s.lane[rows] - self._first_lane).tolist()
        self._position: list[int] = s.position[rows].tolist()
        self._after = [s.after(step) for step in range(first, last + 1)]
        self.finished: dict[int, np.ndarray] = {}
        self.reached: dict[int, np.ndarray] = {}
        self._sender: dict[int, int] = {}
        """By receiving step the sending one."""
        if messages:
            receives = np.flatnonzero((s.op != SEND) & (s.partner >= 0))
            self._sender = dict(zip(receives.tolist(), s.partner[receives].tolist(), strict=True))
        self.slots: dict[tuple[int, int], _Slot] = {}
        """By rank and slot."""
        self.needed = dict.fromkeys(self.order, 0)
        """Number of steps that still need the clocks of each."""
        for step in self.order:
            for on in self._predecessors(step):
                self.needed[on] += 1

    def check(self) -> None:
        """Check every access.

        Raises
        ------
        VerificationError : naming two steps that can touch a slot at the same time.
        """
        for step in self.order:
            self._advance(step)
            self._access(step)
            for on in self._predecessors(step):
                self.needed[on] -= 1
                self._drop(on)
            self._drop(step)

    def _predecessors(self, step: int) -> list[int]:
        after = self._after[step - self._first]
        sender = [self._sender[step]] if step in self._sender else []
        before = [step - 1] if self._position[step - self._first] else []
        return [*before, *after, *sender]

    def _drop(self, step: int) -> None:
        if not self.needed[step]:
            del self.finished[step], self.reached[step]
            self.needed[step] = 1  # once

    def _advance(self, step: int) -> None:
        position = self._position[step - self._first]
        if position:
            finished = self.reached[step - 1].copy()
        else:
            finished = np.full(self.lanes, -1, dtype=np.int32)
        streamed: list[int] = []
        if step in self._sender:
            streamed.append(self._sender[step])
            np.maximum(finished, self.finished[streamed[0]], out=finished)
        for on in self._after[step - self._first]:
            if may_stream(self.s, on, step):
                streamed.append(on)
                np.maximum(finished, self.finished[on], out=finished)
            else:
                np.maximum(finished, self.reached[on], out=finished)
        reached = finished.copy()
        for on in streamed:
            np.maximum(reached, self.reached[on], out=reached)
        reached[self._lane[step - self._first]] = position
        self.finished[step], self.reached[step] = finished, reached

    def _access(self, step: int) -> None:
        s = self.s
        op, slot, src, count = (int(c[step]) for c in (s.op, s.slot, s.src_slot, s.count))
        if op == SEND:
            self._read(step, slot, count)
            return
        if op in (COPY, REDUCE):
            self._read(step, src, count)
        self._write(step, slot, count)

    def _read(self, step: int, start: int, count: int) -> None:
        lane, rank = self._lane[step - self._first], int(self.s.rank[step])
        for slot in range(start, start + count):
            history = self.slots.setdefault((rank, slot), _Slot())
            if history.writer is not None and not self._ordered(history.writer, step, start):
                self._report(history.writer[0], "writes", step, "reads", slot)
            history.readers[lane] = (step, start)

    def _write(self, step: int, start: int, count: int) -> None:
        rank = int(self.s.rank[step])
        for slot in range(start, start + count):
            history = self.slots.setdefault((rank, slot), _Slot())
            if history.writer is not None and not self._ordered(history.writer, step, start):
                self._report(history.writer[0], "writes", step, "writes", slot)
            for reader in history.readers.values():
                if reader[0] != step and not self._ordered(reader, step, start):
                    self._report(reader[0], "reads", step, "writes", slot)
            history.writer = (step, start)
            history.readers = {}

    def _ordered(self, earlier: _Access, step: int, start: int) -> bool:
        on, earlier_start = earlier
        column, position = self._lane[on - self._first], self._position[on - self._first]
        if self.finished[step][column] >= position:
            return True
        return start == earlier_start and bool(self.reached[step][column] >= position)

    def _report(self, earlier: int, did: str, step: int, does: str, slot: int) -> None:
        s = self.s
        reached = self.reached[step][self._lane[earlier - self._first]]
        reason = "no lane or dependency orders them"
        if reached >= self._position[earlier - self._first]:
            reason = "they are ordered only byte by byte, and not at the same bytes of the slot"
        fail(
            f"data race on slot {slot}: {s.name(earlier)} {did} it and {s.name(step)} {does} it, "
            f"but {reason}; needs a dependency between them"
        )


def may_stream(s: Structure, on: np.ndarray | int, step: np.ndarray | int) -> np.ndarray:
    """Return whether byte k of `step` may start after byte k of `on`, in any reading, by pair."""
    both_local = (s.src_slot[on] == s.src_slot[step]) & (s.src_slot[on] >= 0)
    same = (s.slot[on] == s.slot[step]) | (s.slot[on] == s.src_slot[step]) | both_local
    same |= s.src_slot[on] == s.slot[step]  # -1 where there is none: no slot
    return same & (s.count[on] == s.count[step])
