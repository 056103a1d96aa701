"""Schedules: in which order the operators of a training step run, by which implementations."""

from dataclasses import dataclass

from headrace.facades import offered_by, public_value
from headrace.memory.graph import Graph


@offered_by("headrace.memory")
@dataclass(frozen=True, slots=True)
class Step:
    """One run of an operator, by one of its implementations (both are indices)."""

    operator: int
    implementation: int = 0


@public_value("headrace.memory")
class Schedule:
    """Runs of operators, in order: all of the forward pass, then the backward pass.

    Nothing is freed by name. A run of an operator makes an instance of each storage that it
    creates; a read is of the latest instance; an instance is freed after its last read, at once if
    there is none. Kept to the end are the instances of outputs that the forward pass leaves, and
    those of results. So the order alone says what is stored and what is recomputed, which the paper
    has as variables s and r (Table 4.1).

    Attributes
    ----------
    steps : of which the first `forward_steps` are the forward pass: every forward operator at
        least once. Later ones are the backward operators, each once and in the graph's order, and
        forward operators that are run again between them.
    """

    steps: tuple[Step, ...]
    forward_steps: int

    def __repr__(self) -> str:
        backward_steps = len(self.steps) - self.forward_steps
        return f"<Schedule: {self.forward_steps} forward and {backward_steps} backward runs>"


def plain_schedule(graph: Graph) -> Schedule:
    """Return the schedule of a plain run: every operator once, by its first implementation."""
    steps = tuple(Step(operator) for operator in range(len(graph.operators)))
    return Schedule(steps=steps, forward_steps=graph.forward_count)
