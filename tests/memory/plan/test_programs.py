"""The programs against an exhaustive search, on training steps of up to eight forward operators."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.memory.graph import Graph
from headrace.memory.plan.coarse import coarse_program
from headrace.memory.plan.liveness import exact_program
from headrace.memory.plan.program import StepProgram
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from headrace.solver import Parameters, Proved, Result, solve
from tests.memory.graphs import chain, random_graph
from tests.memory.plan.oracle import fastest
from tests.memory.plan.paper import paper_program
from tests.waiting import ENDLESS_S


def optimum(program: StepProgram) -> Result:
    found = solve(program.model, Parameters(limit_s=ENDLESS_S))
    assert found.proved in (Proved.OPTIMAL, Proved.INFEASIBLE)
    return found


def budget_of(graph: Graph, random: Random) -> int:
    """Return a budget that is often tight: between the largest step alone and a plain run."""
    plain = verify(graph, plain_schedule(graph)).peak_bytes
    return random.randint(graph.resident_bytes + (plain - graph.resident_bytes) // 3, plain)


def check_exact(graph: Graph, budget: int) -> None:
    best, found = fastest(graph, budget), optimum(exact_program(graph, budget))
    if best is None:
        assert found.proved is Proved.INFEASIBLE
        return
    assert verify(graph, best.schedule, budget).time_us == best.time_us
    assert found.values is not None
    assert found.objective == pytest.approx(best.time_us, abs=1e-6)
    schedule = exact_program(graph, budget).schedule(found.values)
    assert verify(graph, schedule, budget).time_us == pytest.approx(best.time_us)


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_the_exact_program_finds_the_optimum(random: Random) -> None:
    graph = random_graph(random, 6)
    check_exact(graph, budget_of(graph, random))


@pytest.mark.slow
@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_exact_program_finds_the_optimum_of_eight(random: Random) -> None:
    graph = random_graph(random, 8, least=5)
    check_exact(graph, budget_of(graph, random))


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_the_papers_program_is_a_restriction_and_fits(random: Random) -> None:
    graph = random_graph(random, 6)
    budget = budget_of(graph, random)
    best, program = fastest(graph, budget), paper_program(graph, budget)
    found = optimum(program)
    if found.values is None:
        return
    assert best is not None
    assert found.objective >= best.time_us - 1e-6
    schedule = program.schedule(found.values)
    assert verify(graph, schedule, budget).time_us == pytest.approx(found.objective)


def test_a_chain_of_eight_at_every_budget() -> None:
    graph = chain(8)
    times = {
        budget: best.time_us if (best := fastest(graph, budget)) else None
        for budget in range(20, 100, 10)
    }
    assert times == {20: None, 30: None, 40: 31.0, 50: 21.0, 60: 19.0, 70: 18.0, 80: 17.0, 90: 16.0}
    for budget, time in times.items():
        found = optimum(exact_program(graph, budget))
        assert (None if time is None else pytest.approx(time)) == (
            None if found.values is None else found.objective
        )


@settings(max_examples=15)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_relaxations_are_bounds(random: Random, count: int) -> None:
    graph = random_graph(random, 6)
    budget = budget_of(graph, random)
    best = fastest(graph, budget)
    exact = exact_program(graph, budget, futures=random.randint(0, 6)).model.relaxed()
    for model in (exact, coarse_program(graph, budget, count).model):
        found = solve(model)
        if best is not None:
            assert found.objective <= best.time_us + 1e-6
            assert found.duals is not None
            assert model.dual_bound(found.duals) <= best.time_us + 1e-6


def test_rows_on_the_future_raise_the_bound() -> None:
    """A cheap operator after a large one: without them the large one is kept by hundredths."""
    graph = chain(24)
    bounds = [
        solve(exact_program(graph, 120, futures=count).model.relaxed()).objective
        for count in (0, 1, 24)
    ]
    assert 48 < bounds[0] < bounds[1] <= bounds[2] + 1e-6
