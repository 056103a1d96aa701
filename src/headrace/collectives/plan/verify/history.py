"""Access history: reads and writes of every slot by a program's steps, in running order.

A send reads its slots, a receive writes them; a local step reads from `src_slot` on and writes from
`slot` on. A combining step counts as a write. Written slots are numbered: `Writes`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.collectives.plan.verify.structure import COPY, REDUCE, SEND, Structure

_ACCESSES = 1 << 18
"""About so many accesses are processed together, which takes some tens of MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class History:
    """The accesses of a few consecutive ranks, sorted by rank, slot and order of running.

    Attributes
    ----------
    step, rank, slot : of every access.
    start : the first slot of the range that it belongs to.
    write : its own number, or that of the write that stores what it reads (see `Writes`).
    writes : whether it writes.
    before : the access that last wrote the slot before it; -1 if none did.
    after : for every read the access that next writes the slot; -1 if none does, and for writes.
    """

    step: np.ndarray
    rank: np.ndarray
    slot: np.ndarray
    start: np.ndarray
    write: np.ndarray
    writes: np.ndarray
    before: np.ndarray
    after: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Writes:
    """Numbers for all writes of one slot each.

    Attributes
    ----------
    first : of every step the number of its first, from which on its slots are counted; sends have
        none and their receive's stands there: the writes that store what they read.
    step : of every write.
    """

    first: np.ndarray
    step: np.ndarray

    @classmethod
    def of(cls, s: Structure) -> "Writes":
        """Number the writes of `s`, step by step."""
        count = np.where(s.op == SEND, 0, s.count)
        first = np.cumsum(count) - count
        return cls(
            first=np.where(s.op == SEND, first[s.partner], first),
            step=np.repeat(np.arange(len(s.op)), count),
        )


def histories(s: Structure, order: np.ndarray, writes: Writes) -> Iterator[History]:
    """Yield the accesses of all ranks, some ranks at a time.

    Parameters
    ----------
    order : all steps, each after all that it waits for.
    """
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    first = np.searchsorted(s.rank, np.arange(s.demand.ranks + 1))
    done = np.append(0, np.cumsum(s.count))[first]
    begin = 0
    while begin < s.demand.ranks:
        end = int(np.searchsorted(done, done[begin] + _ACCESSES, side="right")) - 1
        end = max(end, begin + 1)
        steps = np.arange(first[begin], first[end])
        if len(steps):
            yield _history(s, steps, place, writes)
        begin = end


def _history(s: Structure, steps: np.ndarray, place: np.ndarray, writes: Writes) -> History:
    local = (s.op[steps] == COPY) | (s.op[steps] == REDUCE)
    sends = s.op[steps] == SEND
    parts = [
        (steps[sends], s.slot, False),
        (steps[local], s.src_slot, False),
        (steps[~sends], s.slot, True),
    ]
    columns = [_expanded(s, of, start, writes) for of, start, _ in parts]
    step, slot, start, write = (np.concatenate(column) for column in zip(*columns, strict=True))
    kind = np.repeat([wrote for _, _, wrote in parts], [len(column[0]) for column in columns])
    cell = s.rank[step] * s.slots + slot
    order = np.lexsort((place[step], cell))
    cell, kind = cell[order], kind[order]
    row = np.arange(len(cell))
    # A cell's rows are consecutive: a write before its first row is to another cell.
    new = np.maximum.accumulate(np.where(np.append(True, np.diff(cell) != 0), row, 0))
    last = np.append(-1, np.maximum.accumulate(np.where(kind, row, -1))[:-1])
    following = np.minimum.accumulate(np.where(kind, row, len(row))[::-1])[::-1]
    following = np.where(kind, len(row), following)
    same = cell[np.minimum(following, len(row) - 1)] == cell
    step, slot = step[order], slot[order]
    return History(
        step=step,
        rank=s.rank[step],
        slot=slot,
        start=start[order],
        write=write[order],
        writes=kind,
        before=np.where(last >= new, last, -1),
        after=np.where(same & (following < len(row)), following, -1),
    )


def _expanded(
    s: Structure, steps: np.ndarray, start: np.ndarray, writes: Writes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Step, slot, first slot and write of every slot of the steps' ranges from `start` on."""
    count = s.count[steps]
    step = np.repeat(steps, count)
    k = np.arange(len(step)) - np.repeat(np.cumsum(count) - count, count)
    return step, start[step] + k, start[step], writes.first[step] + k
