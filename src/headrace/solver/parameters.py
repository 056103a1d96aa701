"""Parameters of a solve: limits, seed, start and callbacks."""

from collections.abc import Callable
from math import isfinite

import numpy as np

from headrace.errors import InputError
from headrace.facades import public_value

METHODS = ("choose", "simplex", "ipm", "pdlp")


@public_value("headrace.solver")
class SolverProgress:
    """Progress of a solver.

    Attributes
    ----------
    incumbent : objective of the best solution so far; infinite without one.
    bound : lower bound of all solutions.
    gap : ``(incumbent - bound) / |incumbent|``; infinite without an incumbent.
    nodes, iterations : work done: branch-and-bound nodes; simplex iterations (-1 where HiGHS
        reports none).
    seconds : since the start.
    """

    incumbent: float
    bound: float
    gap: float
    nodes: int
    iterations: int
    seconds: float

    def __str__(self) -> str:
        """Return it in words, objectives without a unit: the model has none."""
        if not isfinite(self.incumbent):
            return f"no incumbent, bound {self.bound:.4g}"
        return f"incumbent {self.incumbent:.4g}, bound {self.bound:.4g}, gap {self.gap:z.1%}"


@public_value("headrace.solver", eq=False)
class Parameters:
    """Parameters of a solve: equal counted limits and seeds give equal results.

    CP-SAT uses `deterministic`, `limit_s`, `gap`, `seed` and `threads`.

    Attributes
    ----------
    nodes : limit on branch-and-bound nodes.
    iterations : limit on simplex iterations of a linear program (with integers: see `work`).
    work : limit on HiGHS's interrupt checks, the finest unit of work that it counts while it
        branches; others ignore it.
    deterministic : CP-SAT's own measure of work (about seconds, but counted); others ignore it.
    limit_s : wall clock, a safety net; the result tells whether it was reached.
    gap : stop once the relative gap is at most this.
    seed : of the solver's random choices.
    threads : 1 is deterministic.
    method : of a linear program: "choose", "simplex", "ipm" (interior point, without crossover) or
        "pdlp"; with integers it is that of the relaxations.
    start : values of all variables to start from; it need not be feasible.
    progress : called now and then with the solver's progress.
    interrupt : polled; true stops the solver, which returns the best so far.

    Raises
    ------
    InputError : for a limit below 0, or no thread.
    """

    nodes: int | None = None
    iterations: int | None = None
    work: int | None = None
    deterministic: float | None = None
    limit_s: float = 60.0
    gap: float = 1e-6
    seed: int = 0
    threads: int = 1
    method: str = "choose"
    start: np.ndarray | None = None
    progress: Callable[[SolverProgress], None] | None = None
    interrupt: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        for name in ("nodes", "iterations", "work", "deterministic", "limit_s", "gap", "seed"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InputError(f"{name} is {value!r}, needs at least 0")
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}, needs one of {', '.join(METHODS)}")
        if self.threads < 1:
            raise InputError(f"threads is {self.threads}, needs at least 1")
