"""Exhaustive enumeration: the reference for solvers on tiny models."""

from itertools import product

import numpy as np

from headrace.errors import ModelError
from headrace.solver import LinearModel, Proved, Result, Stop

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
        sums = matrix.activity(x)
        fits = (sums >= matrix.lower - _TOLERANCE) & (sums <= matrix.upper + _TOLERANCE)
        objective = float(costs @ x) + model.offset
        if fits.all() and objective < best:
            best, values = objective, x
    proved = Proved.INFEASIBLE if values is None else Proved.OPTIMAL
    return Result(stop=Stop.DONE, proved=proved, values=values, objective=best, bound=best)
