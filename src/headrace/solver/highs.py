"""HiGHS through its own Python interface, with callbacks."""

import time
from typing import Any

import numpy as np

from headrace.errors import ModelError
from headrace.solver.model import LinearModel
from headrace.solver.parameters import Parameters, SolverProgress
from headrace.solver.result import Proved, Result, Stop, relative_gap
from headrace.solver.threads import run_in_thread


def solve_highs(model: LinearModel, parameters: Parameters) -> Result:
    """Solve `model` with HiGHS.

    Progress is reported on every improvement and whenever HiGHS logs; `interrupt` is polled
    wherever HiGHS checks for interrupts, in the simplex method too. Both are called from another
    thread.

    Raises
    ------
    ModelError : if HiGHS rejects the model.
    KeyboardInterrupt : if interrupted by the user.
    """
    import highspy

    solver = highspy.Highs()
    _set_options(solver, parameters, has_integers=bool(model.integers().any()))
    if solver.passModel(_lp(model, highspy)) == highspy.HighsStatus.kError:
        raise ModelError("HiGHS rejects the model: check that its numbers are finite")
    if parameters.start is not None:
        start = np.asarray(parameters.start, float)
        solver.setSolution(len(start), np.arange(len(start), dtype=np.int32), start)
    watch = _Watch(solver, parameters, highspy)
    began = time.monotonic()
    run_in_thread(lambda: run_highs(solver), watch.interrupt)
    return _result(solver, model, watch, time.monotonic() - began, highspy)


def run_highs(solver: Any) -> None:
    """Run HiGHS, also where other code of this process runs it with other threads.

    All solvers of a process share the threads of the first run, and refuse other numbers of them.
    """
    import highspy

    refused = solver.run() == highspy.HighsStatus.kError
    if refused and solver.getModelStatus() == highspy.HighsModelStatus.kNotset:
        solver.resetGlobalScheduler(True)
        solver.run()
        solver.resetGlobalScheduler(True)  # the next run of the other code has its own again


def _set_options(solver: Any, parameters: Parameters, *, has_integers: bool) -> None:
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": parameters.threads,
        "random_seed": parameters.seed % (1 << 31),
        "time_limit": parameters.limit_s,
        "mip_rel_gap": parameters.gap,
        "mip_abs_gap": 0.0,
        "mip_feasibility_tolerance": 1e-7,
        "solver": parameters.method,
    }
    if parameters.method == "ipm":
        options["run_crossover"] = "off"
    if parameters.nodes is not None:
        options["mip_max_nodes"] = parameters.nodes
    if parameters.iterations is not None and not has_integers:
        options["simplex_iteration_limit"] = parameters.iterations
    for name, value in options.items():
        solver.setOptionValue(name, value)


def _lp(model: LinearModel, highspy: Any) -> Any:
    lp, matrix = highspy.HighsLp(), model.matrix()
    lower, upper = model.bounds()
    lp.num_col_, lp.num_row_ = model.variables, model.rows
    lp.offset_ = model.offset
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = model.costs(), lower, upper
    lp.row_lower_, lp.row_upper_ = matrix.lower, matrix.upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = model.variables, model.rows
    lp.a_matrix_.start_ = matrix.first
    lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.columns, matrix.values
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    integers = model.integers()
    if integers.any():
        lp.integrality_ = [kinds[integer] for integer in integers.tolist()]
    return lp


class _Watch:
    """Callbacks: report progress, and stop HiGHS on an interrupt or at the work limit."""

    def __init__(self, solver: Any, parameters: Parameters, highspy: Any) -> None:
        self._parameters = parameters
        self.struck: Stop | None = None
        self._kinds = highspy.cb.HighsCallbackType
        callbacks = [
            self._kinds.kCallbackMipInterrupt,
            self._kinds.kCallbackSimplexInterrupt,
            self._kinds.kCallbackIpmInterrupt,
        ]
        if parameters.progress is not None:
            callbacks += [
                self._kinds.kCallbackMipLogging,
                self._kinds.kCallbackMipImprovingSolution,
            ]
        self._checks = 0
        self._raised: BaseException | None = None
        solver.setCallback(self._called, None)
        for kind in callbacks:
            solver.startCallback(kind)

    def interrupt(self) -> None:
        """Stop HiGHS at its next check."""
        self.struck = Stop.INTERRUPT

    def _called(self, kind: Any, message: str, out: Any, answer: Any, data: Any) -> None:
        del message, data
        try:
            if kind in (self._kinds.kCallbackMipLogging, self._kinds.kCallbackMipImprovingSolution):
                self._report(out)
            elif self._should_stop(counts=kind == self._kinds.kCallbackMipInterrupt):
                answer.user_interrupt = True
        except BaseException as error:  # it cannot pass through native code
            self._raised = error
            self.struck = Stop.INTERRUPT
            if answer is not None:
                answer.user_interrupt = True

    def _should_stop(self, *, counts: bool) -> bool:
        self._checks += counts
        if self.struck is None:
            if self._parameters.work is not None and self._checks > self._parameters.work:
                self.struck = Stop.WORK
            elif self._parameters.interrupt is not None and self._parameters.interrupt():
                self.struck = Stop.INTERRUPT
        return self.struck is not None

    def _report(self, out: Any) -> None:
        assert self._parameters.progress is not None
        incumbent = _finite(out.mip_primal_bound, float("inf"))
        bound = _finite(out.mip_dual_bound, float("-inf"))
        self._parameters.progress(
            SolverProgress(
                incumbent=incumbent,
                bound=bound,
                gap=relative_gap(incumbent, bound),
                nodes=int(out.mip_node_count),
                iterations=int(out.simplex_iteration_count),
                seconds=float(out.running_time),
            )
        )

    def reraise(self) -> None:
        """Raise what a callback raised."""
        if self._raised is not None:
            raise self._raised


def _result(solver: Any, model: LinearModel, watch: _Watch, seconds: float, highspy: Any) -> Result:
    watch.reraise()
    kinds = highspy.HighsModelStatus
    status, info = solver.getModelStatus(), solver.getInfo()
    stops = {
        kinds.kOptimal: Stop.DONE,
        kinds.kInfeasible: Stop.DONE,
        kinds.kUnbounded: Stop.DONE,
        kinds.kUnboundedOrInfeasible: Stop.DONE,
        kinds.kModelEmpty: Stop.DONE,
        kinds.kTimeLimit: Stop.TIME,
        kinds.kSolutionLimit: Stop.NODES,
        kinds.kIterationLimit: Stop.ITERATIONS,
        kinds.kInterrupt: watch.struck or Stop.INTERRUPT,
        kinds.kHighsInterrupt: watch.struck or Stop.INTERRUPT,
    }
    stop = stops.get(status, Stop.FAILED)
    has_integers = bool(model.integers().any())
    feasible = info.primal_solution_status == 2  # HiGHS: a feasible point
    objective = float(info.objective_function_value) if feasible else float("inf")
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        proved, bound = Proved.INFEASIBLE, float("inf")
    elif status == kinds.kUnbounded:
        proved, bound = Proved.UNBOUNDED, float("-inf")
    elif status in (kinds.kOptimal, kinds.kModelEmpty):
        proved = Proved.OPTIMAL
        bound = float(info.mip_dual_bound) if has_integers else objective
        bound = min(_finite(bound, objective), objective)
    else:
        proved = Proved.FEASIBLE if feasible else Proved.NOTHING
        bound = (
            _finite(float(info.mip_dual_bound), float("-inf")) if has_integers else float("-inf")
        )
    solution = solver.getSolution()
    return Result(
        stop=stop,
        proved=proved,
        values=np.array(solution.col_value) if feasible else None,
        objective=objective,
        bound=bound,
        nodes=max(0, int(info.mip_node_count)),
        iterations=max(0, int(info.simplex_iteration_count)),
        seconds=seconds,
        duals=np.array(solution.row_dual) if not has_integers and solution.dual_valid else None,
    )


def _finite(value: float, otherwise: float) -> float:
    return float(value) if abs(value) < 1e300 else otherwise
