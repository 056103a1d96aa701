"""A thin layer over mixed-integer and constraint solvers.

`LinearModel` is the problem, `Parameters` the limits and options of a solve, `Result` its outcome.
A limit or an interrupt is a result with a gap. Solver libraries are loaded when first used.
"""

from headrace.solver.cpsat import import_cp_model, solve_cpsat
from headrace.solver.gurobi import solve_gurobi
from headrace.solver.highs import solve_highs
from headrace.solver.model import LinearModel
from headrace.solver.oracle import enumerate_optimum
from headrace.solver.parameters import Parameters, SolverProgress
from headrace.solver.result import Proved, Result, Stop

__all__ = [
    "LinearModel",
    "Parameters",
    "SolverProgress",
    "Proved",
    "Result",
    "Stop",
    "enumerate_optimum",
    "import_cp_model",
    "solve",
    "solve_cpsat",
]


def solve(model: LinearModel, parameters: Parameters | None = None) -> Result:
    """Solve `model` with the backend that `parameters` names.

    Raises
    ------
    InputError : if that backend is not installed.
    ModelError : if it rejects the model.
    """
    parameters = parameters or Parameters()
    backends = {"highs": solve_highs, "gurobi": solve_gurobi}
    return backends[parameters.backend](model, parameters)
