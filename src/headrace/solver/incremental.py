"""Linear programs that grow: rows and columns are added between solves (column generation).

HiGHS keeps the model and its basis, so that each solve starts from the optimum before it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.errors import ModelError
from headrace.facades import offered_by, public_value
from headrace.solver.highs import run_highs


@public_value("headrace.solver", eq=False)
class LinearSolution:
    """Solution of a linear program.

    Attributes
    ----------
    optimal : false if HiGHS proves no optimum: infeasible, unbounded, or numerically in trouble.
    objective : the value at `values`.
    values : (columns,).
    duals : name of a block of rows -> (rows,), the objective's derivatives by the bounds: at most
        0 for a row at its upper bound, at least 0 for one at its lower.
    """

    optimal: bool
    objective: float
    values: np.ndarray
    duals: Mapping[str, np.ndarray]


@offered_by("headrace.solver")
class LinearProgram:
    """Minimise ``costs @ x`` where ``lower <= A x <= upper`` and x is within its bounds.

    Rows are added in blocks that have names; columns are named by the numbers that come back.
    Equal sequences of calls give equal solutions: one thread, a fixed seed, no time limit.
    """

    def __init__(self) -> None:
        import highspy

        self._solver: Any = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
            self._solver.setOptionValue(option, value)
        self._optimum = highspy.HighsModelStatus.kOptimal
        self._failed = highspy.HighsStatus.kError
        self._blocks: dict[str, slice] = {}
        self.rows = self.columns = 0

    def add_rows(
        self, name: str, lower: np.ndarray | float, upper: np.ndarray | float, matrix: Any
    ) -> None:
        """Add a block of rows.

        Parameters
        ----------
        name : key of the block in `LinearSolution.duals`.
        lower, upper : (rows,), or one number for all.
        matrix : (rows, columns so far), dense or of scipy.sparse; with no columns, all zeros.

        Raises
        ------
        ModelError : for a name that is taken, another number of columns, or numbers that HiGHS
            rejects.
        """
        from scipy import sparse

        added = sparse.csr_array(matrix, dtype=np.float64)
        count, columns = np.shape(matrix)
        if name in self._blocks:
            raise ModelError(f"rows '{name}' exist, needs another name")
        if columns != self.columns:
            raise ModelError(f"rows '{name}' have {columns} columns, needs {self.columns}")
        self._require(
            self._solver.addRows(count, *_filled(count, lower, upper), *_compressed(added)),
            f"rows '{name}'",
        )
        self._blocks[name] = slice(self.rows, self.rows + count)
        self.rows += count

    def add_columns(
        self,
        matrix: Any,
        *,
        cost: np.ndarray | float = 0.0,
        lower: np.ndarray | float = 0.0,
        upper: np.ndarray | float = np.inf,
    ) -> np.ndarray:
        """Add columns; return their numbers.

        Parameters
        ----------
        matrix : (rows so far, columns), dense or of scipy.sparse; with no rows, all zeros.
        cost, lower, upper : (columns,), or one number for all.

        Raises
        ------
        ModelError : for another number of rows, or numbers that HiGHS rejects.
        """
        from scipy import sparse

        added = sparse.csc_array(matrix, dtype=np.float64)
        rows, count = np.shape(matrix)
        if rows != self.rows:
            raise ModelError(f"columns have {rows} rows, needs {self.rows}")
        self._require(
            self._solver.addCols(count, *_filled(count, cost, lower, upper), *_compressed(added)),
            "columns",
        )
        self.columns += count
        return np.arange(self.columns - count, self.columns)

    def set_costs(self, columns: np.ndarray, cost: np.ndarray | float) -> None:
        """Change the costs of columns."""
        index = np.asarray(columns, dtype=np.int32)
        status = self._solver.changeColsCost(len(index), index, *_filled(len(index), cost))
        self._require(status, "costs")

    def set_bounds(
        self, columns: np.ndarray, lower: np.ndarray | float, upper: np.ndarray | float
    ) -> None:
        """Change the bounds of columns."""
        index, bounds = np.asarray(columns, dtype=np.int32), _filled(len(columns), lower, upper)
        self._require(self._solver.changeColsBounds(len(index), index, *bounds), "bounds")

    def solve(self) -> LinearSolution:
        """Solve from the last basis, if there is one."""
        run_highs(self._solver)
        solution = self._solver.getSolution()
        duals = np.asarray(solution.row_dual, dtype=float)
        return LinearSolution(
            optimal=self._solver.getModelStatus() == self._optimum,
            objective=float(self._solver.getInfo().objective_function_value),
            values=np.asarray(solution.col_value, dtype=float),
            duals={name: duals[rows] for name, rows in self._blocks.items()},
        )

    def _require(self, status: Any, what: str) -> None:
        if status == self._failed:
            raise ModelError(f"HiGHS rejects {what}: check that numbers are finite, indices exist")


def _filled(count: int, *columns: np.ndarray | float) -> list[np.ndarray]:
    return [np.array(np.broadcast_to(column, (count,)), dtype=np.float64) for column in columns]


def _compressed(matrix: Any) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return entries, starts, indices and values, as HiGHS takes them."""
    matrix.sum_duplicates()
    starts, indices = (column.astype(np.int32) for column in (matrix.indptr[:-1], matrix.indices))
    return len(matrix.data), starts, indices, matrix.data
