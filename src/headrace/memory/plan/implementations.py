"""Implementations that a schedule may need: those that only cost more than the first are left out.

The fewer a graph has, the smaller are its programs, and the fewer moves a search has.
"""

from dataclasses import dataclass, replace

from headrace.memory.graph import Graph, Implementation
from headrace.memory.schedule import Schedule, Step


@dataclass(frozen=True, slots=True)
class UsefulImplementations:
    """Some of the implementations of each operator.

    Attributes
    ----------
    numbers : by operator, of its useful implementations in the full graph; the first is one.
    """

    numbers: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: Graph) -> "UsefulImplementations":
        """Return the first ones and those that are not like it at no less cost."""
        return cls(
            tuple(
                (
                    0,
                    *(
                        number
                        for number, implementation in enumerate(operator.implementations)
                        if number and _is_useful(implementation, operator.implementations[0])
                    ),
                )
                for operator in graph.operators
            )
        )

    def graph(self, full: Graph) -> Graph:
        """Return the graph with these implementations alone."""
        return replace(
            full,
            operators=tuple(
                replace(
                    operator,
                    implementations=tuple(operator.implementations[number] for number in numbers),
                )
                for operator, numbers in zip(full.operators, self.numbers, strict=True)
            ),
        )

    def narrowed(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the full graph, with first implementations for those left out."""
        places = [{number: place for place, number in enumerate(row)} for row in self.numbers]
        steps = (
            Step(step.operator, places[step.operator].get(step.implementation, 0))
            for step in schedule.steps
        )
        return replace(schedule, steps=tuple(steps))

    def widened(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the narrow graph as one of the full graph."""
        steps = tuple(
            Step(step.operator, self.numbers[step.operator][step.implementation])
            for step in schedule.steps
        )
        return replace(schedule, steps=steps)


def _is_useful(implementation: Implementation, first: Implementation) -> bool:
    return (
        (implementation.reads, implementation.creates, implementation.overwrites)
        != (first.reads, first.creates, first.overwrites)
        or implementation.time_us < first.time_us
        or implementation.workspace_bytes < first.workspace_bytes
    )
