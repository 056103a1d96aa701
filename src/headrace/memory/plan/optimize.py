"""Faster implementations of the runs of a schedule, as of Checkmate's (Jain et al. 2020)."""

from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule, Step


def post_optimized(graph: Graph, schedule: Schedule, budget_bytes: int) -> Schedule:
    """Return the schedule with the fastest implementation of each run that fits (Checkmate-O).

    One run after the other, those first that save the most time; what runs does not change.
    """
    steps = list(schedule.steps)
    ways = [operator.implementations for operator in graph.operators]
    savings = sorted(
        (ways[step.operator][number].time_us - ways[step.operator][0].time_us, index, number)
        for index, step in enumerate(steps)
        for number in range(1, len(ways[step.operator]))
    )
    done: set[int] = set()
    for saved, index, number in savings:
        if saved >= 0 or index in done:
            continue
        tried = [*steps]
        tried[index] = Step(steps[index].operator, number)
        changed = Schedule(steps=tuple(tried), forward_steps=schedule.forward_steps)
        try:
            verify(graph, changed, budget_bytes)
        except ScheduleError:
            continue
        steps = tried
        done.add(index)
    return Schedule(steps=tuple(steps), forward_steps=schedule.forward_steps)
