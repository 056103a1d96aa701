"""Time against memory: the fastest schedules known at several budgets (Figure 4.4 of the paper)."""

from dataclasses import dataclass

from headrace.memory.errors import BudgetError
from headrace.memory.graph import Graph
from headrace.memory.plan.baselines import sqrt_schedule
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule, plain_schedule

SHARES = (0.9, 0.75, 0.6, 0.45, 0.3)
"""Of the memory that a plain run needs above what is resident."""
PREDICTED = "plain, predicted"
"""Name of a plain run's simulation, beside eager's step as measured."""
LIMITS = SolveLimits(seconds=4.0, bound_seconds=2.0, interval_work=1.0, gap=0.02)
"""Of each budget: a curve for a page, not plans to train by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A schedule's memory and time.

    Attributes
    ----------
    bound_us : proven lower bound of the time within `peak_bytes`; 0 if none is known.
    """

    name: str
    peak_bytes: int
    time_us: float
    bound_us: float = 0.0


def baseline_points(graph: Graph) -> list[Point]:
    """Return the points of a plain run, and of checkpoints at every sqrt(n)-th operator."""
    schedules = ((PREDICTED, plain_schedule(graph)), ("sqrt(n)", sqrt_schedule(graph)))
    return [point_of(name, graph, schedule) for name, schedule in schedules]


def point_of(name: str, graph: Graph, schedule: Schedule) -> Point:
    """Return the point of a schedule."""
    figures = verify(graph, schedule)
    return Point(name=name, peak_bytes=figures.peak_bytes, time_us=figures.time_us)


def tradeoff(graph: Graph, engine: ScheduleEngine) -> list[Point]:
    """Return a point for each budget that a schedule is found for, the largest budget first.

    Parameters
    ----------
    engine : of the local search, such as `headrace._native.ScheduleSearch`.
    """
    plain, resident = verify(graph, plain_schedule(graph)).peak_bytes, graph.resident_bytes
    points: list[Point] = []
    starts: tuple[Schedule, ...] = ()
    for share in SHARES:
        budget = resident + int(share * (plain - resident))
        try:
            solution = solve_schedule(graph, budget, engine, limits=LIMITS, starts=starts)
        except BudgetError:
            break
        starts = (*starts, solution.schedule)
        points.append(
            Point(
                name=f"{share:z.0%}",
                peak_bytes=solution.peak_bytes,
                time_us=solution.time_us,
                bound_us=solution.bound_us,
            )
        )
    return points
