"""Schedules made by hand, for graphs of any model."""

from headrace.memory.graph import Graph
from headrace.memory.schedule import Schedule, Step


def forgetful_schedule(graph: Graph) -> Schedule:
    """Return the schedule that stores nothing: every read of the backward pass is recomputed.

    Stored are only the outputs of operators that may not run again.
    """
    creators = {
        storage: index
        for index, each in enumerate(graph.operators)
        for storage in each.implementations[0].creates
    }
    steps = [Step(index) for index in range(graph.forward_count)]

    def recompute(operator: int, present: set[int]) -> None:
        for storage in graph.operators[operator].implementations[0].reads:
            creator = creators[storage]
            runs_again = creator < graph.forward_count and graph.operators[creator].again
            if storage not in present and runs_again:
                recompute(creator, present)
                steps.append(Step(creator))
                present.update(graph.operators[creator].implementations[0].creates)

    steps.append(Step(graph.forward_count))  # the loss
    for index in range(graph.forward_count + 1, len(graph.operators)):
        recompute(index, set())
        steps.append(Step(index))
    return Schedule(steps=tuple(steps), forward_steps=graph.forward_count)
