"""Memory and times of schedules: by hand, natively, by the verifier, and by sorting."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace._native import ScheduleSearch
from headrace.memory.errors import ScheduleError
from headrace.memory.graph import Graph, Storage
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.search import Search
from headrace.memory.plan.stages import Stages
from headrace.memory.plan.verify import allocated_bytes, stored_bytes, verify
from headrace.memory.schedule import Schedule, Step, plain_schedule
from tests.memory.graphs import chain, implementation, operator, random_graph, random_schedule
from tests.memory.simulate import simulate_step


def test_a_chain_keeps_what_its_backward_pass_reads() -> None:
    graph = chain(3, resident=7)
    found = simulate_step(graph, plain_schedule(graph))
    # x0; x0 x1; x0 x1 x2; the loss stays, gradients pass through
    assert found.bytes.tolist() == [17, 27, 37, 47, 47, 37]
    assert (found.peak_bytes, found.peak_step, found.time_us) == (47, 3, 6.0)
    assert list(zip(found.storage, found.first, found.last, strict=True)) == [
        *((0, 0, 4), (1, 1, 3), (2, 2, 5), (3, 3, 4), (4, 4, 5), (5, 5, 5)),
    ]


def test_a_rerun_frees_its_storage_in_between() -> None:
    graph = chain(4)
    order = (0, 1, 2, 3, 4, 0, 1, 5, 6, 7)
    schedule = Schedule(steps=tuple(map(Step, order)), forward_steps=4)
    assert simulate_step(graph, plain_schedule(graph)).bytes.tolist() == [
        10,
        20,
        30,
        40,
        50,
        50,
        40,
        30,
    ]
    # x0 and x1 go after forward2 and come back
    assert simulate_step(graph, schedule).bytes.tolist() == [10, 20, 20, 20, 30, 30, 40, 50, 40, 30]


def in_place() -> Graph:
    """Return a graph of which the second operator can overwrite the first one's output."""
    return Graph(
        storages=tuple(Storage(name=name, nbytes=4) for name in ("x", "y", "g", "w")),
        operators=(
            operator("conv", implementation(creates=(0,), workspace_bytes=5)),
            operator(
                "relu",
                implementation(reads=(0,), creates=(1,)),
                implementation("in place", reads=(0,), creates=(1,), overwrites=0),
            ),
            operator("relu's", implementation(reads=(1,), creates=(2,)), again=False),
            operator("conv's", implementation(reads=(2,), creates=(3,)), again=False),
        ),
        forward_count=2,
        outputs=frozenset({1}),
        results=frozenset({3}),
    )


def test_overwritten_memory_counts_once() -> None:
    graph = in_place()
    apart, inside = (
        Schedule(steps=(Step(0), Step(1, way), Step(2), Step(3)), forward_steps=2) for way in (0, 1)
    )
    assert simulate_step(graph, apart).bytes.tolist() == [9, 8, 8, 12]
    assert simulate_step(graph, inside).bytes.tolist() == [9, 4, 8, 12]
    assert verify(graph, inside).peak_bytes == 12


def test_an_output_that_is_computed_again_is_there_twice() -> None:
    graph = in_place()
    schedule = Schedule(steps=tuple(map(Step, (0, 1, 0, 1, 2, 3))), forward_steps=2)
    assert simulate_step(graph, schedule).bytes.tolist() == [9, 8, 13, 12, 12, 12]
    assert verify(graph, schedule).peak_bytes == 13


def test_reads_of_what_is_not_there_are_refused() -> None:
    graph = in_place()
    early = Schedule(steps=(Step(1), Step(0), Step(2), Step(3)), forward_steps=2)
    with pytest.raises(ScheduleError, match=r"step 0 \(relu\) reads 'x', which is not there"):
        simulate_step(graph, early)
    late = Schedule(steps=(Step(0), Step(1, 1), Step(1), Step(2), Step(3)), forward_steps=3)
    with pytest.raises(ScheduleError, match=r"step 2 \(relu\) needs 'x', which was overwritten"):
        simulate_step(graph, late)


def random_draft(stages: Stages, random: Random) -> Draft:
    """Return a draft with random implementations and reruns, which may be no schedule."""
    graph = stages.graph
    ways = [len(operator.implementations) for operator in graph.operators]
    changed = random.random() < 0.5

    def way(operator: int) -> int:
        return random.randrange(ways[operator]) if changed else 0

    again: list[dict[int, int]] = [{}]
    for _ in range(stages.count):
        runs = [
            operator
            for operator in stages.forward
            if graph.operators[operator].again and random.random() < 0.3
        ]
        again.append({operator: way(operator) for operator in runs})
    backward = range(graph.forward_count, len(graph.operators))
    return Draft(
        forward=list(map(way, stages.forward)), backward=list(map(way, backward)), again=again
    )


@given(st.randoms(use_true_random=False))
def test_native_simulation_of_drafts_is_that_by_sorting(random: Random) -> None:
    graph = random_graph(random)
    stages, budget = Stages(graph), random.randrange(200)
    draft = random_draft(stages, random)
    native = Search(stages, budget, ScheduleSearch).simulated(draft)
    try:
        expected = simulate_step(graph, draft.schedule())
    except ScheduleError:
        assert native is None
        with pytest.raises(ScheduleError):
            verify(graph, draft.schedule())
        return
    assert native is not None
    assert native.bytes.tolist() == expected.bytes.tolist()
    assert native.bytes.tolist() == allocated_bytes(graph, draft.schedule())
    assert (native.peak_bytes, native.peak_step) == (expected.peak_bytes, expected.peak_step)
    assert native.time_us == pytest.approx(expected.time_us, rel=1e-12)
    assert native.excess == sum(max(0, nbytes - budget) for nbytes in expected.bytes.tolist())
    lifetimes = zip(expected.storage, expected.first, expected.last, strict=True)
    assert sorted(zip(native.storage, native.first, native.last, strict=True)) == [*lifetimes]
    assert native.storages_at(native.peak_step) == expected.storages_at(expected.peak_step)


@given(st.randoms(use_true_random=False))
def test_the_simulator_and_the_verifier_agree(random: Random) -> None:
    graph = random_graph(random)
    schedule = random_schedule(graph, random)
    found, proof = simulate_step(graph, schedule), verify(graph, schedule)
    assert (found.peak_bytes, found.peak_step) == (proof.peak_bytes, proof.peak_step)
    assert found.time_us == proof.time_us
    assert found.bytes.tolist() == allocated_bytes(graph, schedule)
    turn, sizes = schedule.forward_steps, [storage.nbytes for storage in graph.storages]
    lifetimes = zip(found.storage, found.first, found.last, strict=True)
    stored = sum(sizes[storage] for storage, first, last in lifetimes if first < turn <= last)
    assert stored_bytes(graph, schedule) == stored
    assert verify(graph, schedule, proof.peak_bytes) == proof
    with pytest.raises(ScheduleError, match=f"step {proof.peak_step} .* needs {proof.peak_bytes}"):
        verify(graph, schedule, proof.peak_bytes - 1)


@given(st.randoms(use_true_random=False))
def test_random_implementations_are_judged_alike(random: Random) -> None:
    graph = random_graph(random)
    schedule = random_schedule(graph, random)
    steps = tuple(
        Step(step.operator, random.randrange(len(graph.operators[step.operator].implementations)))
        for step in schedule.steps
    )
    mixed = Schedule(steps=steps, forward_steps=schedule.forward_steps)
    try:
        peak = verify(graph, mixed).peak_bytes
    except ScheduleError:
        with pytest.raises(ScheduleError):
            simulate_step(graph, mixed)
    else:
        assert simulate_step(graph, mixed).peak_bytes == peak
