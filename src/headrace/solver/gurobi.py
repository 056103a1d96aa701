"""Gurobi, an optional backend: the same models through gurobipy's matrix interface."""

import importlib
import time
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.solver.model import LinearModel
from headrace.solver.parameters import Parameters, SolverProgress
from headrace.solver.result import Proved, Result, Stop, relative_gap


def solve_gurobi(model: LinearModel, parameters: Parameters) -> Result:
    """Solve `model` with Gurobi.

    Raises
    ------
    InputError : if gurobipy is not installed.
    """
    try:
        gurobi: Any = importlib.import_module("gurobipy")
    except ImportError as error:
        raise InputError(
            "backend 'gurobi' needs the package gurobipy and a licence: install it, or use 'highs'"
        ) from error
    from scipy import sparse

    matrix, (lower, upper) = model.matrix(), model.bounds()
    began = time.monotonic()
    with gurobi.Env(params={"OutputFlag": 0}) as environment, gurobi.Model(env=environment) as g:
        kinds = np.where(model.integers(), "I", "C")
        x = g.addMVar(model.variables, lb=lower, ub=upper, obj=model.costs(), vtype=kinds)
        rows = sparse.csr_array(
            (matrix.values, matrix.columns, matrix.first), shape=(model.rows, model.variables)
        )
        at_least, at_most = np.isfinite(matrix.lower), np.isfinite(matrix.upper)
        g.addMConstr(rows[at_least], x, ">", matrix.lower[at_least])
        g.addMConstr(rows[at_most], x, "<", matrix.upper[at_most])
        g.ObjCon = model.offset
        g.Params.TimeLimit, g.Params.MIPGap = parameters.limit_s, parameters.gap
        g.Params.Threads, g.Params.Seed = parameters.threads, parameters.seed % 2_000_000_000
        if parameters.nodes is not None:
            g.Params.NodeLimit = parameters.nodes
        if parameters.iterations is not None:
            g.Params.IterationLimit = parameters.iterations
        if parameters.start is not None:
            x.Start = parameters.start
        g.optimize(_callback(gurobi, parameters, began))
        return _result(gurobi, g, x, time.monotonic() - began)


def _callback(gurobi: Any, parameters: Parameters, began: float) -> Any:
    def called(model: Any, where: int) -> None:
        kinds = gurobi.GRB.Callback
        if parameters.interrupt is not None and parameters.interrupt():
            model.terminate()
        if parameters.progress is not None and where == kinds.MIP:
            incumbent, bound = model.cbGet(kinds.MIP_OBJBST), model.cbGet(kinds.MIP_OBJBND)
            parameters.progress(
                SolverProgress(
                    incumbent=incumbent,
                    bound=bound,
                    gap=relative_gap(incumbent, bound),
                    nodes=int(model.cbGet(kinds.MIP_NODCNT)),
                    iterations=int(model.cbGet(kinds.MIP_ITRCNT)),
                    seconds=time.monotonic() - began,
                )
            )

    return called


def _result(gurobi: Any, model: Any, x: Any, seconds: float) -> Result:
    codes = gurobi.GRB.Status
    stops = {
        codes.OPTIMAL: Stop.DONE,
        codes.INFEASIBLE: Stop.DONE,
        codes.UNBOUNDED: Stop.DONE,
        codes.INF_OR_UNBD: Stop.DONE,
        codes.NODE_LIMIT: Stop.NODES,
        codes.ITERATION_LIMIT: Stop.ITERATIONS,
        codes.TIME_LIMIT: Stop.TIME,
        codes.INTERRUPTED: Stop.INTERRUPT,
    }
    found = model.SolCount > 0
    proofs = {
        codes.OPTIMAL: Proved.OPTIMAL,
        codes.INFEASIBLE: Proved.INFEASIBLE,
        codes.INF_OR_UNBD: Proved.INFEASIBLE,
        codes.UNBOUNDED: Proved.UNBOUNDED,
    }
    return Result(
        stop=stops.get(model.Status, Stop.FAILED),
        proved=proofs.get(model.Status, Proved.FEASIBLE if found else Proved.NOTHING),
        values=np.array(x.X) if found else None,
        objective=float(model.ObjVal) if found else float("inf"),
        bound=float(getattr(model, "ObjBound", float("-inf"))),
        nodes=int(model.NodeCount),
        iterations=int(model.IterCount),
        seconds=seconds,
    )
