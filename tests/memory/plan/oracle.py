"""The fastest schedule of a small training step, by trying everything.

Within the class of `headrace.memory.plan.stages`: the forward pass once, then before each backward
operator any forward operators again, each at most once and in order; before the first one, the
loss, only if that may read what is not kept. A state is where the schedule is and what is there;
before every operator anything may be dropped. It shares no code with the planner.
"""

from dataclasses import dataclass

from headrace.memory.graph import Graph, Implementation
from headrace.memory.schedule import Schedule, Step

State = tuple[frozenset[int], frozenset[int]]
"""Storages of the forward pass that are live beside kept outputs, and outputs recomputed."""
Found = dict[State, tuple[float, tuple[Step, ...]]]


@dataclass(frozen=True, slots=True)
class Best:
    time_us: float
    schedule: Schedule


def fastest(graph: Graph, budget_bytes: int) -> Best | None:
    """Return the fastest schedule within a budget, or None if there is none."""
    return _Search(graph, budget_bytes).best()


class _Search:
    def __init__(self, graph: Graph, budget: int) -> None:
        self.graph, self.budget = graph, budget
        self.forward = range(graph.forward_count)
        self.made_forward = {
            each
            for op in graph.operators[: graph.forward_count]
            for way in op.implementations
            for each in way.creates
        }
        assert not graph.results & self.made_forward

    def best(self) -> Best | None:
        found: Found = {(frozenset(), frozenset()): (0.0, ())}
        kept = 0
        for operator in self.forward:
            held = self.graph.resident_bytes + kept
            found = self.run(_subsets(found), operator, held, first=True)
            ways = self.graph.operators[operator].implementations
            kept += self.nbytes(self.graph.outputs & set(ways[0].creates))
        for backward in range(len(self.forward), len(self.graph.operators)):
            held = self.graph.resident_bytes + kept + self.gradients(backward)
            is_loss = backward == len(self.forward) and not self.reads_dropped(backward)
            for operator in () if is_loss else self.forward:
                found = _subsets(found)
                if self.graph.operators[operator].again:
                    again = self.run(found, operator, held, first=False)
                    for state, value in again.items():
                        _improve(found, state, value)
            found = self.run(_subsets(found), backward, held, first=True)
        if not found:
            return None
        time, steps = min(found.values(), key=lambda value: value[0])
        return Best(time, Schedule(steps=steps, forward_steps=len(self.forward)))

    def reads_dropped(self, backward: int) -> bool:
        """Return whether an operator may read what the forward pass does not keep to the end."""
        ways = self.graph.operators[backward].implementations
        read = {each for way in ways for each in way.reads}
        return bool(read & self.made_forward - self.graph.outputs)

    def nbytes(self, storages: set[int] | frozenset[int]) -> int:
        return sum(self.graph.storages[each].nbytes for each in storages)

    def gradients(self, backward: int) -> int:
        """Return the bytes of gradients and results that are there before an operator."""
        before = {
            each
            for op in self.graph.operators[len(self.forward) : backward]
            for each in op.implementations[0].creates
        }
        later = {
            each
            for op in self.graph.operators[backward:]
            for way in op.implementations
            for each in way.reads
        }
        return self.nbytes(before & (later | self.graph.results))

    def run(self, found: Found, operator: int, held: int, *, first: bool) -> Found:
        """Return the states after an operator, by every implementation that can run."""
        after: Found = {}
        for (live, again), (time, steps) in found.items():
            for number, way in enumerate(self.graph.operators[operator].implementations):
                state = self.state(live, again, way, operator, held, first=first)
                if state is not None:
                    step = Step(operator, number)
                    _improve(after, state, (time + way.time_us, (*steps, step)))
        return after

    def state(
        self,
        live: frozenset[int],
        again: frozenset[int],
        way: Implementation,
        operator: int,
        held: int,
        *,
        first: bool,
    ) -> State | None:
        outputs = self.graph.outputs
        for storage in set(way.reads) & self.made_forward:
            if storage not in live and not (storage in outputs and storage not in again):
                return None
        over = frozenset[int]() if way.overwrites is None else frozenset({way.overwrites})
        if over & outputs - again:
            return None
        needed = held + self.nbytes(live) + self.nbytes(set(way.creates)) + way.workspace_bytes
        if needed - self.nbytes(over) > self.budget:
            return None
        made = set(way.creates) & self.made_forward
        if first:
            return live - over | made - outputs, again
        return live - over | made, again | made & outputs


def _improve(found: Found, state: State, value: tuple[float, tuple[Step, ...]]) -> None:
    if state not in found or value[0] < found[state][0]:
        found[state] = value


def _subsets(found: Found) -> Found:
    """Return the states in which any of what is there has been dropped, too."""
    every = dict(found)
    waves: dict[int, list[State]] = {}
    for state in every:
        waves.setdefault(len(state[0]), []).append(state)
    for size in range(max(waves, default=0), 0, -1):
        for state in waves.get(size, []):
            for gone in state[0]:
                smaller = (state[0] - {gone}, state[1])
                if smaller not in every:
                    waves.setdefault(size - 1, []).append(smaller)
                _improve(every, smaller, every[state])
    return every
