"""Checkmate's program, as a baseline on the same graph (Jain et al. 2020, arXiv 1910.02653).

Stage t ends with the first run of operator t, of the forward pass or the backward pass
(frontier-advancing stages), so there are as many stages as operators, and variables by the square
of their number. ``R[t, i]``: operator i runs in stage t; ``S[t, i]``: what it creates is there when
stage t begins; ``FREE[t, i, k]``: that is freed after operator k; ``U[t, k]``: the memory there
while k runs.

Departures, so that its schedules are schedules of the graph:

- Operators run by their first implementations. What overwrites an operand counts beside it.
- An operator that may not run again runs in its own stage alone.
- Outputs and results stay, as in a plain run; the paper counts gradients of parameters always.
- Workspaces count while their operator runs; the paper leaves them out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from headrace.errors import ModelError
from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph
from headrace.memory.plan.program import Rows
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule, Step
from headrace.solver import LinearModel, Parameters, Result
from headrace.solver import solve as solve_model

_HALF = 0.5
ROUNDING_SLACK = 0.1
"""Share of the budget that the relaxation leaves for rounding (epsilon of section 5.3)."""
RELAXATION_TOLERANCE = 1e-3
_THRESHOLDS = tuple(n / 20 for n in range(1, 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkmate:
    """The program, and the meaning of its variables.

    Attributes
    ----------
    runs : by (stage, operator) the variable R.
    stored : by (stage, operator) the variable S.
    """

    graph: Graph
    model: LinearModel
    runs: dict[tuple[int, int], int]
    stored: dict[tuple[int, int], int]

    def schedule(self, values: np.ndarray) -> Schedule:
        """Return the schedule of a solution in 0-1 values."""
        chosen = sorted(key for key, number in self.runs.items() if values[number] > _HALF)
        return _schedule(self.graph, chosen)

    def rounded(self, values: np.ndarray, threshold: float = _HALF) -> Schedule:
        """Return the schedule with what a solution of the relaxation stores (Algorithm 2).

        S is rounded; R is the least that the rows then need.
        """
        edges, count = _operands(self.graph), len(self.graph.operators)
        stored = {key for key, number in self.stored.items() if values[number] > threshold}
        chosen: list[tuple[int, int]] = []
        for stage in reversed(range(count)):
            needed = {stage, *(each for each in range(stage) if (stage + 1, each) in stored)}
            for operator in range(stage, -1, -1):
                if operator not in needed or (operator != stage and (stage, operator) in stored):
                    continue
                if (stage, operator) not in self.runs:
                    stored.add((stage, operator))  # it may not run again: kept since its stage
                    continue
                chosen.append((stage, operator))
                needed |= edges[operator]
        return _schedule(self.graph, sorted(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The best schedule of Checkmate's program.

    Attributes
    ----------
    schedule : the fastest that fits; None if none was found within the limit.
    time_us : of its replay; infinite without one.
    bound_us : of the program; 0 where it was not solved.
    result : of the solver; None where it rejected the program, or solved the relaxation alone.
    """

    schedule: Schedule | None
    time_us: float
    bound_us: float
    result: Result | None


def solve_checkmate(graph: Graph, budget_bytes: int, limit_s: float) -> Baseline:
    """Return the fastest schedule of Checkmate's program within a limit (Checkmate-D)."""
    program = checkmate_program(graph, budget_bytes)
    found = _solved(program.model, Parameters(limit_s=limit_s, gap=0.005))
    if found is None or found.values is None:
        return _baseline(graph, budget_bytes, [], found)
    return _baseline(graph, budget_bytes, [program.schedule(found.values)], found)


def round_checkmate(graph: Graph, budget_bytes: int, limit_s: float) -> Baseline:
    """Return the fastest schedule that rounding its relaxation gives (section 5), at any threshold.

    The relaxation of a step of 400 operators has 200,000 variables: interior point methods take
    more than minutes, a first-order method to `RELAXATION_TOLERANCE` one.
    """
    program = checkmate_program(graph, int(budget_bytes * (1 - ROUNDING_SLACK)))
    values = _relaxed_values(program.model, limit_s)
    made = [] if values is None else [program.rounded(values, each) for each in _THRESHOLDS]
    return _baseline(graph, budget_bytes, made, None)


def checkmate_program(graph: Graph, budget_bytes: int) -> Checkmate:
    """Return Checkmate's program (its equations 1 to 9)."""
    build = _Build(graph, budget_bytes)
    build.variables()
    build.correct()
    build.memory()
    model = LinearModel()
    model.add_binaries(build.binaries, cost=np.array(build.cost[: build.binaries], float))
    model.add_variables(len(build.cost) - build.binaries, upper=1.0)
    build.rows.put(model)
    return Checkmate(graph=graph, model=model, runs=build.runs, stored=build.stored)


@dataclass(slots=True)
class _Build:
    """Makes the variables and rows. Memory is in units of the budget."""

    graph: Graph
    budget: int
    rows: Rows = field(default_factory=Rows)
    cost: list[float] = field(default_factory=list[float])
    runs: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    stored: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    freed: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])
    binaries: int = 0
    operands: list[set[int]] = field(init=False)
    users: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.operands = _operands(self.graph)
        self.users = [[] for _ in self.graph.operators]
        for operator, edges in enumerate(self.operands):
            for each in sorted(edges):
                self.users[each].append(operator)

    def _variable(self, cost: float = 0.0) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def variables(self) -> None:
        """Add R, S and FREE where they can be 1 (8: stages are frontier-advancing)."""
        count = len(self.graph.operators)
        for stage in range(count):
            for operator in range(stage + 1):
                each = self.graph.operators[operator]
                if operator == stage or each.again:
                    time = each.implementations[0].time_us
                    self.runs[stage, operator] = self._variable(time)
        for stage in range(1, count):
            for operator in range(stage):
                if self.users[operator] and self.users[operator][-1] >= stage:
                    self.stored[stage, operator] = self._variable()
        for stage, operator in list(self.runs):
            for each in (*self.operands[operator], operator):
                self.freed[stage, each, operator] = self._variable()
        self.binaries = len(self.cost)

    def correct(self) -> None:
        """Add 1b, 1c, 1e: what is read is there, what is stored was; each operator runs once."""
        for (stage, operator), number in self.runs.items():
            if stage == operator:
                self.rows.add([(number, 1.0)], lower=1.0, upper=1.0)
            for each in self.operands[operator]:
                self.rows.add([(number, 1.0), *self._there(stage, each)], upper=0.0)
        for (stage, operator), number in self.stored.items():
            self.rows.add([(number, 1.0), *self._there(stage - 1, operator)], upper=0.0)

    def _there(self, stage: int, operator: int) -> list[tuple[int, float]]:
        found = (self.runs.get((stage, operator)), self.stored.get((stage, operator)))
        return [(each, -1.0) for each in found if each is not None]

    def memory(self) -> None:
        """Add U, its recurrence and its limit (2, 3), and FREE (5, 7)."""
        graph, scale = self.graph, float(max(self.budget, 1))
        kept = graph.outputs | graph.results
        made = [each.implementations[0] for each in graph.operators]
        whole = [sum(graph.storages[s].nbytes for s in way.creates) for way in made]
        stays = [sum(graph.storages[s].nbytes for s in set(way.creates) & kept) for way in made]
        size = [(every - held) / scale for every, held in zip(whole, stays, strict=True)]
        fixed = graph.resident_bytes
        for stage in range(len(graph.operators)):
            held = [
                (self.stored[stage, each], size[each])
                for each in range(stage)
                if (stage, each) in self.stored
            ]
            for operator in range(stage + 1):
                run = self.runs.get((stage, operator))
                if run is None:
                    continue
                there = self._variable()
                grown = [(run, whole[operator] / scale), *held]
                self.rows.add(
                    [(there, 1.0), *((n, -value) for n, value in grown)], lower=0.0, upper=0.0
                )
                self.rows.add(
                    [(there, 1.0), (run, made[operator].workspace_bytes / scale)],
                    upper=(self.budget - fixed) / scale,
                )
                held = [(there, 1.0)]
                for each in (*self.operands[operator], operator):
                    held.append((self.freed[stage, each, operator], -size[each]))
                    self._free(stage, each, operator)
            fixed += stays[stage]

    def _free(self, stage: int, operator: int, after: int) -> None:
        """Add 7b and 7c: FREE is 1 just where there are no hazards."""
        free = self.freed[stage, operator, after]
        hazards = [(self.runs[stage, after], -1.0)]
        stored = self.stored.get((stage + 1, operator))
        later = [self.runs.get((stage, each)) for each in self.users[operator] if each > after]
        hazards += [(each, 1.0) for each in (stored, *later) if each is not None]
        # 1 - free <= hazards + 1, and kappa (1 - free) >= hazards + 1
        self.rows.add([(free, 1.0), *hazards], lower=0.0)
        most = float(len(hazards))
        self.rows.add([(free, most), *hazards], upper=most - 1.0)


def _operands(graph: Graph) -> list[set[int]]:
    """Return the operators that create what each one reads, by first implementations."""
    made = {
        storage: index
        for index, each in enumerate(graph.operators)
        for storage in each.implementations[0].creates
    }
    return [
        {made[read] for read in each.implementations[0].reads if read in made}
        for each in graph.operators
    ]


def _schedule(graph: Graph, chosen: Iterable[tuple[int, int]]) -> Schedule:
    """Return a schedule from (stage, operator) in order."""
    runs = list(chosen)
    steps = tuple(Step(operator, 0) for _, operator in runs)
    return Schedule(
        steps=steps, forward_steps=sum(stage < graph.forward_count for stage, _ in runs)
    )


def _relaxed_values(model: LinearModel, limit_s: float) -> np.ndarray | None:
    """Return a solution of a program's relaxation by PDLP, or None without one in time."""
    highspy: Any = import_module("highspy")
    solver, lp, rows = highspy.Highs(), highspy.HighsLp(), model.matrix()
    lp.num_col_, lp.num_row_ = model.variables, model.rows
    lp.col_cost_, (lp.col_lower_, lp.col_upper_) = model.costs(), model.bounds()
    lp.row_lower_, lp.row_upper_ = rows.lower, rows.upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = model.variables, model.rows
    lp.a_matrix_.start_ = rows.first
    lp.a_matrix_.index_, lp.a_matrix_.value_ = rows.columns, rows.values
    options = {
        "output_flag": False,
        "solver": "pdlp",
        "kkt_tolerance": RELAXATION_TOLERANCE,
        "time_limit": limit_s,
    }
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(solver.getSolution().col_value)


def _solved(model: LinearModel, parameters: Parameters) -> Result | None:
    try:
        return solve_model(model, parameters)
    except ModelError:
        return None


def _baseline(
    graph: Graph, budget: int, schedules: Iterable[Schedule], result: Result | None
) -> Baseline:
    best: Schedule | None = None
    time = float("inf")
    for schedule in schedules:
        try:
            proof = verify(graph, schedule, budget)
        except ScheduleError:
            continue
        if proof.time_us < time:
            best, time = schedule, proof.time_us
    return Baseline(
        schedule=best,
        time_us=time,
        bound_us=result.bound if result is not None else 0.0,
        result=result,
    )


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
