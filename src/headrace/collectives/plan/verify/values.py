"""What the slots hold: one symbolic execution, compared with what the demand wants.

A value is an item, the mask of ranks combined into it, and the expression that combined them:
``a (op) b`` equals ``b (op) a``, but ``(a (op) b) (op) c`` differs from ``a (op) (b (op) c)``, as
it does for floats. Equal values get equal numbers (each is stored once and found again by its
parts), so comparing two expressions is exact and costs one integer comparison.
"""

from dataclasses import dataclass, field

from headrace.collectives.demand import Collective
from headrace.collectives.plan.verify.structure import (
    COPY,
    RECV,
    RECV_REDUCE,
    REDUCE,
    Structure,
    fail,
)

_UNDEFINED = -1


@dataclass(slots=True)
class _Values:
    """All values met so far, each with one number."""

    item: list[int] = field(default_factory=list[int])
    mask: list[int] = field(default_factory=list[int])
    _contributed: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    _combined: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def contribution(self, item: int, mask: int) -> int:
        return self._number(self._contributed, (item, mask), item, mask)

    def combine(self, left: int, right: int) -> int:
        pair = (left, right) if left <= right else (right, left)
        return self._number(
            self._combined, pair, self.item[left], self.mask[left] | self.mask[right]
        )

    def _number(
        self, known: dict[tuple[int, int], int], key: tuple[int, int], item: int, mask: int
    ) -> int:
        number = known.get(key)
        if number is None:
            number = known[key] = len(self.item)
            self.item.append(item)
            self.mask.append(mask)
        return number

    def name(self, value: int) -> str:
        if value == _UNDEFINED:
            return "nothing (undefined)"
        return name_value(self.item[value], self.mask[value])


def name_value(item: int, mask: int) -> str:
    """Return ``item 3 of ranks {0, 2}``."""
    ranks = [str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1]
    return f"item {item} of ranks {{{', '.join(ranks)}}}"


def check_values(s: Structure, order: list[int]) -> None:
    """Execute `order` and compare.

    Parameters
    ----------
    order : all steps, each after all that it waits for, each send just before its receive.

    Raises
    ------
    VerificationError : for an undefined read, a contribution combined twice, items mixed up, or a
        slot that does not hold in the end what the demand wants.
    """
    machine = _Machine(s)
    for step in order:
        machine.execute(step)
    machine.check_wanted()
    if s.demand.collective in (Collective.ALLREDUCE, Collective.CUSTOM):
        machine.check_agreement()


class _Machine:
    """The slots of all ranks: what each holds, and the step that wrote it."""

    def __init__(self, s: Structure) -> None:
        self.s = s
        self.values = _Values()
        self.held = [[_UNDEFINED] * s.slots for _ in range(s.demand.ranks)]
        self.wrote = [[-1] * s.slots for _ in range(s.demand.ranks)]
        for rank, slots in enumerate(self.held):
            for slot, item, mask in s.demand.initial(rank):
                slots[slot] = self.values.contribution(item, mask)

    def execute(self, step: int) -> None:
        s, op = self.s, self.s.op[step]
        if op in (RECV, RECV_REDUCE):
            send = s.partner[step]
            arriving = self._read(send, s.rank(send), s.slot[send])
            self._write(step, arriving, combine=op == RECV_REDUCE)
        elif op in (COPY, REDUCE):
            arriving = self._read(step, s.rank(step), s.src_slot[step])
            self._write(step, arriving, combine=op == REDUCE)

    def _read(self, step: int, rank: int, start: int) -> list[int]:
        found = self.held[rank][start : start + self.s.count[step]]
        if _UNDEFINED in found:
            slot = start + found.index(_UNDEFINED)
            fail(f"{self.s.name(step)}: reads slot {slot}, which is undefined; needs a value")
        return found

    def _write(self, step: int, arriving: list[int], *, combine: bool) -> None:
        rank = self.s.rank(step)
        slots, wrote = self.held[rank], self.wrote[rank]
        for slot, value in enumerate(arriving, self.s.slot[step]):
            self._check_size(step, slot, value)
            slots[slot] = self._combine(step, slot, slots[slot], value) if combine else value
            wrote[slot] = step

    def _check_size(self, step: int, slot: int, value: int) -> None:
        """Chunk k of a block covers elements kE//c to (k+1)E//c: sizes differ with k.

        How much a step moves is known from its slots alone, so a chunk may only lie where there
        is exactly its room: in scratch, slot s is taken to be as large as chunk s % c.
        """
        chunks = self.s.demand.chunks
        if slot % chunks != self.values.item[value] % chunks:
            fail(
                f"{self.s.name(step)}: puts {self.values.name(value)}, "
                f"chunk {self.values.item[value] % chunks} of its block, into slot {slot}, made "
                f"for chunk {slot % chunks}; needs a slot of that chunk, as sizes can differ"
            )

    def _combine(self, step: int, slot: int, held: int, arriving: int) -> int:
        values, problem = self.values, ""
        if held == _UNDEFINED:
            problem = "a defined value"
        elif values.item[held] != values.item[arriving]:
            problem = "the same item"
        elif values.mask[held] & values.mask[arriving]:
            problem = "each contribution only once"
        if problem:
            fail(
                f"{self.s.name(step)}: combines {values.name(arriving)} into slot {slot}, which "
                f"holds {values.name(held)}; needs {problem}"
            )
        return values.combine(held, arriving)

    def check_wanted(self) -> None:
        for rank, slots in enumerate(self.held):
            for slot, item, mask in self.s.demand.final(rank):
                value = slots[slot]
                if (
                    value == _UNDEFINED
                    or self.values.item[value] != item
                    or self.values.mask[value] != mask
                ):
                    fail(
                        f"rank {rank}, slot {slot}: holds {self.values.name(value)} in the end"
                        f"{self._last_writer(rank, slot)}; needs {name_value(item, mask)}"
                    )

    def check_agreement(self) -> None:
        """Equal results must be equal bit by bit: replicas drift apart otherwise."""
        first: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, slots in enumerate(self.held):
            for slot, item, mask in self.s.demand.final(rank):
                value, of = first.setdefault((item, mask), (slots[slot], rank))
                if slots[slot] != value:
                    fail(
                        f"rank {rank}, slot {slot}: combines the contributions in another order "
                        f"than rank {of}{self._last_writer(rank, slot)}; needs the same order at "
                        "every rank, as floats round differently"
                    )

    def _last_writer(self, rank: int, slot: int) -> str:
        step = self.wrote[rank][slot]
        return "" if step < 0 else f" (written by {self.s.name(step)})"
