"""Which program serves a call: always a proven one, and the same at every rank."""

import pytest

from headrace.collectives.demand import ROOTED, Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.choice import Chooser
from headrace.topology.presets import uniform

SIZES = (0, 1, 1 << 14, 1 << 17, 1 << 24)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize("collective", list(Collective))
def test_every_call_has_a_proven_template(collective: Collective, ranks: int) -> None:
    for root in {0, ranks - 1} if collective in ROOTED else {0}:
        for size in SIZES if ranks < 9 else SIZES[::2]:
            choice = Chooser(ranks).choose(collective, size, root)
            demand = choice.program.demand
            assert (demand.collective, demand.ranks, demand.root) == (collective, ranks, root)
            assert choice.proof.program_digest == choice.program.digest
            assert choice.blockwise


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


def test_a_book_comes_first_and_templates_fill_its_gaps() -> None:
    topology = uniform(3)
    book = build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 10, 1 << 20])
    chooser = Chooser(3, book)
    for size in (1 << 10, 1 << 20):
        plan = book.choose(Collective.ALLREDUCE, size)
        assert plan is not None
        choice = chooser.choose(Collective.ALLREDUCE, size)
        assert choice.program is plan.program
        assert plan.maker in choice.origin
    assert chooser.choose(Collective.BROADCAST, 100, 1).origin.startswith("template")
