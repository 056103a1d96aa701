"""Freedom from data races: vector clocks over the lanes of each rank.

Two accesses of a slot conflict if one of them writes it (a receive that reduces reads and writes).
They must be ordered by lanes and dependencies of their own rank; that a message went round
between them is not accepted.

What orders bytes
-----------------
A step *finishes before* another if a path leads there on which one edge at least makes the later
step wait for all of the earlier one: the next step of a lane, or a dependency between different
ranges. Streaming edges before it keep this true, as their later step ends after their earlier
one does; streaming edges after it as well, as their later step does not begin before.

A path of streaming edges only says less: byte k of the last step comes after byte k of the first.
All their ranges are equally long. So two accesses are ordered if they cover *the same* range (byte
k is then the same byte of the slot), and may race if the ranges are shifted against each other.
This is what makes it sound that a chunk is reduced and forwarded, or overwritten, while the rest
of it still arrives: along any chain, byte k only ever follows byte k.

"Both cover exactly the same slots" can be read narrowly (of `slot`) or widely (of `src_slot` too).
An edge counts as streaming if either reading makes it so, which gives it the least force.

Clocks: `finished[s][lane]` is the last position in `lane` that finishes before s begins,
`reached[s][lane]` the last whose byte k precedes byte k of s. As ordering is transitive for each
byte, it is enough to compare with a slot's last writer and its readers since.
"""

from dataclasses import dataclass, field

import numpy as np

from headrace.collectives.plan.verify.structure import (
    COPY,
    LOCAL_OPS,
    REDUCE,
    SEND,
    Structure,
    fail,
)

_Access = tuple[int, int]
"""(step, first slot of the range that the access belongs to)."""


@dataclass(slots=True)
class _Slot:
    writer: _Access | None = None
    readers: dict[int, _Access] = field(default_factory=dict[int, _Access])
    """Since the last write, by lane: of two readers in a lane the later ends after the earlier."""


def check_races(s: Structure, order: list[int]) -> None:
    """Check every rank.

    Parameters
    ----------
    order : all steps, each after all that it waits for.

    Raises
    ------
    VerificationError : naming two steps that can touch a slot at the same time.
    """
    by_rank: list[list[int]] = [[] for _ in range(s.demand.ranks)]
    for step in order:
        by_rank[s.rank(step)].append(step)
    for steps in by_rank:
        if steps:
            _Clocks(s, steps).check(steps)


class _Clocks:
    """The clocks of one rank, whose steps and lanes are consecutive."""

    def __init__(self, s: Structure, steps: list[int]) -> None:
        self.s = s
        first, last = min(steps), max(steps)
        self.first_lane = s.lane[first]
        self.lanes = s.lane[last] - self.first_lane + 1
        self.finished: dict[int, np.ndarray] = {}
        self.reached: dict[int, np.ndarray] = {}
        self.slots: dict[int, _Slot] = {}
        self.needed = dict.fromkeys(steps, 0)
        """How many steps still have to look at the clocks of each."""
        for step in steps:
            for on in self._looks_at(step):
                self.needed[on] += 1

    def check(self, steps: list[int]) -> None:
        for step in steps:
            self._advance(step)
            self._access(step)
            for on in self._looks_at(step):
                self.needed[on] -= 1
                self._drop(on)
            self._drop(step)

    def _looks_at(self, step: int) -> list[int]:
        after = self.s.after[step]
        return [step - 1, *after] if self.s.position[step] else after

    def _drop(self, step: int) -> None:
        if not self.needed[step]:
            del self.finished[step], self.reached[step]
            self.needed[step] = 1  # once

    def _advance(self, step: int) -> None:
        s = self.s
        if s.position[step]:
            finished = self.reached[step - 1].copy()
        else:
            finished = np.full(self.lanes, -1, dtype=np.int32)
        streamed: list[int] = []
        for on in s.after[step]:
            if _may_stream(s, on, step):
                streamed.append(on)
                np.maximum(finished, self.finished[on], out=finished)
            else:
                np.maximum(finished, self.reached[on], out=finished)
        reached = finished.copy()
        for on in streamed:
            np.maximum(reached, self.reached[on], out=reached)
        reached[s.lane[step] - self.first_lane] = s.position[step]
        self.finished[step], self.reached[step] = finished, reached

    def _access(self, step: int) -> None:
        s = self.s
        op, slot, src, count = s.op[step], s.slot[step], s.src_slot[step], s.count[step]
        if op == SEND:
            self._read(step, slot, count)
            return
        if op in (COPY, REDUCE):
            self._read(step, src, count)
        self._write(step, slot, count)

    def _read(self, step: int, start: int, count: int) -> None:
        lane = self.s.lane[step]
        for slot in range(start, start + count):
            history = self.slots.setdefault(slot, _Slot())
            if history.writer is not None and not self._ordered(history.writer, step, start):
                self._report(history.writer[0], "writes", step, "reads", slot)
            history.readers[lane] = (step, start)

    def _write(self, step: int, start: int, count: int) -> None:
        for slot in range(start, start + count):
            history = self.slots.setdefault(slot, _Slot())
            if history.writer is not None and not self._ordered(history.writer, step, start):
                self._report(history.writer[0], "writes", step, "writes", slot)
            for reader in history.readers.values():
                if reader[0] != step and not self._ordered(reader, step, start):
                    self._report(reader[0], "reads", step, "writes", slot)
            history.writer = (step, start)
            history.readers = {}

    def _ordered(self, earlier: _Access, step: int, start: int) -> bool:
        on, earlier_start = earlier
        column, position = self.s.lane[on] - self.first_lane, self.s.position[on]
        if self.finished[step][column] >= position:
            return True
        return start == earlier_start and bool(self.reached[step][column] >= position)

    def _report(self, earlier: int, did: str, step: int, does: str, slot: int) -> None:
        s = self.s
        reached = self.reached[step][s.lane[earlier] - self.first_lane]
        found = "no lane or dependency orders them"
        if reached >= s.position[earlier]:
            found = "they are ordered only byte by byte, and not at the same bytes of the slot"
        fail(
            f"data race on slot {slot}: {s.name(earlier)} {did} it and {s.name(step)} {does} it, "
            f"but {found}; needs a dependency between them"
        )


def _may_stream(s: Structure, on: int, step: int) -> bool:
    """Whether byte k of `step` may start after byte k of `on`, in any reading."""
    return s.count[on] == s.count[step] and not _ranges(s, on).isdisjoint(_ranges(s, step))


def _ranges(s: Structure, step: int) -> set[int]:
    return {s.slot[step], s.src_slot[step]} if s.op[step] in LOCAL_OPS else {s.slot[step]}
