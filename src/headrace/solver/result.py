"""Result of a solve: the reason why it stopped, apart from the status that it proved."""

from enum import StrEnum

import numpy as np

from headrace.facades import offered_by, public_value


@offered_by("headrace.solver")
class Stop(StrEnum):
    """Why a solver stopped."""

    DONE = "done"
    NODES = "node limit"
    ITERATIONS = "iteration limit"
    WORK = "work limit"
    DETERMINISTIC = "deterministic limit"
    TIME = "time limit"
    INTERRUPT = "interrupt"
    FAILED = "failed"


@offered_by("headrace.solver")
class Proved(StrEnum):
    """Status that a solver proved."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    NOTHING = "nothing"


@public_value("headrace.solver", eq=False)
class Result:
    """Result of a solve; a limit that is reached is a result, not an error.

    Attributes
    ----------
    stop, proved : reason for the end; proven status.
    values : of all variables in the best solution, or None.
    objective : of that solution; infinite without one.
    bound : lower bound of all solutions.
    nodes, iterations : work done.
    seconds : wall clock.
    duals : of the rows of a linear program, where the solver has some, optimal or not; None with
        integers. `LinearModel.dual_bound` makes a proven bound of any.
    """

    stop: Stop
    proved: Proved
    values: np.ndarray | None
    objective: float
    bound: float
    nodes: int = 0
    iterations: int = 0
    seconds: float = 0.0
    duals: np.ndarray | None = None

    @property
    def gap(self) -> float:
        """``(objective - bound) / |objective|``; infinite without a solution."""
        return relative_gap(self.objective, self.bound)


def relative_gap(objective: float, bound: float) -> float:
    """Return how far `bound` is below `objective`, relative to it."""
    if not np.isfinite(objective):
        return float("inf")
    return max(0.0, objective - bound) / max(abs(objective), 1e-9)
