"""Equal blocks are found by their modules, and run like one of them."""

from dataclasses import replace

from headrace._native import ScheduleSearch
from headrace.memory.graph import Graph
from headrace.memory.plan.draft import Draft
from headrace.memory.plan.repeats import repeated_blocks
from headrace.memory.plan.search import Search
from headrace.memory.plan.solution import SolveLimits
from headrace.memory.plan.solve import solve_schedule
from headrace.memory.plan.stages import Stages
from headrace.memory.plan.verify import verify
from headrace.memory.schedule import plain_schedule
from tests.memory.graphs import chain
from tests.memory.simulate import simulate_step
from tests.waiting import ENDLESS_S

EACH = 4


def layers(count: int, *, odd: int | None = None) -> Graph:
    """Return a chain of layers of four operators; the third of one may have another name."""
    graph = chain(EACH * count)

    def module(operator: str) -> str:
        number = int(operator.removeprefix("forward").removeprefix("backward"))
        layer, part = divmod(number, EACH)
        return f"model.layers.{layer}.{'odd' if layer == odd and part == 2 else part}"

    operators = tuple(replace(each, module=module(each.name)) for each in graph.operators)
    return replace(graph, operators=operators)


def test_blocks_of_equal_operators_are_found() -> None:
    (blocks,) = repeated_blocks(layers(5))
    assert [each.name for each in blocks] == [f"model.layers.{number}" for number in range(5)]
    assert blocks[1].forward == (4, 5, 6, 7)
    assert blocks[1].backward == (32, 33, 34, 35)
    (blocks,) = repeated_blocks(layers(5, odd=2))
    assert [each.name for each in blocks] == [f"model.layers.{number}" for number in (0, 1, 3, 4)]
    assert repeated_blocks(layers(1)) == []
    assert repeated_blocks(chain(8)) == []


def test_what_one_block_computes_again_others_do_too() -> None:
    graph = layers(4)
    stages = Stages(graph)
    (blocks,) = repeated_blocks(graph)

    def reruns(counts: tuple[int, ...]) -> Draft:
        """Return the draft in which each block runs its first operators again, as a checkpoint."""
        draft = Draft.plain(stages)
        for block, count in zip(blocks, counts, strict=True):
            stage = block.backward[0] - graph.forward_count + 1
            draft.again[stage] = dict.fromkeys(block.forward[:count], 0)
        return draft

    budget = simulate_step(graph, reruns((3, 3, 3, 0)).schedule()).peak_bytes
    search = Search(stages, budget, ScheduleSearch)
    start = search.simulated(reruns((4, 4, 3, 4)))
    assert start is not None
    made = search.spread(start)
    assert made.draft == reruns((3, 3, 3, 0))  # the last one's are needed at once
    verify(graph, made.draft.schedule(), budget)


FEW_ROUNDS = SolveLimits(seconds=ENDLESS_S, bound_seconds=0.0, rounds=5, interval_work=0.0)


def test_deep_networks_are_planned_far_below_a_plain_run() -> None:
    """Searching from the plain run alone took the time of the first schedules, without one."""
    graph = layers(60)
    plain = simulate_step(graph, plain_schedule(graph)).peak_bytes
    found = solve_schedule(graph, plain // 4, ScheduleSearch, limits=FEW_ROUNDS)
    assert found.time_us < 1.5 * sum(each.implementations[0].time_us for each in graph.operators)
