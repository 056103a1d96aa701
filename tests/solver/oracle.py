"""Exhaustive enumeration: the reference for solvers on tiny models."""

from itertools import product

import numpy as np

from headrace.errors import ModelError
from headrace.solver import LinearModel, Proved, Result, Stop
from headrace.solver.model import Matrix

_MAX_POINTS = 1 << 20
_TOLERANCE = 1e-9


def enumerate_optimum(model: LinearModel) -> Result:
    """Solve a pure integer model by trying every point.

    Raises
    ------
    ModelError : if a variable is continuous or unbounded, or there are over 2^20 points.
    """
    lower, upper = model.bounds()
    if not model.integers().all() or not np.isfinite(upper - lower).all():
        raise ModelError("enumeration needs all variables integer and bounded")
    ranges = [
        np.arange(np.ceil(low), np.floor(high) + 1)
        for low, high in zip(lower.tolist(), upper.tolist(), strict=True)
    ]
    points = int(np.prod([len(values) for values in ranges], dtype=float))
    if points > _MAX_POINTS:
        raise ModelError(f"{points} points to try, at most {_MAX_POINTS} are sensible")
    matrix, costs = model.matrix(), model.costs()
    best, values = float("inf"), None
    for point in product(*(row.tolist() for row in ranges)):
        x = np.array(point)
        sums = activity(matrix, x)
        fits = (sums >= matrix.lower - _TOLERANCE) & (sums <= matrix.upper + _TOLERANCE)
        objective = float(costs @ x) + model.offset
        if fits.all() and objective < best:
            best, values = objective, x
    proved = Proved.INFEASIBLE if values is None else Proved.OPTIMAL
    return Result(stop=Stop.DONE, proved=proved, values=values, objective=best, bound=best)


def activity(matrix: Matrix, values: np.ndarray) -> np.ndarray:
    """Return every row's sum at the variables' `values`."""
    sums = np.zeros(len(matrix.first))
    rows = np.repeat(np.arange(len(matrix.first) - 1), np.diff(matrix.first))
    np.add.at(sums, rows, matrix.values * values[matrix.columns])
    return sums[:-1]


def violation(model: LinearModel, values: np.ndarray) -> float:
    """Return by how much `values` break a bound, a row or integrality at most; 0 if not."""
    low, high = model.bounds()
    matrix = model.matrix()
    sums = activity(matrix, values)
    whole = np.where(model.integers(), np.abs(values - np.round(values)), 0.0)
    gaps = (low - values, values - high, matrix.lower - sums, sums - matrix.upper, whole)
    return max(float(np.max(gap, initial=0.0)) for gap in gaps)
