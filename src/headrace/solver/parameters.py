"""How to solve: limits, seed, start, and who watches."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np

from headrace.errors import InputError

BACKENDS = ("highs", "gurobi")


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverProgress:
    """What a solver has so far.

    Attributes
    ----------
    incumbent : objective of the best solution so far; infinite without one.
    bound : no solution is better.
    gap : (incumbent - bound) / |incumbent|; infinite without an incumbent.
    nodes, iterations : work done: branch-and-bound nodes (CP-SAT: branches); simplex iterations
        (CP-SAT: conflicts; -1 where HiGHS does not say).
    seconds : since the start.
    """

    incumbent: float
    bound: float
    gap: float
    nodes: int
    iterations: int
    seconds: float

    def __str__(self) -> str:
        """Return it as people watch it: objectives in the model's unit, which it does not know."""
        if not isfinite(self.incumbent):
            return f"no incumbent, bound {self.bound:.4g}"
        return f"incumbent {self.incumbent:.4g}, bound {self.bound:.4g}, gap {self.gap:.1%}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameters:
    """How to solve. Equal counted limits and seeds give equal results; time is a safety net.

    Attributes
    ----------
    nodes : limit on branch-and-bound nodes (CP-SAT: conflicts).
    iterations : limit on simplex iterations of a linear program (with integers: see `looks`).
    looks : limit on how often HiGHS looks for an interrupt: the finest work that it counts while
        it branches; others ignore it.
    deterministic : CP-SAT's own measure of work (about seconds, but counted); others ignore it.
    limit_s : wall clock; the result says if it struck.
    gap : stop once the relative gap is at most this.
    seed : of the solver's random choices.
    threads : 1 is deterministic.
    start : values of all variables to start from; it need not be feasible.
    progress : called now and then with what the solver has.
    interrupt : asked now and then; true stops the solver, and the best so far comes back.
    backend : "highs", or "gurobi" where gurobipy is installed.

    Raises
    ------
    InputError : for a limit below 0 or an unknown backend.
    """

    nodes: int | None = None
    iterations: int | None = None
    work: int | None = None
    deterministic: float | None = None
    limit_s: float = 60.0
    gap: float = 1e-6
    seed: int = 0
    threads: int = 1
    start: np.ndarray | None = None
    progress: Callable[[SolverProgress], None] | None = None
    interrupt: Callable[[], bool] | None = None
    backend: str = "highs"

    def __post_init__(self) -> None:
        for name in ("nodes", "iterations", "work", "deterministic", "limit_s", "gap", "seed"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InputError(f"{name} is {value!r}, needs at least 0")
        if self.threads < 1:
            raise InputError(f"threads is {self.threads}, needs at least 1")
        if self.backend not in BACKENDS:
            raise InputError(f"backend is {self.backend!r}, needs one of {', '.join(BACKENDS)}")
