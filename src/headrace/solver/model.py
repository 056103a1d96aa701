"""The problem: a mixed-integer linear program, built from arrays."""

import copy

import numpy as np

from headrace.errors import ModelError
from headrace.facades import offered_by, public_value


@public_value("headrace.solver", eq=False)
class Matrix:
    """Rows in compressed form: row i has ``columns[first[i]:first[i + 1]]``.

    Attributes
    ----------
    first : (rows + 1,) int32.
    columns : int32, sorted and distinct within a row.
    values : float64.
    lower, upper : (rows,) float64.
    """

    first: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


@offered_by("headrace.solver")
class LinearModel:
    """Minimise ``costs @ x + offset`` where ``lower <= A x <= upper`` and x is within its bounds.

    Variables and rows are added in blocks and named by the numbers that come back; a block costs
    one array operation, whatever its size.
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._lower: list[np.ndarray] = []
        self._upper: list[np.ndarray] = []
        self._cost: list[np.ndarray] = []
        self._integer: list[np.ndarray] = []
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._row_lower: list[np.ndarray] = []
        self._row_upper: list[np.ndarray] = []
        self.variables = 0
        self.rows = 0

    def add_variables(
        self,
        count: int,
        *,
        lower: float | np.ndarray = 0.0,
        upper: float | np.ndarray = np.inf,
        cost: float | np.ndarray = 0.0,
        integer: bool = False,
    ) -> np.ndarray:
        """Add `count` variables; return their numbers.

        Raises
        ------
        ModelError : for a lower bound above the upper, or a cost that is not finite.
        """
        columns = [np.broadcast_to(np.asarray(v, float), (count,)) for v in (lower, upper, cost)]
        bad = np.flatnonzero(~(columns[0] <= columns[1]))
        if len(bad):
            at = int(bad[0])
            raise ModelError(
                f"variable {self.variables + at} has bounds {columns[0][at]} to "
                f"{columns[1][at]}, needs lower <= upper"
            )
        if not np.isfinite(columns[2]).all():
            raise ModelError("costs of variables need finite numbers")
        for target, column in zip((self._lower, self._upper, self._cost), columns, strict=True):
            target.append(column)
        self._integer.append(np.full(count, integer))
        self.variables += count
        return np.arange(self.variables - count, self.variables)

    def add_binaries(self, count: int, *, cost: float | np.ndarray = 0.0) -> np.ndarray:
        """Add `count` variables that are 0 or 1; return their numbers."""
        return self.add_variables(count, upper=1.0, cost=cost, integer=True)

    def add_rows(
        self,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray | float,
        *,
        lower: np.ndarray | float = -np.inf,
        upper: np.ndarray | float = np.inf,
        count: int | None = None,
    ) -> np.ndarray:
        """Add rows given by their entries; return the rows' numbers.

        Parameters
        ----------
        rows : of every entry its row, counted from 0 within this block.
        columns : of every entry its variable; entries of the same place are added up.
        values : of every entry its coefficient.
        lower, upper : of every row, or of all alike.
        count : number of rows; None: as many as `rows` and the bounds name.

        Raises
        ------
        ModelError : for a variable that does not exist.
        """
        rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
        values = np.broadcast_to(np.asarray(values, float), columns.shape)
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.variables:
            raise ModelError(
                f"rows name variables {columns.min()} to {columns.max()}, the model has "
                f"0 to {self.variables - 1}"
            )
        if count is None:
            sizes = [np.size(v) for v in (lower, upper) if np.ndim(v)]
            count = max([int(rows.max(initial=-1)) + 1, *sizes])
        self._entries.append((rows + self.rows, columns, values))
        self._row_lower.append(np.broadcast_to(np.asarray(lower, float), (count,)))
        self._row_upper.append(np.broadcast_to(np.asarray(upper, float), (count,)))
        self.rows += count
        return np.arange(self.rows - count, self.rows)

    def add_indicators(
        self,
        binaries: np.ndarray,
        rows: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray | float,
        *,
        lower: np.ndarray | float,
    ) -> np.ndarray:
        """Add ``binary = 1 -> sum(values * x) >= lower``, one for each of `binaries`.

        Each row gets its own big-M, derived from the bounds of its own variables:
        ``M = lower - min(sum)``, the smallest that cuts off nothing. Rows that hold anyway
        (M <= 0) are left out. For the opposite (binary = 0) or an upper bound, change signs.

        Returns
        -------
        numbers of the rows that were added.

        Raises
        ------
        ModelError : if a variable has no bound, so that no big-M would be safe.
        """
        rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
        values = np.broadcast_to(np.asarray(values, float), columns.shape)
        lower = np.broadcast_to(np.asarray(lower, float), binaries.shape)
        low, high = self.bounds()
        least = values * np.where(values > 0, low[columns], high[columns])
        unbounded = np.flatnonzero(~np.isfinite(least))
        if len(unbounded):
            at = int(unbounded[0])
            raise ModelError(
                f"variable {columns[at]} has bounds {low[columns[at]]} to {high[columns[at]]}: "
                "an indicator needs both finite, as its big-M is derived from them"
            )
        smallest = np.zeros(len(binaries))
        np.add.at(smallest, rows, least)
        big = lower - smallest
        binding = big > 0.0
        number = np.cumsum(binding) - 1
        mine = binding[rows]
        return self.add_rows(
            np.concatenate((number[rows[mine]], np.arange(int(binding.sum())))),
            np.concatenate((columns[mine], binaries[binding])),
            np.concatenate((values[mine], -big[binding])),
            lower=smallest[binding],
            count=int(binding.sum()),
        )

    def add_differences(
        self,
        late: np.ndarray | int,
        early: np.ndarray,
        by: np.ndarray | float = 0.0,
        *,
        binaries: np.ndarray | None = None,
    ) -> np.ndarray:
        """Add ``late - early >= by``, a row each; return the numbers of the rows that were added.

        Parameters
        ----------
        late, early : variables; one `late` may stand for all.
        binaries : of every row a binary that must be 1 for it to hold (see `add_indicators`).
        """
        rows, ones = np.arange(len(early)), np.ones(len(early))
        columns = np.concatenate((np.broadcast_to(late, rows.shape), early))
        entries = np.concatenate((rows, rows)), columns, np.concatenate((ones, -ones))
        if binaries is not None:
            return self.add_indicators(binaries, *entries, lower=by)
        return self.add_rows(*entries, lower=by, count=len(early))

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (lower, upper) of all variables."""
        return _joined(self._lower), _joined(self._upper)

    def costs(self) -> np.ndarray:
        """Return the objective's coefficients."""
        return _joined(self._cost)

    def integers(self) -> np.ndarray:
        """Return of every variable whether it must be integer."""
        return _joined(self._integer).astype(bool)

    def dual_bound(self, duals: np.ndarray) -> float:
        """Return the lower bound of all solutions that multipliers of the rows prove.

        The Lagrangian's minimum over the variables' bounds: valid for any multipliers, so also for
        those of a solver that stopped early or within tolerances. -inf where a variable that would
        have to be is not bounded.

        Parameters
        ----------
        duals : (rows,), at most 0 where the upper bound of a row is to count. Those of a side that
            a row does not have count as 0.
        """
        matrix, (low, high) = self.matrix(), self.bounds()
        side = np.where(duals > 0, matrix.lower, matrix.upper)
        used = np.where(np.isfinite(side), duals, 0.0)
        rows = np.repeat(np.arange(self.rows), np.diff(matrix.first))
        reduced = self.costs() - np.bincount(
            matrix.columns, matrix.values * used[rows], minlength=self.variables
        )
        fixed = float(used[used != 0.0] @ side[used != 0.0])
        bounds = np.where(reduced > 0, low, high)
        moved = reduced != 0.0
        return self.offset + fixed + float((reduced[moved] * bounds[moved]).sum())

    def relaxed(self) -> "LinearModel":
        """Return the model without integrality; its rows are shared with this one."""
        relaxation = copy.copy(self)
        relaxation._integer = [np.zeros(len(flags), dtype=bool) for flags in self._integer]
        return relaxation

    def matrix(self) -> Matrix:
        """Return all rows in compressed form."""
        from scipy import sparse

        rows, columns, values = (
            _joined([entry[part] for entry in self._entries]) for part in range(3)
        )
        shape = (self.rows, max(self.variables, 1))
        compressed = sparse.csr_array(
            (values, (rows.astype(int), columns.astype(int))), shape=shape
        )
        compressed.sum_duplicates()
        compressed.sort_indices()
        return Matrix(
            first=compressed.indptr.astype(np.int32),
            columns=compressed.indices.astype(np.int32),
            values=compressed.data,
            lower=_joined(self._row_lower),
            upper=_joined(self._row_upper),
        )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0)
