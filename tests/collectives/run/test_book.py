"""A plan book serves only the job it was made for, and says so otherwise."""

from dataclasses import replace

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.run.book import channels, fitting, load_book
from headrace.topology.presets import uniform


@pytest.fixture(scope="module")
def book() -> PlanBook:
    topology = uniform(4)
    topology = replace(topology, hosts=("a", "b"), rank_host=(0, 1, 0, 1))
    return build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 20])


def test_ranks_placed_alike_fit_whatever_the_hosts_are_called(book: PlanBook) -> None:
    assert fitting(book, [0, 1, 0, 1], speak=True) is book
    assert fitting(book, [1, 0, 1, 0], speak=True) is book
    assert fitting(None, [0, 1], speak=True) is None


@pytest.mark.parametrize(
    ("rank_host", "words"),
    [
        ([0, 1, 0], "4 ranks, the job has 3"),
        ([0, 0, 1, 1], "ranks 0 and 1 on different hosts"),
        ([0, 1, 2, 3], "ranks 0 and 2 on the same host"),
    ],
)
def test_a_misfit_is_told_once(book: PlanBook, rank_host: list[int], words: str) -> None:
    with pytest.warns(UserWarning, match=words):
        assert fitting(book, rank_host, speak=True) is None
    assert fitting(book, rank_host, speak=False) is None


def test_channels_are_those_of_the_widest_program(book: PlanBook) -> None:
    widest = max(int(program.lanes["channel"].max()) for program, _ in book.programs)
    assert channels(book) == widest + 1
    assert channels(None) == 1


def test_no_path_no_book() -> None:
    assert load_book(None) is None
