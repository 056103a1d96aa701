"""Schedules made by rule are valid, and trade time for memory."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headrace.memory.plan.baselines import block_schedule, keep_schedule, sqrt_schedule
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from tests.memory.graphs import chain, random_graph


def test_all_kept_is_a_plain_run() -> None:
    graph = chain(5)
    assert keep_schedule(graph, range(5)) == plain_schedule(graph)


def test_nothing_kept_computes_each_storage_again_once() -> None:
    graph = chain(6)
    schedule = keep_schedule(graph, ())
    assert [step.operator for step in schedule.steps[6:]] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_sqrt_checkpoints_of_a_chain() -> None:
    graph = chain(100, nbytes=1)
    plain = verify(graph, plain_schedule(graph))
    found = verify(graph, sqrt_schedule(graph))
    assert plain.peak_bytes == 101
    assert found.peak_bytes <= 9 + 11 + 3
    assert found.reruns <= 99


def test_blocks_are_checkpointed_by_their_modules() -> None:
    graph = chain(9)
    named = replace(
        graph,
        operators=tuple(replace(op, module=f"{int(op.module) // 3}.a") for op in graph.operators),
    )
    schedule = block_schedule(named, ["1", "2"])
    # kept: block 0, what leaves block 1 and 2; again: what is within
    assert [step.operator for step in schedule.steps[9:]] == [
        *(6, 7, 9, 10, 11, 3, 4, 12, 13, 14, 15, 16, 17),
    ]
    assert verify(named, schedule).peak_bytes < verify(named, plain_schedule(named)).peak_bytes


@given(st.randoms(use_true_random=False))
def test_any_kept_set_and_any_implementations_give_a_valid_schedule(random: Random) -> None:
    graph = random_graph(random)
    kept = [each for each in range(graph.forward_count) if random.random() < 0.5]
    verify(graph, keep_schedule(graph, kept))
    verify(graph, sqrt_schedule(graph, random.randint(1, graph.forward_count)))
    verify(graph, block_schedule(graph, ["block0", "block2"]))
