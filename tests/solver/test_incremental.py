"""Growing linear programs against SciPy's, solved from scratch after every change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog

from headrace.errors import ModelError
from headrace.solver import LinearProgram, LinearSolution


class Copy:
    """The same program in arrays, solved by SciPy."""

    def __init__(self) -> None:
        self.matrix = np.empty((0, 0))
        self.rows = np.empty((0, 2))
        self.columns = np.empty((0, 3))  # cost, lower, upper

    def solve(self) -> tuple[int, float]:
        both = np.vstack((self.matrix, -self.matrix))
        limits = np.concatenate((self.rows[:, 1], -self.rows[:, 0]))
        real = np.isfinite(limits)
        found = linprog(
            self.columns[:, 0], both[real], limits[real], bounds=self.columns[:, 1:], method="highs"
        )
        return found.status, found.fun

    def check(self, found: LinearSolution, blocks: dict[str, slice]) -> None:
        """Compare with SciPy's optimum, and prove it by the duals."""
        status, optimum = self.solve()
        assert found.optimal == (status == 0)
        if status:
            return
        assert found.objective == pytest.approx(optimum, abs=1e-6)
        assert self.columns[:, 0] @ found.values == pytest.approx(optimum, abs=1e-6)
        sums = self.matrix @ found.values
        assert (sums >= self.rows[:, 0] - 1e-6).all()
        assert (sums <= self.rows[:, 1] + 1e-6).all()
        duals = np.zeros(len(self.rows))
        for name, rows in blocks.items():
            duals[rows] = found.duals[name]
        # Strong duality: every row and column is paid for at the bound that its sign chooses.
        reduced = self.columns[:, 0] - duals @ self.matrix
        paid = 0.0
        for price, (low, high) in (
            *zip(duals, self.rows, strict=True),
            *zip(reduced, self.columns[:, 1:], strict=True),
        ):
            if abs(price) > 1e-7:
                paid += price * (low if price > 0 else high)
        assert paid == pytest.approx(optimum, abs=1e-5)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_solutions_are_scipys_after_every_change(seed: int, dense: bool) -> None:
    random = np.random.default_rng(seed)
    program, copy = LinearProgram(), Copy()
    blocks: dict[str, slice] = {}

    def entries(rows: int, columns: int) -> np.ndarray:
        some = random.integers(-3, 6, (rows, columns)) * (random.random((rows, columns)) < 0.6)
        return some.astype(float)

    for step in range(int(random.integers(2, 9))):
        change = int(random.integers(4)) if step else 0
        if change == 0:
            count = int(random.integers(1, 5))
            cost, low = random.integers(-4, 7, count), random.integers(-2, 2, count)
            added = np.column_stack((cost, low, low + random.integers(0, 9, count))).astype(float)
            added[random.random(count) < 0.2, 2] = np.inf
            made = entries(program.rows, count)
            numbers = program.add_columns(
                made if dense else sparse.coo_array(made),
                cost=added[:, 0],
                lower=added[:, 1],
                upper=added[:, 2],
            )
            assert numbers.tolist() == list(range(len(copy.columns), len(copy.columns) + count))
            copy.matrix = np.hstack((copy.matrix, made))
            copy.columns = np.vstack((copy.columns, added))
        elif change == 1:
            count = int(random.integers(1, 4))
            made = entries(count, program.columns)
            limits = np.sort(random.integers(-8, 20, (count, 2)), axis=1).astype(float)
            limits[random.random(count) < 0.5, 0] = -np.inf
            limits[random.random(count) < 0.2, 1] = np.inf
            name = f"block {step}"
            program.add_rows(
                name, limits[:, 0], limits[:, 1], made if dense else sparse.csr_array(made)
            )
            blocks[name] = slice(len(copy.rows), len(copy.rows) + count)
            copy.matrix = np.vstack((copy.matrix, made))
            copy.rows = np.vstack((copy.rows, limits))
        else:
            some = np.flatnonzero(random.random(program.columns) < 0.5)
            if change == 2:
                copy.columns[some, 0] = random.integers(-4, 7, len(some))
                program.set_costs(some, copy.columns[some, 0])
            else:
                copy.columns[some, 1:] = np.sort(random.integers(-3, 9, (len(some), 2)), axis=1)
                program.set_bounds(some, copy.columns[some, 1], copy.columns[some, 2])
        copy.check(program.solve(), blocks)


def test_a_changed_program_starts_from_the_last_basis() -> None:
    random = np.random.default_rng(3)
    matrix = random.random((40, 60))

    def iterations(program: LinearProgram) -> int:
        program.solve()
        return program._solver.getInfo().simplex_iteration_count

    program = LinearProgram()
    program.add_columns(np.empty((0, 60)), cost=-1.0)
    program.add_rows("capacity", -np.inf, 1.0, matrix)
    first = iterations(program)
    program.add_columns(random.random((40, 1)), cost=-0.9)
    assert iterations(program) < first / 4


def test_equal_calls_give_equal_solutions() -> None:
    def made() -> LinearSolution:
        random = np.random.default_rng(5)
        program = LinearProgram()
        program.add_columns(np.empty((0, 30)), cost=-1.0)
        program.add_rows("capacity", -np.inf, 1.0, random.random((20, 30)).round(1))
        return program.solve()

    one, two = made(), made()
    assert np.array_equal(one.values, two.values)
    assert np.array_equal(one.duals["capacity"], two.duals["capacity"])


def test_what_has_no_optimum_is_no_optimum() -> None:
    program = LinearProgram()
    program.add_columns(np.empty((0, 1)), cost=-1.0)
    assert not program.solve().optimal
    program.add_rows("limit", -np.inf, 3.0, np.ones((1, 1)))
    assert program.solve().objective == -3.0
    program.add_rows("more", 4.0, np.inf, np.ones((1, 1)))
    assert not program.solve().optimal


def test_mistakes_are_named() -> None:
    program = LinearProgram()
    program.add_columns(np.empty((0, 2)))
    program.add_rows("capacity", -np.inf, 1.0, np.ones((1, 2)))
    with pytest.raises(ModelError, match="rows 'capacity' exist"):
        program.add_rows("capacity", -np.inf, 1.0, np.ones((1, 2)))
    with pytest.raises(ModelError, match="rows 'wide' have 3 columns, needs 2"):
        program.add_rows("wide", -np.inf, 1.0, np.ones((1, 3)))
    with pytest.raises(ModelError, match="columns have 2 rows, needs 1"):
        program.add_columns(np.ones((2, 1)))
    with pytest.raises(ModelError, match="rejects costs"):
        program.set_costs(np.array([2]), 1.0)
    with pytest.raises(ModelError, match="rejects bounds"):
        program.set_bounds(np.array([2]), 0.0, 1.0)
    with pytest.raises(ModelError, match="rejects columns"):
        program.add_columns(np.ones((1, 1)), lower=np.nan)
