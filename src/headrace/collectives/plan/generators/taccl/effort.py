"""Work limits of synthesis, counted, and the context of one run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.collectives.plan.engine import SearchEngine
from headrace.solver import Parameters, SolverProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidedEffort:
    """Limits of the stages. All but `limit_s` are counted, so equal ones give equal results.

    Attributes
    ----------
    restarts : of the forward-in-time router, at most.
    choices : that all restarts together may evaluate; larger problems get fewer restarts.
    rounds : of rerouting at the prices so far.
    route_work : work limit (`Parameters.work`) for a route model of 1,000 binaries; larger models
        get less, smaller ones more; 0: no model.
    route_binaries : larger route models are left to the greedy routers.
    ordered : routes that go through all ordering heuristics.
    greedy : whether the greedy routers run even where there is an engine.
    scheduled : orders that go through contiguity.
    exact_work, exact_messages : as for routes; larger schedules are batched link by link.
    local_batches : chunks may travel together within nodes, too, where alpha is large enough:
        beyond TACCL, which considers it between nodes only (5.4.2).
    limit_s : wall clock for everything, a safety net.
    """

    restarts: int = 24
    choices: int = 20_000_000
    rounds: int = 3
    greedy: bool = True
    route_work: int = 8
    route_binaries: int = 6_000
    ordered: int = 3
    scheduled: int = 2
    exact_work: int = 200
    exact_messages: int = 3_000
    local_batches: bool = True
    limit_s: float = 60.0


EFFORTS = {
    "quick": GuidedEffort(restarts=8, rounds=1, route_work=0, ordered=2, scheduled=1, exact_work=0),
    "normal": GuidedEffort(),
    "thorough": GuidedEffort(
        restarts=200,
        choices=400_000_000,
        rounds=8,
        route_work=20_000,
        route_binaries=40_000,
        ordered=12,
        scheduled=6,
        exact_work=20_000,
        exact_messages=20_000,
        limit_s=600.0,
    ),
}
"""By name."""


@dataclass(kw_only=True)
class Watch:
    """Seed, limits, clock and callbacks of one synthesis."""

    effort: GuidedEffort
    seed: int
    progress: Callable[[str, float, SolverProgress | None], None] | None = None
    interrupt: Callable[[], bool] | None = None
    engine: SearchEngine | None = None
    good_us: float = 0.0
    """A schedule this fast is optimal: the route model is skipped."""
    began: float = field(default_factory=time.monotonic)

    def stopped(self) -> bool:
        """Return whether to end with the best so far: interrupted, or late."""
        late = time.monotonic() - self.began > self.effort.limit_s
        return late or (self.interrupt is not None and self.interrupt())

    def report(self, stage: str, best_us: float, progress: SolverProgress | None) -> None:
        """Call `progress`, if there is one."""
        if self.progress is not None:
            self.progress(stage, best_us, progress)

    def parameters(self, stage: str, work: int, best_us: float) -> Parameters:
        """Return the solver's parameters for a stage."""
        left = max(0.0, self.effort.limit_s - (time.monotonic() - self.began))
        report = None
        if self.progress is not None:
            report = lambda progress: self.report(stage, best_us, progress)  # noqa: E731
        return Parameters(
            work=work,
            limit_s=left,
            gap=1e-4,
            seed=self.seed,
            progress=report,
            interrupt=self.interrupt,
        )
