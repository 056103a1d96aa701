"""A solve while it runs: its best schedule and bound, and when it is to end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import ModelError
from headrace.memory.graph import Graph
from headrace.memory.plan.draft import Draft, SimulatedDraft
from headrace.memory.plan.engine import ScheduleEngine
from headrace.memory.plan.program import StepProgram
from headrace.memory.plan.search import Search
from headrace.memory.plan.solution import TIGHT, Solution, SolveLimits, SolveProgress
from headrace.memory.plan.stages import Stages
from headrace.memory.plan.verify import verify
from headrace.solver import LinearModel, Parameters, Result, Stop
from headrace.solver import solve as solve_model


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The best schedule and bound of a solve so far.

    Attributes
    ----------
    deadline : seconds since the beginning at which the work at hand ends.
    bound_us : proven lower bound; infinite if no schedule fits.
    best : fastest draft within the budget; None if there is none yet.
    program : the exact program, if it is small enough to be relaxed.
    stop : why the solve ended.
    """

    graph: Graph
    budget: int
    engine: ScheduleEngine
    limits: SolveLimits
    seed: int
    progress: Callable[[SolveProgress], None] | None
    interrupt: Callable[[], bool] | None
    stages: Stages = field(init=False)
    search: Search = field(init=False)
    began: float = field(init=False)
    deadline: float = field(init=False)
    bound_us: float = field(init=False)
    best: SimulatedDraft | None = None
    program: StepProgram | None = None
    stop: Stop = Stop.TIME

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.deadline = self.limits.seconds
        self.stages = Stages(self.graph)
        self.search = self.search_within(self.budget)
        self.bound_us = sum(
            min(implementation.time_us for implementation in operator.implementations)
            for operator in self.graph.operators
        )

    def search_within(self, budget_bytes: int) -> Search:
        """Return a search of the same step within a budget, which ends when this solve does."""
        return Search(self.stages, budget_bytes, self.engine, self.seed, self.stopped)

    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.began

    def seconds_left(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self.deadline - self.seconds())

    def interrupted(self) -> bool:
        """Return whether the caller ends the solve."""
        return self.interrupt is not None and self.interrupt()

    def stopped(self) -> bool:
        """Return whether a limit or an interrupt ends the work at hand."""
        return not self.seconds_left() or self.interrupted()

    def ended(self) -> bool:
        """Return whether the work at hand is over, and note why in `stop`."""
        if self.interrupted():
            self.stop = Stop.INTERRUPT
            return True
        if self.best is not None and self.gap() <= self.limits.gap:
            self.stop = Stop.DONE
            return True
        self.stop = Stop.TIME
        return not self.seconds_left()

    def gap(self) -> float:
        """Return (time - bound) / time of the best schedule."""
        assert self.best is not None
        return (self.best.time_us - self.bound_us) / max(self.best.time_us, TIGHT)

    def offer(self, trial: SimulatedDraft) -> None:
        """Take a schedule if it fits and is the fastest so far."""
        if trial.excess or (self.best is not None and trial.time_us >= self.best.time_us):
            return
        self.best = trial
        self._report()

    def start(self, draft: Draft, noise: float = 0.0) -> None:
        """Repair a draft, polish it, and take it if it is the fastest so far.

        Parameters
        ----------
        noise : see `Search.repair`.
        """
        trial = self.search.simulated(draft)
        if trial is not None:
            trial = self.search.repair(trial, noise)
            self.offer(trial)
            if not trial.excess:
                self.offer(self.search.polish(trial))

    def raise_bound(self, bound_us: float) -> None:
        """Take a bound if it is the largest so far."""
        if bound_us > self.bound_us:
            self.bound_us = bound_us
            self._report()

    def solved(self, model: LinearModel, limit_s: float, method: str) -> Result | None:
        """Return the result of a linear model; None if the solver refuses it."""
        try:
            return solve_model(
                model,
                Parameters(
                    limit_s=limit_s,
                    gap=self.limits.gap,
                    seed=self.seed,
                    method=method,
                    interrupt=self.interrupt,
                ),
            )
        except ModelError:
            return None

    def solution(self) -> Solution:
        """Return the best schedule, verified."""
        assert self.best is not None
        schedule = self.best.draft.schedule()
        proof = verify(self.graph, schedule, self.budget)
        self.ended()
        return Solution(
            schedule=schedule,
            peak_bytes=proof.peak_bytes,
            time_us=proof.time_us,
            bound_us=min(self.bound_us, proof.time_us),
            stop=self.stop,
            seconds=self.seconds(),
        )

    def _report(self) -> None:
        if self.progress is not None and self.best is not None:
            self.progress(
                SolveProgress(
                    incumbent_us=self.best.time_us,
                    bound_us=self.bound_us,
                    seconds=self.seconds(),
                )
            )
