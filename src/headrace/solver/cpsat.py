"""OR-Tools CP-SAT: models are built with the library itself; limits, progress, results are ours."""

import importlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError, ModelError
from headrace.solver.parameters import Parameters
from headrace.solver.result import Proved, Result, Stop
from headrace.solver.threads import run_in_thread

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def import_cp_model() -> Any:
    """Return ``ortools.sat.python.cp_model``.

    Raises
    ------
    InputError : where it cannot be loaded beside the installed highspy. Both then bring a shared
        library of one name in different versions, and the second one loaded fails.
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise InputError(
            "OR-Tools cannot be loaded beside the installed highspy, which brings another "
            f"libhighs.so.1: install highspy<1.15, which brings none ({error})"
        ) from error


def solve_cpsat(
    model: "cp_model.CpModel", variables: Sequence[Any], parameters: Parameters
) -> Result:
    """Solve a CP-SAT model that minimises.

    Parameters
    ----------
    variables : those whose values are wanted, in the order of `Result.values`.
    parameters : `deterministic`, `limit_s`, `gap`, `seed`, `threads` and `interrupt` are used;
        equal ones give equal results, with several threads too (they are interleaved).

    Raises
    ------
    ModelError : if CP-SAT rejects the model.
    KeyboardInterrupt : if interrupted by the user.
    """
    cp_model = import_cp_model()
    solver = cp_model.CpSolver()
    settings = solver.parameters
    settings.num_workers = parameters.threads
    settings.interleave_search = parameters.threads > 1
    settings.random_seed = parameters.seed % (1 << 31)
    settings.max_time_in_seconds = parameters.limit_s
    settings.relative_gap_limit = parameters.gap
    if parameters.deterministic is not None:
        settings.max_deterministic_time = parameters.deterministic
    settings.catch_sigint_signal = False  # it would take the signal from Python for good
    began = time.monotonic()
    status, interrupted = _solved(solver, model, parameters.interrupt)
    if status == cp_model.MODEL_INVALID:
        raise ModelError(f"CP-SAT rejects the model: {model.validate()}")
    has_solution = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    values = np.array([solver.value(v) for v in variables], float) if has_solution else None
    seconds = time.monotonic() - began
    if interrupted:
        limit = Stop.INTERRUPT
    elif parameters.deterministic is None or seconds >= parameters.limit_s:
        limit = Stop.TIME
    else:
        limit = Stop.DETERMINISTIC
    return _result(solver, status, values, limit, seconds)


def _solved(
    solver: Any, model: "cp_model.CpModel", interrupt: Callable[[], bool] | None
) -> tuple[Any, bool]:
    """Return the status of the solve, and whether `interrupt` stopped the search."""
    interrupted = False

    def poll() -> None:
        nonlocal interrupted
        if interrupt is not None and interrupt():
            interrupted = True
            solver.stop_search()

    status = run_in_thread(lambda: solver.solve(model), solver.stop_search, poll)
    return status, interrupted


def _result(
    solver: Any, status: Any, values: np.ndarray | None, limit: Stop, seconds: float
) -> Result:
    """Return the result of a solve that `limit` ended, unless its status is final."""
    cp_model = import_cp_model()
    proofs = {
        cp_model.OPTIMAL: Proved.OPTIMAL,
        cp_model.FEASIBLE: Proved.FEASIBLE,
        cp_model.INFEASIBLE: Proved.INFEASIBLE,
    }
    proved = proofs.get(status, Proved.NOTHING)
    objective = float(solver.objective_value) if values is not None else float("inf")
    bound = float(solver.best_objective_bound)
    return Result(
        stop=Stop.DONE if proved in (Proved.OPTIMAL, Proved.INFEASIBLE) else limit,
        proved=proved,
        values=values,
        objective=objective,
        bound=float("inf") if proved is Proved.INFEASIBLE else bound,
        nodes=int(solver.num_branches),
        iterations=int(solver.num_conflicts),
        seconds=seconds,
    )
