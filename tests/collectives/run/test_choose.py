"""Which program serves a call: always a proven one, and the same at every rank."""

import pytest

from headrace.collectives.demand import ROOTED, STANDARD, Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Direction
from headrace.collectives.run.choose import Choice, Chooser
from headrace.topology.presets import uniform

SIZES = (0, 1, 1 << 14, 1 << 17, 1 << 24)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("collective", list(STANDARD))
def test_every_call_has_a_proven_template(collective: Collective, ranks: int) -> None:
    for root in {0, ranks - 1} if collective in ROOTED else {0}:
        for size in SIZES if ranks < 9 else SIZES[::2]:
            choice = Chooser(ranks).choose(collective, size, root)
            demand = choice.program.demand
            assert (demand.collective, demand.ranks, demand.root) == (collective, ranks, root)
            assert choice.proof.program_digest == choice.program.digest
            assert choice.blockwise


@pytest.mark.parametrize("channels", [2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("collective", list(STANDARD))
def test_large_calls_are_spread_evenly_over_all_connections(
    collective: Collective, ranks: int, channels: int
) -> None:
    choice = Chooser(ranks, channels=channels).choose(collective, 1 << 24)
    lanes, steps = choice.program.lanes, choice.program.steps
    sends = lanes["direction"][steps["lane"]] == Direction.SEND
    loads: dict[tuple[int, int], list[int]] = {}
    for lane in steps["lane"][sends]:
        pair = int(lanes["rank"][lane]), int(lanes["peer"][lane])
        loads.setdefault(pair, [0] * channels)[int(lanes["channel"][lane])] += 1
    assert loads
    assert all(min(load) > 0 and max(load) - min(load) <= 1 for load in loads.values()), loads
    assert choice.blockwise
    assert verify(choice.program) == choice.proof


def test_short_calls_and_those_within_a_host_use_one_connection() -> None:
    for chooser, size in (
        (Chooser(4, channels=3), 1 << 14),
        (Chooser(4, channels=3, one_host=True), 1 << 24),
    ):
        assert not chooser.choose(Collective.ALLREDUCE, size).program.lanes["channel"].any()


def test_the_choice_is_made_once() -> None:
    assert Chooser(4).choose(Collective.ALLREDUCE, 100) is Chooser(4).choose(
        Collective.ALLREDUCE, 120
    )


@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.ALL_TO_ALL])
def test_uneven_blocks_get_one_chunk_each(collective: Collective) -> None:
    choice = Chooser(5).block_by_block(collective)
    assert choice.chunks == 1
    assert choice.program.steps["count"].max() == 1
    assert verify(choice.program) == choice.proof


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("one_host", [False, True])
def test_an_all_to_all_of_any_blocks_is_that_of_equal_ones(one_host: bool, channels: int) -> None:
    """Ranks that gave equal split sizes, and others that gave none, ran different programs."""
    chooser = Chooser(3, one_host=one_host, channels=channels)
    by_blocks = chooser.block_by_block(Collective.ALL_TO_ALL).program.digest
    for size in SIZES:
        assert chooser.choose(Collective.ALL_TO_ALL, size).program.digest == by_blocks


def test_a_book_comes_first_and_templates_fill_its_gaps() -> None:
    topology = uniform(3)
    book = build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 10, 1 << 20])
    chooser = Chooser(3, book)
    for size in (1 << 10, 1 << 20):
        plan = book.choose(Collective.ALLREDUCE, size)
        assert plan is not None
        choice = chooser.choose(Collective.ALLREDUCE, size)
        assert choice.program is plan.program
        assert plan.generator in choice.origin
    assert chooser.choose(Collective.BROADCAST, 100, 1).origin.startswith("template")


HUGE = ((1 << 31) - 1, 1 << 31, 5 << 30, 40 << 30, 200 << 30)


def longest_step_bytes(choice: Choice, total_bytes: int) -> float:
    program = choice.program
    return program.demand.chunk_bytes(total_bytes) * int(program.steps["count"].max(initial=0))


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("collective", list(STANDARD))
def test_no_step_of_a_huge_call_needs_more_than_its_frame_can_tell(
    collective: Collective, ranks: int
) -> None:
    for size in HUGE:
        choice = Chooser(ranks).choose(collective, size)
        assert longest_step_bytes(choice, size) <= 1 << 31
        assert choice.blockwise
        assert verify(choice.program) == choice.proof


def test_huge_calls_are_cut_no_finer_than_they_must_be() -> None:
    chunks = [Chooser(2).choose(Collective.BROADCAST, size).chunks for size in HUGE]
    assert chunks == [1, 2, 3, 21, 101]
    chunks = [Chooser(4).choose(Collective.ALLREDUCE, size).chunks for size in HUGE]
    assert chunks == [4, 4, 4, 24, 104]


def test_a_plan_with_too_long_steps_for_a_huge_call_is_passed_over() -> None:
    book = build_book(uniform(2), collectives=[Collective.ALL_TO_ALL], sizes=[1 << 10])
    chooser = Chooser(2, book)
    assert chooser.choose(Collective.ALL_TO_ALL, 1 << 20).origin.startswith("plan book")
    assert chooser.choose(Collective.ALL_TO_ALL, 1 << 40).origin.startswith("template")
