"""``headrace collectives adapt`` says what a changed network changes, and writes the book."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.collectives.adapt.observe.port_changes import PortRates
from headrace.collectives.demand import Collective
from headrace.collectives.plan.book import PlanBook, build_book
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.request import Method
from headrace.topology import subgraph
from headrace.topology.presets import uniform
from tests.collectives.adapt.clusters import network


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    before = network(tmp_path, (2, 2), uplink="800mbit")
    book = build_book(before, collectives=(Collective.ALLREDUCE,), sizes=(1 << 10, 1 << 20))
    book.save(tmp_path / "book")
    slow = PortRates(factors={"host1-out": 0.3, "host1-in": 0.3}).apply(before)
    slow.save(tmp_path / "now")
    return tmp_path / "book", tmp_path / "now", tmp_path / "new"


@pytest.mark.sampled(4, of="long plans")
def test_it_writes_a_better_book(files: tuple[Path, Path, Path]) -> None:
    book, now, new = files
    done = CliRunner().invoke(
        app, ["collectives", "adapt", str(book), "--profile", str(now), "-o", str(new)]
    )
    assert done.exit_code == 0, done.output
    assert "predicted on the network as it is now" in done.output
    adapted = PlanBook.load(new)
    assert adapted.provenance["adapted_from"] == PlanBook.load(book).digest
    assert adapted.topology.name.endswith("-updated")


def test_the_book_of_one_rank_is_adapted(tmp_path: Path) -> None:
    """Its plans take no time, by which the saving was divided, with a traceback."""
    uniform(1).save(tmp_path / "now", {})
    build_book(uniform(1), collectives=(Collective.ALLREDUCE,)).save(tmp_path / "book")
    files = (
        str(tmp_path / "book"),
        "--profile",
        str(tmp_path / "now"),
        "-o",
        str(tmp_path / "new"),
    )
    done = CliRunner().invoke(app, ["collectives", "adapt", *files])
    assert done.exit_code == 0, done.output
    assert "0%" in done.output


def test_plans_are_compared_under_the_cost_model_of_the_book(
    files: tuple[Path, Path, Path],
) -> None:
    """Predictions by the model for GPUs were compared with those by the executor's."""
    book, now, new = files
    network_before = PlanBook.load(book).topology
    build_book(
        network_before,
        collectives=(Collective.ALLREDUCE,),
        sizes=(1 << 10, 1 << 20),
        method=Method(model=FULL),
    ).save(book)
    done = CliRunner().invoke(
        app, ["collectives", "adapt", str(book), "--profile", str(now), "-o", str(new)]
    )
    assert done.exit_code == 0, done.output
    assert {entry.plan.model.name for entry in PlanBook.load(new).entries} == {"full"}


def test_links_that_the_network_has_lost_are_named(tmp_path: Path) -> None:
    before = uniform(3)
    book, now, new = (str(tmp_path / name) for name in ("book", "now", "new"))
    build_book(before, collectives=(Collective.ALLGATHER,), sizes=(1 << 20,)).save(book)
    present = [index for index, link in enumerate(before.links) if (link.src, link.dst) != (2, 0)]
    subgraph(before, present).save(now, {})
    arguments = ["collectives", "adapt", book, "--profile", now, "-o", new]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "no longer has links 2 -> 0" in " ".join(done.output.split())
    assert PlanBook.load(new).topology.link_index.keys() == before.link_index.keys() - {(2, 0)}
