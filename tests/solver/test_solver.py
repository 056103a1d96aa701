"""Solvers agree with enumeration, keep to their limits, report, and can be interrupted."""

import signal
import threading
import time
from dataclasses import replace

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InputError, ModelError
from headrace.solver import (
    LinearModel,
    LinearProgram,
    Parameters,
    Proved,
    SolverProgress,
    Stop,
    import_cp_model,
    solve,
    solve_cpsat,
)
from headrace.solver.parameters import METHODS
from tests.solver.oracle import enumerate_optimum, violation
from tests.waiting import ENDLESS_S, HANG_S, no_hang

NOTHING_TAKEN = np.zeros(60)
"""A solution of a knapsack that the search need not find within its time."""


def knapsack(seed: int, variables: int = 60, rows: int = 30) -> LinearModel:
    rng = np.random.default_rng(seed)
    model = LinearModel()
    model.add_binaries(variables, cost=-rng.integers(5, 40, variables).astype(float))
    weights = rng.integers(1, 30, (rows, variables)).astype(float)
    row, column = np.nonzero(weights)
    model.add_rows(row, column, weights[row, column], upper=weights.sum(axis=1) / 3)
    return model


@st.composite
def tiny_models(draw: st.DrawFn) -> LinearModel:
    numbers = st.integers(-4, 4)
    count = draw(st.integers(1, 6))
    model = LinearModel()
    costs = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), float)
    upper = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), float)
    model.add_variables(count, lower=-1.0, upper=upper, cost=costs, integer=True)
    for _ in range(draw(st.integers(0, 4))):
        row = np.array(draw(st.lists(numbers, min_size=count, max_size=count)), float)
        low = draw(st.integers(-8, 4))
        zeros = np.zeros(count, int)
        model.add_rows(zeros, np.arange(count), row, lower=low, upper=low + draw(numbers) + 4)
    return model


@given(tiny_models())
@settings(max_examples=60)
def test_highs_agrees_with_enumeration(model: LinearModel) -> None:
    wanted, found = enumerate_optimum(model), solve(model)
    assert (found.proved, found.stop) == (wanted.proved, Stop.DONE)
    if wanted.proved is Proved.OPTIMAL:
        assert found.objective == pytest.approx(wanted.objective, abs=1e-6)
        assert found.bound == pytest.approx(wanted.objective, abs=1e-6)
        assert found.values is not None
        assert violation(model, found.values) < 1e-6


@given(st.integers(0, 10_000))
@settings(max_examples=40)
def test_an_indicator_is_neither_too_weak_nor_too_strong(seed: int) -> None:
    """A blanket big-M made other encoders return wrong optima and lose feasible instances."""
    rng = np.random.default_rng(seed)
    lower = rng.integers(-5, 3, 3)
    upper = lower + rng.integers(0, 4, 3)
    values, least = rng.integers(-3, 4, 3).astype(float), int(rng.integers(-12, 12))
    model = LinearModel()
    x = model.add_variables(3, lower=lower, upper=upper, integer=True)
    switch = model.add_binaries(1)
    model.add_indicators(switch, np.zeros(3, int), x, values, lower=float(least))
    grid = np.stack(
        np.meshgrid(*(np.arange(a, b + 1) for a, b in zip(lower, upper, strict=True))), -1
    ).reshape(-1, 3)
    for point in grid:
        for on in (0.0, 1.0):
            holds = on == 0.0 or values @ point >= least
            fits = violation(model, np.append(point, on).astype(float)) < 1e-9
            assert fits == holds


def test_an_indicator_refuses_variables_without_bounds() -> None:
    model = LinearModel()
    x = model.add_variables(1)
    switch = model.add_binaries(1)
    model.add_indicators(switch, np.zeros(1, int), x, 1.0, lower=5.0)  # x >= 0 is all it needs
    with pytest.raises(ModelError, match="variable 0 has bounds 0.0 to inf"):
        model.add_indicators(switch, np.zeros(1, int), x, -1.0, lower=-5.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        ({"nodes": 20}, Stop.NODES),
        ({"work": 300}, Stop.WORK),
        ({"limit_s": 0.05, "start": NOTHING_TAKEN}, Stop.TIME),
    ],
)
def test_a_limit_is_a_result(limits: dict, stop: Stop) -> None:
    found = solve(knapsack(0), Parameters(**limits))
    assert (found.stop, found.proved) == (stop, Proved.FEASIBLE)
    assert found.values is not None
    assert found.objective >= found.bound
    assert found.gap > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limits", [{"nodes": 5}, {"work": 200}])
def test_counted_limits_give_equal_results(limits: dict) -> None:
    first, second = (solve(knapsack(3), Parameters(seed=7, **limits)) for _ in range(2))
    assert first.objective == second.objective
    assert first.bound == second.bound
    assert np.array_equal(first.values, second.values)


def test_progress_is_live_and_an_interrupt_returns_the_best_so_far() -> None:
    seen: list[SolverProgress] = []
    found = solve(knapsack(0), Parameters(progress=seen.append, interrupt=lambda: len(seen) >= 4))
    assert len(seen) >= 4
    assert (found.stop, found.proved) == (Stop.INTERRUPT, Proved.FEASIBLE)
    assert found.objective <= min(step.incumbent for step in seen) + 1e-6
    assert all(step.bound <= step.incumbent for step in seen)


def test_an_interrupt_ends_cp_sat() -> None:
    model = import_cp_model().CpModel()
    random = np.random.default_rng(0)
    takes = [model.new_bool_var("") for _ in range(400)]
    for _ in range(60):
        weights = random.integers(1, 10**6, len(takes)).tolist()
        model.add(sum(w * t for w, t in zip(weights, takes, strict=True)) == sum(weights) // 2)
    model.minimize(sum(takes))
    began = time.monotonic()
    parameters = Parameters(limit_s=ENDLESS_S, interrupt=lambda: time.monotonic() > began + 0.5)
    with no_hang():
        found = solve_cpsat(model, takes, parameters)
    assert (found.values, found.proved) == (None, Proved.NOTHING)
    assert found.stop is Stop.INTERRUPT
    found = solve_cpsat(model, takes, Parameters(limit_s=0.5))
    assert (found.stop, found.proved) == (Stop.TIME, Proved.NOTHING)


def test_an_error_in_a_callback_reaches_the_caller() -> None:
    def fail(_: SolverProgress) -> None:
        raise RuntimeError("broken watcher")

    with pytest.raises(RuntimeError, match="broken watcher"):
        solve(knapsack(0), Parameters(progress=fail))


def test_a_start_is_kept_when_nothing_better_is_found() -> None:
    model = knapsack(0)
    start = solve(model, Parameters(nodes=20))
    again = solve(model, Parameters(nodes=0, start=start.values))
    assert again.objective <= start.objective + 1e-9


def cpsat_model() -> tuple:
    cp_model = import_cp_model()
    model = cp_model.CpModel()
    rng = np.random.default_rng(5)
    starts = [model.new_int_var(0, 400, f"s{i}") for i in range(14)]
    sizes = rng.integers(3, 30, 14).tolist()
    lines: dict[int, list] = {0: [], 1: []}
    for index, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        lines[index % 2].append(model.new_fixed_size_interval_var(start, size, f"i{index}"))
        if index >= 3:
            model.add(start >= starts[index - 3] + sizes[index - 3])
    for line in lines.values():
        model.add_no_overlap(line)
    end = model.new_int_var(0, 500, "end")
    for start, size in zip(starts, sizes, strict=True):
        model.add(end >= start + size)
    model.minimize(end)
    return model, [*starts, end]


def test_cpsat_speaks_the_same_language() -> None:
    model, variables = cpsat_model()
    found = solve_cpsat(model, variables, Parameters(deterministic=2.0))
    assert (found.stop, found.proved) == (Stop.DONE, Proved.OPTIMAL)
    assert found.values is not None
    assert found.values[-1] == found.objective == found.bound


def test_cpsat_hears_the_user_and_leaves_the_signal_to_python() -> None:
    """After a first solve Ctrl-C killed the process: OR-Tools put the default handler in place."""
    cp_model = import_cp_model()
    model = cp_model.CpModel()
    random = np.random.default_rng(1)
    chosen = [model.new_bool_var(f"x{k}") for k in range(200)]
    span = model.new_int_var(0, 10**6, "span")
    for three in random.integers(0, 200, (600, 3)).tolist():
        model.add_bool_or([chosen[k] for k in three])
    for row in random.integers(1, 100, (8, 200)).tolist():
        model.add(sum(w * x for w, x in zip(row, chosen, strict=True)) <= span)
    model.minimize(span)
    for _ in range(2):
        timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with no_hang(), pytest.raises(KeyboardInterrupt):
            solve_cpsat(model, chosen, Parameters(limit_s=ENDLESS_S))


def test_highs_hears_the_user() -> None:
    """Ctrl-C waited for the end of the search, or its time limit."""
    model = knapsack(0, 300, 100)
    for _ in range(2):
        timer = threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,))
        timer.start()
        with no_hang(), pytest.raises(KeyboardInterrupt):
            solve(model, Parameters(limit_s=ENDLESS_S))


def test_an_interrupt_before_cpsat_begins_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """OR-Tools ignores a stop between the call and the search: Ctrl-C waited for the time limit."""
    cp_model = import_cp_model()
    polled, stopped = threading.Event(), threading.Event()

    class Late(cp_model.CpSolver):
        def solve(self, model: object) -> int:
            assert polled.wait(HANG_S)
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)
            stopped.clear()
            assert stopped.wait(HANG_S)
            return int(cp_model.UNKNOWN)

        def stop_search(self) -> None:
            stopped.set()

    def interrupt() -> bool:
        polled.set()
        return False

    monkeypatch.setattr(cp_model, "CpSolver", Late)
    with pytest.raises(KeyboardInterrupt):
        solve_cpsat(cp_model.CpModel(), [], Parameters(limit_s=ENDLESS_S, interrupt=interrupt))


def test_progress_reads_as_incumbent_bound_and_gap() -> None:
    """Its repr, cut off after the incumbent, was what users saw."""
    said = SolverProgress(
        incumbent=7062.03, bound=7049.4, gap=0.0018, nodes=1, iterations=9, seconds=1.0
    )
    assert str(said) == "incumbent 7062, bound 7049, gap 0.2%"
    none = replace(said, incumbent=float("inf"), gap=float("inf"))
    assert str(none) == "no incumbent, bound 7049"


def test_multipliers_prove_a_bound_whatever_they_are() -> None:
    """Minimise x + 2 y where x + y >= 1.5, x - y <= 1, both within 0 and 1."""
    model = LinearModel()
    model.add_variables(2, upper=1.0, cost=np.array([1.0, 2.0]))
    model.add_rows(np.array([0, 0]), np.array([0, 1]), 1.0, lower=1.5)
    model.add_rows(np.array([0, 0]), np.array([0, 1]), np.array([1.0, -1.0]), upper=1.0)
    for method in METHODS:
        found = solve(model, Parameters(method=method))
        assert found.objective == pytest.approx(2.0, abs=1e-3)
        assert found.duals is not None
        assert model.dual_bound(found.duals) == pytest.approx(2.0, abs=1e-2)
        assert model.dual_bound(found.duals) <= 2.0 + 1e-9
    assert model.dual_bound(np.array([1.0, 0.0])) == 1.5
    assert model.dual_bound(np.array([-3.0, 5.0])) == 0.0  # those sides do not exist
    assert model.dual_bound(np.zeros(2)) == 0.0
    with pytest.raises(InputError, match="method is 'best', needs one of choose, simplex"):
        Parameters(method="best")


def test_a_relaxed_model_has_the_same_rows_and_no_integers() -> None:
    model = LinearModel()
    model.add_binaries(2, cost=-1.0)
    model.add_rows(np.array([0, 0]), np.array([0, 1]), 1.0, upper=1.5)
    assert solve(model).objective == pytest.approx(-1.0)
    found = solve(model.relaxed())
    assert found.objective == pytest.approx(-1.5)
    assert found.duals is not None
    assert solve(model).duals is None


def test_a_process_whose_own_solvers_have_other_threads_solves_too() -> None:
    """HiGHS refuses another number than that of a process's first run: results were "failed"."""
    theirs = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 2)):
        theirs.setOptionValue(option, value)
    theirs.addVars(1, np.zeros(1), np.ones(1))
    program = LinearProgram()
    try:
        for upper in (1.0, 2.0):
            theirs.resetGlobalScheduler(True)
            assert theirs.run() == highspy.HighsStatus.kOk
            assert solve(knapsack(0, 8, 3)).proved is Proved.OPTIMAL
            assert theirs.run() == highspy.HighsStatus.kOk
            program.add_columns(np.zeros((0, 1)), cost=-1.0, upper=upper)
            assert program.solve().optimal
            assert theirs.run() == highspy.HighsStatus.kOk
    finally:
        theirs.resetGlobalScheduler(True)
