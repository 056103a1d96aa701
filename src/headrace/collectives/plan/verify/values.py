"""Contents of the slots: one symbolic execution, compared with the demand's postcondition.

A value is an item, the mask of ranks combined into it, and the expression that combined them:
``a (op) b`` equals ``b (op) a``, but ``(a (op) b) (op) c`` differs from ``a (op) (b (op) c)``, as
it does for floats. Equal values get equal numbers (each is stored once and found again by its
parts), so comparing two expressions is exact and costs one integer comparison.

Every write stores what was written last where its step reads; that is known before any value is
(`history`). Moves are followed back to where the value was combined, or was at first, for all
writes at once; only combining steps are executed one by one, in running order.
"""

import numpy as np

from headrace.collectives.demand import Collective
from headrace.collectives.plan.verify.conditions import Specification
from headrace.collectives.plan.verify.history import History, Writes
from headrace.collectives.plan.verify.structure import (
    RECV_REDUCE,
    REDUCE,
    Structure,
    fail,
)

_UNDEFINED = -1


def name_value(item: int, mask: int) -> str:
    """Return ``item 3 of ranks {0, 2}``."""
    ranks = [str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1]
    return f"item {item} of ranks {{{', '.join(ranks)}}}"


class SymbolicExecution:
    """The source of every write's value, then the values; `read` all histories first.

    A *source* is a write by its number, or, counted on from there, a row of the demand's
    precondition.
    """

    def __init__(self, s: Structure, order: np.ndarray, writes: Writes) -> None:
        self._s, self._writes = s, writes
        self._place = np.empty(len(order), dtype=np.int64)
        self._place[order] = np.arange(len(order))
        count = len(writes.step)
        self._demand = Specification.of(s.demand)
        before, after = self._demand.before, self._demand.after
        # Slots that no step touches and the demand does not name take no room.
        step = writes.step
        slot = s.slot[step] + np.arange(count) - writes.first[step]
        self._cells = np.unique(
            np.concatenate(
                [
                    s.rank[step] * s.slots + slot,
                    before.rank * s.slots + before.slot,
                    after.rank * s.slots + after.slot,
                ]
            )
        )
        """Every slot of a rank that is written or named, as ``rank * slots + slot``; sorted."""
        self._last = np.full(len(self._cells) + 1, _UNDEFINED)
        """Source of every cell's value: initial, in the end final; last row: other slots."""
        self._last[self._cell(before.rank, before.slot)] = count + np.arange(len(before.rank))
        self._gets = np.full(count, _UNDEFINED)
        self._held = np.full(count, _UNDEFINED)
        self._combines = np.isin(s.op[writes.step], (RECV_REDUCE, REDUCE))

    def read(self, history: History) -> None:
        """Record the sources of the writes of some ranks, and of the writes that read there.

        Raises
        ------
        VerificationError : if something is read that is undefined.
        """
        cell = self._cell(history.rank, history.slot)
        source = np.where(history.before >= 0, history.write[history.before], self._last[cell])
        reads = ~history.writes
        undefined = np.flatnonzero(reads & (source < 0))
        if len(undefined):
            row = undefined[self._place[history.step[undefined]].argmin()]
            fail(
                f"{self._s.name(int(history.step[row]))}: reads slot {history.slot[row]}, which is "
                "undefined; needs a value"
            )
        self._gets[history.write[reads]] = source[reads]
        self._held[history.write[history.writes]] = source[history.writes]
        # Rows of a slot are consecutive, in running order: of equal places the last one stays.
        self._last[cell[history.writes]] = history.write[history.writes]

    def _cell(self, rank: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Indices into `_last`; the last one, which stays undefined, for other slots."""
        if not len(self._cells):
            return np.zeros(len(rank), np.int64)
        key = rank * self._s.slots + slot
        at = np.minimum(np.searchsorted(self._cells, key), len(self._cells) - 1)
        return np.where(self._cells[at] == key, at, len(self._cells))

    def check(self) -> None:
        """Execute, and compare with the postcondition.

        Raises
        ------
        VerificationError : for a contribution combined twice, items mixed up, or a slot that does
            not hold in the end what the demand wants.
        """
        count, before = len(self._gets), self._demand.before
        # Follow moves back to their sources, twice as far each time (pointer jumping).
        root = np.arange(count + len(before.rank))
        root[:count] = np.where(self._combines, root[:count], self._gets)
        while not np.array_equal(further := root[root], root):
            root = further
        numbers = _Numbers(self._demand)
        value = np.full(len(root), _UNDEFINED)
        value[count:] = numbers.first
        self._execute(root, value, numbers)
        value = value[root]
        item = np.array(numbers.item, dtype=np.int64)
        self._check_sizes(value, item, numbers)
        self._check_wanted(value, item, numbers)
        if self._s.demand.collective in (Collective.ALLREDUCE, Collective.CUSTOM):
            self._check_agreement(value)

    def _execute(self, root: np.ndarray, value: np.ndarray, numbers: "_Numbers") -> None:
        """Combine, in running order."""
        writes = np.flatnonzero(self._combines)
        writes = writes[np.lexsort((writes, self._place[self._writes.step[writes]]))]
        gets = root[self._gets[writes]].tolist()
        previous = np.where(self._held[writes] >= 0, root[self._held[writes]], _UNDEFINED).tolist()
        for write, arriving, there in zip(writes.tolist(), gets, previous, strict=True):
            mine = int(value[there]) if there >= 0 else _UNDEFINED
            combined = numbers.combined(mine, int(value[arriving]))
            if isinstance(combined, str):
                step, slot = self._target(write)
                fail(
                    f"{self._s.name(step)}: combines {numbers.name(int(value[arriving]))} into "
                    f"slot {slot}, which holds {numbers.name(mine)}; needs {combined}"
                )
            value[write] = combined

    def _target(self, write: int) -> tuple[int, int]:
        """The step and the slot of a write."""
        step = int(self._writes.step[write])
        return step, int(self._s.slot[step]) + write - int(self._writes.first[step])

    def _check_sizes(self, value: np.ndarray, item: np.ndarray, numbers: "_Numbers") -> None:
        """Chunk k of a block covers elements kE//c to (k+1)E//c: sizes differ with k.

        How much a step moves is known from its slots alone, so a chunk may only lie where there
        is exactly its room: in scratch, slot s is taken to be as large as chunk s % c.
        """
        s, chunks = self._s, self._s.demand.chunks
        step = self._writes.step
        slot = s.slot[step] + np.arange(len(step)) - self._writes.first[step]
        written = value[: len(step)]
        wrong = np.flatnonzero(slot % chunks != item[written] % chunks)
        if len(wrong):
            write = wrong[self._place[step[wrong]].argmin()]
            chunk = item[written[write]] % chunks
            fail(
                f"{s.name(int(step[write]))}: puts {numbers.name(int(written[write]))}, "
                f"chunk {chunk} of its block, into slot {slot[write]}, made "
                f"for chunk {slot[write] % chunks}; needs a slot of that chunk, as sizes can differ"
            )

    def _check_wanted(self, value: np.ndarray, item: np.ndarray, numbers: "_Numbers") -> None:
        required, masks = self._demand.after, self._demand.masks
        final = self._in_the_end(value)
        index = {mask: by for by, mask in enumerate(masks)}
        by = np.array([index.get(mask, _UNDEFINED) for mask in numbers.mask], dtype=np.int64)
        # Undefined is looked up like the last value there is, and rejected all the same.
        if not len(item):
            item = by = np.array([_UNDEFINED])
        wrong = (final < 0) | (item[final] != required.item) | (by[final] != required.by)
        if wrong.any():
            row = int(wrong.argmax())
            rank, slot = int(required.rank[row]), int(required.slot[row])
            need = name_value(int(required.item[row]), masks[int(required.by[row])])
            fail(
                f"rank {rank}, slot {slot}: holds {numbers.name(int(final[row]))} in the end"
                f"{self._last_writer(rank, slot)}; needs {need}"
            )

    def _check_agreement(self, value: np.ndarray) -> None:
        """Equal results must be equal bit by bit: replicas drift apart otherwise."""
        required = self._demand.after
        final = self._in_the_end(value)
        key = required.item * len(self._demand.masks) + required.by
        _, first, of = np.unique(key, return_index=True, return_inverse=True)
        representative = first[of]
        wrong = np.flatnonzero(final != final[representative])
        if len(wrong):
            row = wrong[0]
            rank, slot = int(required.rank[row]), int(required.slot[row])
            fail(
                f"rank {rank}, slot {slot}: combines the contributions in another order "
                f"than rank {required.rank[representative[row]]}{self._last_writer(rank, slot)}; "
                "needs the same order at every rank, as floats round differently"
            )

    def _in_the_end(self, value: np.ndarray) -> np.ndarray:
        """Return the final value of every slot that the demand names."""
        required = self._demand.after
        last = self._last[self._cell(required.rank, required.slot)]
        return np.where(last >= 0, value[last] if len(value) else _UNDEFINED, _UNDEFINED)

    def _last_writer(self, rank: int, slot: int) -> str:
        write = int(self._last[self._cell(np.array([rank]), np.array([slot]))][0])
        if not 0 <= write < len(self._writes.step):
            return ""
        return f" (written by {self._s.name(int(self._writes.step[write]))})"


class _Numbers:
    """All values found so far, each with one number.

    Attributes
    ----------
    item, mask : by number.
    first : the numbers of the initial values, by row of the precondition.
    """

    def __init__(self, demand: Specification) -> None:
        before = demand.before
        key = before.item * len(demand.masks) + before.by
        _, row, self.first = np.unique(key, return_index=True, return_inverse=True)
        self.item: list[int] = before.item[row].tolist()
        self.mask = [demand.masks[by] for by in before.by[row].tolist()]
        self._combined: dict[int, int] = {}
        self._masks = {mask: mask for mask in self.mask}  # each kept once: they are long

    def combined(self, stored: int, arriving: int) -> int | str:
        """Return the number of the two combined, or the operand that would be needed."""
        pair = stored << 32 | arriving if stored <= arriving else arriving << 32 | stored
        number = self._combined.get(pair)
        if number is not None:
            return number
        if stored == _UNDEFINED:
            return "a defined value"
        if self.item[stored] != self.item[arriving]:
            return "the same item"
        if self.mask[stored] & self.mask[arriving]:
            return "each contribution only once"
        self._combined[pair] = number = len(self.item)
        self.item.append(self.item[stored])
        mask = self.mask[stored] | self.mask[arriving]
        self.mask.append(self._masks.setdefault(mask, mask))
        return number

    def name(self, value: int) -> str:
        if value == _UNDEFINED:
            return "nothing (undefined)"
        return name_value(self.item[value], self.mask[value])
