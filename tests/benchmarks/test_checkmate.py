"""Checkmate's program: its schedules fit by our verifier, and are no faster than the optimum."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory.checkmate import post_optimized, round_checkmate, solve_checkmate
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from headrace.solver import Proved
from tests.memory.graphs import chain, random_graph
from tests.memory.plan.oracle import fastest
from tests.memory.plan.test_programs import budget_of


def test_a_chain_at_every_budget() -> None:
    """With single operators to read, its class has the optima of the exhaustive search."""
    graph = chain(6)
    for budget in range(30, 80, 10):
        best, found = fastest(graph, budget), solve_checkmate(graph, budget, 60.0)
        if best is None:
            assert found.schedule is None
            continue
        assert found.schedule is not None
        assert found.time_us <= best.time_us + 1e-6
        assert verify(graph, found.schedule, budget).time_us == pytest.approx(found.time_us)


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_its_schedules_fit(random: Random) -> None:
    graph = random_graph(random, 6)
    budget = budget_of(graph, random)
    found = solve_checkmate(graph, budget, 60.0)
    assert found.result is not None
    if found.result.proved is Proved.INFEASIBLE:
        return
    assert found.schedule is not None  # what the program holds to fit does
    faster = post_optimized(graph, found.schedule, budget)
    assert verify(graph, faster, budget).time_us <= found.time_us
    rounded = round_checkmate(graph, budget, 60.0)
    # not the program's bound: it counts more memory than ours, by which rounded ones have to fit
    assert rounded.time_us >= verify(graph, plain_schedule(graph)).time_us - 1e-6


def test_a_budget_that_needs_nothing_gives_a_plain_run() -> None:
    graph = chain(9)
    budget = verify(graph, plain_schedule(graph)).peak_bytes
    for found in (solve_checkmate(graph, budget, 60.0), round_checkmate(graph, 2 * budget, 60.0)):
        assert found.schedule == plain_schedule(graph)
