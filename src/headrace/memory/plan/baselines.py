"""Schedules made by rule: a set of storages is kept, all others are computed again on demand."""

from collections.abc import Collection, Iterable, Sequence
from math import isqrt

from headrace.memory.graph import Graph, Implementation
from headrace.memory.schedule import Schedule, Step


def keep_schedule(
    graph: Graph, stored: Collection[int], choice: Sequence[int] | None = None
) -> Schedule:
    """Return the schedule that drops all but `stored` at the end of the forward pass.

    What the backward pass reads beside them is computed again right before its first reader, from
    the storages that are live, and stays until its last. Storages of operators that may not run
    again are stored as well.

    Parameters
    ----------
    stored : storages that forward operators create.
    choice : implementation of every operator; None: the first. Where one overwrites its operand, an
        operator that is computed again runs by its first implementation that does not.
    """
    return _OnDemand(graph, choice or [0] * len(graph.operators)).schedule(set(stored))


def sqrt_schedule(graph: Graph, segments: int | None = None) -> Schedule:
    """Return the schedule of sqrt(n) checkpointing (Chen et al., 2016, section 4).

    The forward pass is cut into segments of about equally many operators, each cut where the least
    bytes cross it within a quarter of a segment; what crosses a cut is kept.

    Parameters
    ----------
    segments : None: the square root of the number of forward operators.
    """
    count = graph.forward_count
    parts = segments or max(1, isqrt(count))
    crossing = _crossings(graph)
    sizes = [sum(graph.storages[storage].nbytes for storage in cut) for cut in crossing]
    reach = count // (4 * parts)
    stored: set[int] = set()
    for part in range(1, parts):
        middle = part * count // parts
        near = range(max(1, middle - reach), min(count, middle + reach + 1))
        if near:
            stored |= crossing[min(near, key=lambda at: (sizes[at], abs(at - middle)))]
    return keep_schedule(graph, stored)


def block_schedule(graph: Graph, blocks: Iterable[str]) -> Schedule:
    """Return the schedule of ``torch.utils.checkpoint`` around some modules.

    Kept is what is not created within one of them, and what leaves one.

    Parameters
    ----------
    blocks : names of modules; what is traced inside of them belongs to them.
    """
    names = tuple(blocks)
    block = [
        next((name for name in names if f"{op.module}.".startswith(f"{name}.")), None)
        for op in graph.operators[: graph.forward_count]
    ]
    creator = graph.creators()
    stored = {
        storage for storage, by in creator.items() if by < graph.forward_count and block[by] is None
    }
    for operator in range(graph.forward_count):
        for storage in _all_reads(graph, operator):
            if block[creator[storage]] != block[operator]:
                stored.add(storage)
    return keep_schedule(graph, stored)


def _all_reads(graph: Graph, operator: int) -> set[int]:
    return {read for variant in graph.operators[operator].implementations for read in variant.reads}


def _crossings(graph: Graph) -> list[set[int]]:
    """Return for every cut before an operator the storages that forward operators read across."""
    crossing: list[set[int]] = [set() for _ in range(graph.forward_count)]
    creator = graph.creators()
    for operator in range(graph.forward_count):
        for storage in graph.operators[operator].implementations[0].reads:
            for cut in range(creator[storage] + 1, operator + 1):
                crossing[cut].add(storage)
    return crossing


class _OnDemand:
    """Appends the runs that an operator needs, and its own."""

    def __init__(self, graph: Graph, choice: Sequence[int]) -> None:
        self._graph, self._choice = graph, choice
        self._creator = graph.creators()
        self._steps: list[Step] = []
        self._present: set[int] = set()

    def schedule(self, stored: set[int]) -> Schedule:
        forward = range(self._graph.forward_count)
        for operator in forward:
            self._run(operator)
        length = len(self._steps)
        fixed = {
            storage for storage, by in self._creator.items() if not self._graph.operators[by].again
        }
        self._present &= stored | fixed | self._graph.outputs
        for operator in range(len(forward), len(self._graph.operators)):
            self._run(operator)
        return Schedule(steps=tuple(self._steps), forward_steps=length)

    def _run(self, operator: int) -> None:
        """Append the runs that make an operator's operands present, then its own."""
        self._append(operator, self._needed(self._implementation(operator, self._choice[operator])))

    def _append(self, operator: int, again: Iterable[int]) -> None:
        for rerun in again:
            self._step(rerun, self._again(rerun))
        self._step(operator, self._choice[operator])

    def _step(self, operator: int, choice: int) -> None:
        implementation = self._implementation(operator, choice)
        self._steps.append(Step(operator, choice))
        if implementation.overwrites is not None:
            self._present.discard(implementation.overwrites)
        self._present.update(implementation.creates)

    def _needed(self, implementation: Implementation) -> list[int]:
        """Return the operators to run again, in order, to make all operands present."""
        operators: set[int] = set()
        pending = [read for read in implementation.reads if read not in self._present]
        while pending:
            creator = self._creator[pending.pop()]
            if creator not in operators:
                operators.add(creator)
                reads = self._implementation(creator, self._again(creator)).reads
                pending += [read for read in reads if read not in self._present]
        return sorted(operators)

    def _again(self, operator: int) -> int:
        """Return the implementation by which an operator is computed again."""
        choice = self._choice[operator]
        if self._implementation(operator, choice).overwrites is None:
            return choice
        variants = self._graph.operators[operator].implementations
        apart = (index for index, variant in enumerate(variants) if variant.overwrites is None)
        return next(apart, choice)

    def _implementation(self, operator: int, choice: int) -> Implementation:
        return self._graph.operators[operator].implementations[choice]
