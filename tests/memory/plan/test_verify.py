"""The verifier rejects every mutant of a schedule, by the step, operator and storage."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph, Operator
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import Schedule, Step, plain_schedule
from tests.memory.graphs import chain, random_graph, random_schedule
from tests.memory.plan.test_simulate import in_place


def of(*operators: int | Step, forward: int) -> Schedule:
    steps = tuple(each if isinstance(each, Step) else Step(each) for each in operators)
    return Schedule(steps=steps, forward_steps=forward)


WRONG = [
    (of(0, 1, 2, 3, 9, 5, forward=3), r"step 4 runs operator 9, the graph has 0 to 5"),
    (
        of(0, 1, Step(2, 1), 3, 4, 5, forward=3),
        r"'forward2' of module '2'\) runs implementation 1, the operator",
    ),
    (of(0, 2, 1, 3, 4, 5, forward=3), r"step 1 .* runs first, needs operator 1 before it"),
    (of(0, 1, 3, 4, 5, forward=2), r"operator 2 \('forward2'\) does not run in the forward pass"),
    (of(0, 1, 3, 2, 4, 5, forward=2), r"operator 2 \('forward2'\) does not run in the forward"),
    (of(0, 1, 2, 3, 4, 5, forward=4), r"step 3 .* is of the backward pass and runs in the forward"),
    (of(0, 1, 2, 4, 3, 5, forward=3), r"step 3 .* runs, needs operator 3 before it"),
    (of(0, 1, 2, 3, 4, forward=3), r"operator 5 \('backward0'\) does not run in the schedule"),
    (of(0, 1, 2, 3, 3, 4, 5, forward=3), r"step 4 .* runs again, which this operator may not"),
    (of(0, 1, 2, 3, 4, 5, forward=7), r"the forward pass has 7 steps, the schedule 6"),
    (of(forward=0), r"operator 0 \('forward0'\) does not run in the forward pass"),
]


def test_schedules_that_break_a_rule_of_order_are_refused() -> None:
    for schedule, message in WRONG:
        with pytest.raises(ScheduleError, match=message):
            verify(chain(3), schedule)


def changed(graph: Graph, operator: int, change: Callable[[Operator], Operator]) -> Graph:
    operators = list(graph.operators)
    operators[operator] = change(operators[operator])
    return replace(graph, operators=tuple(operators))


def test_an_operator_that_may_not_run_again_runs_once() -> None:
    graph = chain(3)
    schedule = of(0, 1, 2, 3, 0, 4, 5, forward=3)
    assert verify(graph, schedule).reruns == 1
    once = changed(graph, 0, lambda operator: replace(operator, again=False))
    with pytest.raises(
        ScheduleError, match=r"step 4 \(operator 0, 'forward0' of module '0'\) runs again"
    ):
        verify(once, schedule)


def test_operands_have_to_be_there() -> None:
    graph = in_place()
    with pytest.raises(ScheduleError, match=r"step 2 .* reads storage 0 \('x'\), which step 1 ove"):
        verify(graph, of(0, Step(1, 1), Step(1, 0), 2, 3, forward=3))
    unread = changed(
        graph,
        2,
        lambda op: replace(op, implementations=(replace(op.implementations[0], reads=(3,)),)),
    )
    with pytest.raises(ScheduleError, match=r"reads storage 3 \('w'\), which no step before it"):
        verify(unread, plain_schedule(unread))


def test_outputs_and_results_stay() -> None:
    graph = replace(in_place(), outputs=frozenset({0}))
    verify(graph, of(0, 1, 2, 3, forward=2))
    with pytest.raises(ScheduleError, match=r"storage 0 \('x'\) has to be kept and is not there"):
        verify(graph, of(0, Step(1, 1), 2, 3, forward=2))
    with pytest.raises(ScheduleError, match=r"step 2 .* overwrites storage 0 \('x'\), which has"):
        verify(graph, of(0, 1, Step(1, 1), 2, 3, forward=2))
    # an output computed again may be overwritten: the caller's instance is another
    verify(graph, of(0, 1, 0, Step(1, 1), 2, 3, forward=2))


@given(st.randoms(use_true_random=False))
def test_no_mutant_passes(random: Random) -> None:
    graph = random_graph(random, least=2)
    schedule = random_schedule(graph, random)
    steps, first = schedule.steps, schedule.forward_steps
    fresh = [
        k for k, step in enumerate(steps) if step.operator not in {s.operator for s in steps[:k]}
    ]
    gone = random.choice(fresh)
    left, right = sorted(random.sample(fresh, 2))
    swapped = list(steps)
    swapped[left], swapped[right] = swapped[right], swapped[left]
    backward = random.choice([k for k in fresh if k >= first])
    mutants = [
        replace(
            schedule,
            steps=(*steps[:gone], *steps[gone + 1 :]),
            forward_steps=first - (gone < first),
        ),
        replace(schedule, steps=tuple(swapped)),
        replace(schedule, steps=(*steps, steps[backward])),
        replace(schedule, forward_steps=fresh[graph.forward_count - 1]),
    ]
    for index, mutant in enumerate(mutants):
        rerun = index == 0 and steps[gone].operator in {step.operator for step in mutant.steps}
        if rerun:  # its next run may stand for the first, if nothing read it before
            continue
        with pytest.raises(ScheduleError):
            verify(graph, mutant)
