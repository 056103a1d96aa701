"""A thin layer over mixed-integer and constraint solvers.

`LinearModel` is the problem, `Parameters` the limits and options of a solve, `Result` its outcome.
A limit or an interrupt is a result with a gap. `LinearProgram` grows between solves, and gives
duals. Solver libraries are loaded when first used.
"""

from headrace.solver.cpsat import import_cp_model, solve_cpsat
from headrace.solver.highs import solve_highs
from headrace.solver.incremental import LinearProgram, LinearSolution
from headrace.solver.model import LinearModel, Matrix
from headrace.solver.parameters import Parameters, SolverProgress
from headrace.solver.result import Proved, Result, Stop

__all__ = [
    "LinearModel",
    "LinearProgram",
    "LinearSolution",
    "Matrix",
    "Parameters",
    "Proved",
    "Result",
    "SolverProgress",
    "Stop",
    "import_cp_model",
    "solve",
    "solve_cpsat",
]


def solve(model: LinearModel, parameters: Parameters | None = None) -> Result:
    """Solve `model` with HiGHS.

    Raises
    ------
    ModelError : if HiGHS rejects the model.
    """
    return solve_highs(model, parameters or Parameters())
