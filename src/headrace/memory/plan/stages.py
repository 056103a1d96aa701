"""A training step in stages: what the programs and searches share.

Stage 0 is the forward pass. Stage t, from 1, recomputes forward operators, each at most once and in
the graph's order, and ends with the t-th backward operator (Algorithms 3 and 4 of the paper, whose
stages count down from N). The first one is the loss's, in which none runs again if it reads nothing
that could be dropped. Schedules are made and bounded within this class.
"""

from collections.abc import Iterable

from headrace.memory.graph import Graph, Implementation
from headrace.memory.schedule import Schedule, Step


class Stages:
    """Tables of a graph by stage.

    Attributes
    ----------
    count : of backward operators, and so of stages besides 0.
    kept : storages of the forward pass that stay from their creation to the end.
    creator : of each other storage of the forward pass the operator that creates it.
    readers : of each of those the forward operators that some implementation reads it by, in order.
    useful : by stage the storages of `creator` that can serve this or a later stage.
    first_again : the first stage in which operators run again: the loss needs none of them to.
    entering_bytes : by stage the live bytes beside them: resident, kept, earlier gradients.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.forward = range(graph.forward_count)
        self.count = len(graph.operators) - graph.forward_count
        creator = {
            storage: index
            for index in self.forward
            for variant in graph.operators[index].implementations
            for storage in variant.creates
        }
        lasting = graph.outputs | graph.results
        self.kept = frozenset(storage for storage in creator if storage in lasting)
        self.creator = {storage: by for storage, by in creator.items() if storage not in self.kept}
        self.readers: dict[int, list[int]] = {storage: [] for storage in self.creator}
        for index in self.forward:
            for storage in sorted(self._touched(index) & self.creator.keys()):
                self.readers[storage].append(index)
        needed = self.count > 0 and self._touched(self.backward(1)) & self.creator.keys()
        self.first_again = 1 if needed else 2
        self.useful = self._useful()
        self.entering_bytes = self._entering()

    def backward(self, stage: int) -> int:
        """Return the backward operator that ends a stage."""
        return self.graph.forward_count + stage - 1

    def ways(self, operator: int) -> tuple[Implementation, ...]:
        """Return the implementations of an operator."""
        return self.graph.operators[operator].implementations

    def nbytes(self, storages: Iterable[int]) -> int:
        """Return the bytes of some storages together."""
        return sum(self.graph.storages[storage].nbytes for storage in storages)

    def reads(self, variant: Implementation) -> list[int]:
        """Return the storages of `creator` that an implementation reads."""
        return [storage for storage in variant.reads if storage in self.creator]

    def operands(self, operator: int) -> set[int]:
        """Return those that every implementation of an operator reads."""
        return set.intersection(*(set(self.reads(variant)) for variant in self.ways(operator)))

    def run_bytes(self, variant: Implementation) -> int:
        """Return the bytes that a run allocates: creations and the workspace."""
        reused = 0 if variant.overwrites is None else self.nbytes([variant.overwrites])
        return variant.workspace_bytes + self.nbytes(variant.creates) - reused

    def again(self, stage: int, operator: int) -> bool:
        """Return whether running a forward operator again in a stage can be of use."""
        can = stage >= self.first_again and self.graph.operators[operator].again
        return can and any(
            storage in self.useful[stage]
            for variant in self.ways(operator)
            for storage in variant.creates
        )

    def is_read(self, storage: int, stage: int) -> bool:
        """Return whether a backward operator of this or a later stage may read a storage."""
        later = range(stage, self.count + 1)
        return any(storage in self._touched(self.backward(later_stage)) for later_stage in later)

    def schedule(self, forward: Iterable[int], stages: Iterable[Iterable[Step]]) -> Schedule:
        """Return a schedule from the implementations of the forward pass and the runs by stage."""
        first = [Step(index, implementation) for index, implementation in enumerate(forward)]
        later = [step for stage in stages for step in stage]
        return Schedule(steps=(*first, *later), forward_steps=len(first))

    def _touched(self, operator: int) -> set[int]:
        return {storage for variant in self.ways(operator) for storage in variant.reads}

    def _useful(self) -> list[set[int]]:
        """Return by stage the closure of what this and later backward operators may read."""
        useful: list[set[int]] = [set() for _ in range(self.count + 1)]
        closure: set[int] = set()
        for stage in range(self.count, 0, -1):
            pending = [
                storage
                for storage in self._touched(self.backward(stage))
                if storage in self.creator and storage not in closure
            ]
            while pending:
                storage = pending.pop()
                if storage in closure:
                    continue
                closure.add(storage)
                if self.graph.operators[self.creator[storage]].again:
                    touched = self._touched(self.creator[storage])
                    pending += [storage for storage in touched if storage in self.creator]
            useful[stage] = set(closure)
        useful[0] = set(self.creator)
        return useful

    def _entering(self) -> list[int]:
        """Return by stage the least live bytes beside the storages of `creator`."""
        graph = self.graph
        always = graph.resident_bytes + self.nbytes(self.kept)
        change = [0] * (self.count + 2)
        for stage in range(1, self.count + 1):
            ways = self.ways(self.backward(stage))
            for storage in set.intersection(*(set(variant.creates) for variant in ways)):
                last = self.count if storage in graph.results else self._last_read(storage, stage)
                if last > stage:
                    change[stage + 1] += graph.storages[storage].nbytes
                    change[last + 1] -= graph.storages[storage].nbytes
        entering, live_bytes = [graph.resident_bytes], always
        for stage in range(1, self.count + 1):
            live_bytes += change[stage]
            entering.append(live_bytes)
        return entering

    def _last_read(self, storage: int, stage: int) -> int:
        """Return the last stage at which every implementation reads a gradient."""
        for later in range(self.count, stage, -1):
            if all(storage in variant.reads for variant in self.ways(self.backward(later))):
                return later
        return stage
