"""Plans for a budget: optimal where the step is small, within their certificate where it is not."""

import itertools
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory.checkmate import post_optimized
from headrace._native import ScheduleSearch
from headrace.memory.errors import BudgetError
from headrace.memory.graph import Operator, Storage
from headrace.memory.plan import incumbent, phases
from headrace.memory.plan.baselines import sqrt_schedule
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.infeasible import least_bytes
from headrace.memory.plan.search import Search
from headrace.memory.plan.solution import SolveLimits, SolveProgress
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.stages import Stages
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Step, plain_schedule
from headrace.solver import Stop
from tests.memory.graphs import chain, random_graph
from tests.memory.networks import resnet
from tests.memory.plan.oracle import fastest
from tests.memory.plan.test_programs import budget_of
from tests.memory.simulate import simulate_step
from tests.waiting import ENDLESS_S

SAMPLED = pytest.mark.sampled(2)

UNTIMED = SolveLimits(seconds=ENDLESS_S, bound_seconds=ENDLESS_S)
EXACT = replace(UNTIMED, gap=1e-9)


@SAMPLED
@pytest.mark.parametrize("_part", range(4))
@settings(max_examples=10)
@given(random=st.randoms(use_true_random=False))
def test_small_steps_are_solved_to_the_optimum(_part: int, random: Random) -> None:
    graph = random_graph(random, 6)
    budget = budget_of(graph, random)
    best = fastest(graph, budget)
    if best is None:
        with pytest.raises(BudgetError, match="no schedule fits a budget of") as caught:
            solve_schedule(graph, budget, ScheduleSearch, limits=EXACT)
        least = caught.value.least_bytes
        assert least is not None
        assert least > budget
        assert fastest(graph, least) is not None
        return
    found = solve_schedule(graph, budget, ScheduleSearch, limits=EXACT)
    assert found.time_us == pytest.approx(best.time_us)
    assert found.bound_us == pytest.approx(best.time_us)
    assert found.stop is Stop.DONE
    assert verify(graph, found.schedule, budget).peak_bytes == found.peak_bytes


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_the_search_alone_gives_schedules_that_verify(random: Random) -> None:
    graph = random_graph(random)
    budget, stages = budget_of(graph, random), Stages(graph)
    search = Search(stages, budget, ScheduleSearch, random.randrange(100))
    start = search.simulated(Draft.plain(stages))
    assert start is not None
    trial = search.polish(search.repair(start, noise=random.choice((0.0, 1.0))))
    proof = verify(graph, trial.draft.schedule())
    assert (proof.peak_bytes <= budget) == (trial.excess == 0)
    assert least_bytes(stages)[0] <= proof.peak_bytes
    assert Draft.of(stages, trial.draft.schedule()) == trial.draft


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_implementations_that_only_cost_more_are_not_chosen(random: Random) -> None:
    graph = random_graph(random, 6)
    budget = verify(graph, plain_schedule(graph)).peak_bytes
    more = replace(graph, operators=tuple(map(with_a_worse_one, graph.operators)))
    last = [len(each.implementations) - 1 for each in more.operators]
    steps = tuple(Step(each.operator, last[each.operator]) for each in plain_schedule(graph).steps)
    start = replace(plain_schedule(graph), steps=steps)
    found = solve_schedule(more, budget, ScheduleSearch, limits=EXACT, starts=(start,))
    assert all(step.implementation != last[step.operator] for step in found.schedule.steps)
    assert found.time_us == pytest.approx(
        solve_schedule(graph, budget, ScheduleSearch, limits=EXACT).time_us
    )
    assert verify(more, found.schedule, budget).time_us == found.time_us


def with_a_worse_one(operator: Operator) -> Operator:
    first = operator.implementations[0]
    worse = replace(first, name="worse", workspace_bytes=first.workspace_bytes + 1, reorders=True)
    return replace(operator, implementations=(*operator.implementations, worse))


def test_a_budget_that_needs_nothing_gives_a_plain_run() -> None:
    graph = chain(30)
    found = solve_schedule(graph, verify(graph, plain_schedule(graph)).peak_bytes, ScheduleSearch)
    assert found.schedule == plain_schedule(graph)
    assert (found.gap, found.stop) == (0.0, Stop.DONE)


def test_a_budget_below_one_operator_names_it_and_the_least() -> None:
    graph = chain(9, resident=100)
    with pytest.raises(
        BudgetError,
        match=r"no schedule fits a budget of 110 B: operator 'backward7' of module "
        r"'7' alone needs 140 B; the least with a known schedule is 140 B \(140 bytes\), at "
        r"operator 'backward8' of module '8': 100 B resident, 10 B of 'x5' of module '5', 10 B "
        r"of 'x7' of module '7', 10 B of 'x8' of module '8' and 1 smaller",
    ) as caught:
        solve_schedule(graph, 110, ScheduleSearch)
    assert caught.value.least_bytes == 140


def test_a_schedule_from_the_search_for_the_least_is_used() -> None:
    """Where time was over before a schedule was found, the search for the least budget of the error
    found one that fitted: "no schedule fits a budget of 250 B: ... the least with a known schedule
    is 240 B"."""
    graph = chain(30, resident=100)
    budget = simulate_step(graph, plain_schedule(graph)).peak_bytes * 3 // 5
    out_of_time = SolveLimits(seconds=0.0, bound_seconds=0.0, interval_work=0.0, rounds=0)
    solution = solve_schedule(graph, budget, ScheduleSearch, limits=out_of_time)
    assert verify(graph, solution.schedule, budget).peak_bytes <= budget


def test_the_least_is_no_more_than_that_of_a_schedule_to_start_from() -> None:
    graph = chain(9, resident=100)
    with pytest.raises(BudgetError) as caught:
        solve_schedule(graph, 110, ScheduleSearch)
    assert caught.value.schedule is not None
    assert verify(graph, caught.value.schedule).peak_bytes == caught.value.least_bytes
    with pytest.raises(BudgetError) as again:
        solve_schedule(graph, 120, ScheduleSearch, starts=(caught.value.schedule,))
    assert again.value.least_bytes == caught.value.least_bytes


def test_a_network_within_its_certificate() -> None:
    graph = resnet(blocks=(1, 1, 1))
    plain = simulate_step(graph, plain_schedule(graph))
    budget = int(0.5 * plain.peak_bytes)
    seen: list[SolveProgress] = []
    limits = replace(UNTIMED, rounds=3, interval_work=0.5, gap=0.02)
    found = solve_schedule(graph, budget, ScheduleSearch, limits=limits, progress=seen.append)
    assert verify(graph, found.schedule, budget).time_us == found.time_us
    assert found.bound_us >= plain.time_us
    assert found.gap < 0.08
    assert found.time_us < simulate_step(graph, sqrt_schedule(graph)).time_us
    times = [progress.incumbent_us for progress in seen]
    assert times == sorted(times, reverse=True)
    assert "gap" in str(seen[-1])


@SAMPLED
def test_equal_seeds_and_rounds_give_equal_schedules() -> None:
    graph = resnet(blocks=(1,))
    budget = int(0.5 * simulate_step(graph, plain_schedule(graph)).peak_bytes)
    limits = replace(UNTIMED, bound_seconds=0.0, rounds=3, interval_work=0.5)
    first, second = (
        solve_schedule(graph, budget, ScheduleSearch, limits=limits, seed=3).schedule
        for _ in range(2)
    )
    assert first == second


def test_an_interrupt_returns_the_best_so_far() -> None:
    graph = resnet(blocks=(1, 1))
    budget = int(0.6 * simulate_step(graph, plain_schedule(graph)).peak_bytes)
    seen: list[SolveProgress] = []
    found = solve_schedule(
        graph, budget, ScheduleSearch, progress=seen.append, interrupt=lambda: bool(seen)
    )
    assert found.stop is Stop.INTERRUPT
    assert verify(graph, found.schedule, budget)
    warm = solve_schedule(
        graph, budget, ScheduleSearch, starts=(found.schedule,), interrupt=lambda: bool(seen)
    )
    assert warm.time_us <= found.time_us


@SAMPLED
@pytest.mark.parametrize("polls", [1, 20, 100])
def test_an_interrupt_at_any_poll_ends_the_work_at_hand(polls: int) -> None:
    graph = resnet(blocks=(1, 1))
    budget = int(0.6 * simulate_step(graph, plain_schedule(graph)).peak_bytes)
    polled = 0

    def interrupt() -> bool:
        nonlocal polled
        polled += 1
        return polled > polls

    try:
        found = solve_schedule(
            graph, budget, ScheduleSearch, limits=replace(UNTIMED, gap=0.0), interrupt=interrupt
        )
    except BudgetError:
        assert polled < polls + 20
        return
    # polls depend on time, and the optimum may be proven before the last
    assert found.stop is (Stop.INTERRUPT if polled > polls else Stop.DONE)
    assert verify(graph, found.schedule, budget).time_us == found.time_us
    assert polled < polls + 100


@SAMPLED
def test_a_short_limit_leaves_time_for_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A polish that ran beyond the limit once left only the trivial bound.

    The clock goes on with the work: it is read after each piece.
    """
    reads = itertools.count()
    monkeypatch.setattr(incumbent, "time", SimpleNamespace(monotonic=lambda: 0.06 * next(reads)))
    graph = resnet(blocks=(1, 1, 1))
    plain = simulate_step(graph, plain_schedule(graph))
    found = solve_schedule(
        graph,
        int(0.5 * plain.peak_bytes),
        ScheduleSearch,
        limits=SolveLimits(seconds=30.0, gap=0.0),
    )
    assert found.stop is Stop.TIME
    assert found.bound_us > plain.time_us


@pytest.mark.parametrize("seed", range(3))
def test_all_implementations_are_no_worse_than_one_each_post_optimised(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "_EXACT_VARIABLES", 0)
    graph = random_graph(Random(seed))
    one = replace(
        graph,
        operators=tuple(
            replace(each, implementations=each.implementations[:1]) for each in graph.operators
        ),
    )
    plain = verify(one, plain_schedule(one)).peak_bytes
    limits = replace(UNTIMED, rounds=5, interval_work=0.0, gap=0.0)
    for budget in (plain, plain * 9 // 10):
        try:
            found = solve_schedule(one, budget, ScheduleSearch, limits=limits)
        except BudgetError:
            continue
        optimized = verify(graph, post_optimized(graph, found.schedule, budget), budget)
        assert (
            solve_schedule(graph, budget, ScheduleSearch, limits=limits).time_us
            <= optimized.time_us + 1e-6
        )


def test_implementations_that_are_faster_together_are_found() -> None:
    """A loss with gradients in its forward pass: each operator alone gained nothing by it."""
    graph = chain(6, nbytes=10)
    made = len(graph.storages)
    operators = list(graph.operators)
    loss, backward = operators[5].implementations[0], operators[6].implementations[0]
    slow = (replace(loss, time_us=20.0), replace(backward, time_us=30.0))
    operators[5] = replace(
        operators[5],
        implementations=(
            slow[0],
            replace(loss, name="with gradient", time_us=35.0, creates=(*loss.creates, made)),
        ),
    )
    operators[6] = replace(
        operators[6],
        implementations=(
            slow[1],
            replace(backward, name="with gradient", reads=(made,), time_us=1.0),
        ),
    )
    graph = replace(
        graph,
        storages=(*graph.storages, Storage(name="gradient", nbytes=10)),
        operators=tuple(operators),
    )
    stages = Stages(graph)
    peak = simulate_step(graph, plain_schedule(graph)).peak_bytes
    search = Search(stages, peak, ScheduleSearch)
    start = search.simulated(Draft.plain(stages))
    assert start is not None
    assert search.polish(start).time_us == start.time_us
    found = search.exchanged(start)
    assert not found.excess
    assert start.time_us - found.time_us == pytest.approx(14.0, abs=3.0)
