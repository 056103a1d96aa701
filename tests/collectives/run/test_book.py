"""A plan book serves only the job it was made for, and says so otherwise."""

from dataclasses import replace

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.run.book import channels, describe_book, fitting, load_book
from headrace.topology.presets import racks, uniform


@pytest.fixture(scope="module")
def book() -> PlanBook:
    topology = uniform(4)
    topology = replace(topology, hosts=("a", "b"), rank_host=(0, 1, 0, 1))
    return build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 20])


def test_ranks_placed_alike_fit_if_nothing_tells_their_hosts_apart(book: PlanBook) -> None:
    elsewhere = ["10.0.0.1:7", "10.0.0.2:7", "10.0.0.1:8", "10.0.0.2:8"]
    for addresses in ([], elsewhere):
        assert fitting(book, [0, 1, 0, 1], addresses, warn=True) is book
        assert fitting(book, [1, 0, 1, 0], addresses, warn=True) is book
        assert fitting(None, [0, 1], addresses, warn=True) is None


ADDRESSES = tuple(f"10.77.{rack}.{host}" for rack in (1, 2) for host in (1, 2))


@pytest.fixture(scope="module")
def racks_book() -> PlanBook:
    topology = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    topology = replace(topology, addresses=ADDRESSES)
    return build_book(topology, collectives=[Collective.ALLREDUCE], sizes=[1 << 20])


@pytest.mark.parametrize("named_by_address", [False, True])
def test_ranks_in_another_order_do_not_fit(racks_book: PlanBook, named_by_address: bool) -> None:
    book, rank_host = racks_book, [0, 1, 2, 3]
    if named_by_address:  # as hosts measured under torchrun are
        book = replace(book, topology=replace(book.topology, hosts=ADDRESSES, addresses=()))
    listening = [f"{address}:{4000 + k}" for k, address in enumerate(ADDRESSES)]
    assert fitting(book, rank_host, listening, warn=True) is book
    interleaved = [listening[k] for k in (0, 2, 1, 3)]
    with pytest.warns(UserWarning, match=r"another order .*rank 1, 10.77.2.1, had rank 2.*measure"):
        assert fitting(book, rank_host, interleaved, warn=True) is None
    one_replaced = [*listening[:3], "10.77.9.9:4003"]
    assert fitting(book, rank_host, one_replaced, warn=True) is book


def test_a_book_is_described_in_one_line(racks_book: PlanBook) -> None:
    said = describe_book(racks_book)
    assert racks_book.digest[:12] in said
    assert "rack0-host0, rack0-host1" in said
    assert "[[0, 1], [2, 3]]" in said
    assert "templates" in describe_book(None)


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
        assert fitting(book, rank_host, warn=True) is None
    assert fitting(book, rank_host, warn=False) is None


def test_channels_are_those_of_the_widest_program(book: PlanBook) -> None:
    widest = max(int(program.lanes["channel"].max()) for program, _ in book.programs)
    assert channels(book) == widest + 1
    assert channels(None) == 1


def test_no_path_no_book() -> None:
    assert load_book(None) is None
