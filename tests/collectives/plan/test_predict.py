"""Predicted times of a network's collectives: a plan book's, or the best templates'."""

from pathlib import Path

import pytest

from headrace.artifact import Artifact
from headrace.collectives import predictor
from headrace.collectives.demand import Collective
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.portfolio import predict_us
from headrace.errors import ArtifactError, InputError
from headrace.topology.presets import uniform

TOPOLOGY = uniform(3, alpha_us=20.0, bytes_per_s=1e8)


def test_a_books_times_are_those_of_its_plans(tmp_path: Path) -> None:
    book = build_book(TOPOLOGY, collectives=[Collective.ALLREDUCE], sizes=[1 << 14, 1 << 20])
    book.save(tmp_path / "book")
    found = predictor(tmp_path / "book")
    assert (found.topology.ranks, found.topology.name) == (3, TOPOLOGY.name)
    assert found.slowest_bytes_per_s == pytest.approx(1e8)
    for size in (1000, 1 << 20, 3_000_000):
        plan = book.choose(Collective.ALLREDUCE, size)
        assert plan is not None
        us = predict_us(plan.program, TOPOLOGY, size, plan.model)
        assert found.predict_us("allreduce", size) == us
    with pytest.raises(ProgramError, match="no plan for all_to_all, needs one; make the book"):
        found.predict_us("all_to_all", 1000)


def test_without_a_book_templates_are_planned_for_the_size(tmp_path: Path) -> None:
    Artifact(kind="topology", schema=1, head=TOPOLOGY.to_head()).save(tmp_path / "topology")
    found = predictor(tmp_path / "topology")
    for collective in ("allreduce", "allgather", "all_to_all"):
        small, large = (found.predict_us(collective, size) for size in (1 << 10, 1 << 22))
        assert 0 < small < large
    assert found.predict_us("allreduce", 3_000_000) >= 2 / 3 * 2 * 3_000_000 / 100


def test_other_files_are_refused(tmp_path: Path) -> None:
    Artifact(kind="other", schema=1, head={}).save(tmp_path / "file")
    with pytest.raises(ArtifactError, match="field 'kind' is 'other', needs plan-book, topo"):
        predictor(tmp_path / "file")


def test_a_network_of_one_rank_has_no_slowest_link() -> None:
    """It was a ValueError of ``max()``, with a traceback, in two plan verbs."""
    with pytest.raises(InputError, match="has no link, needs two ranks or more"):
        _ = predictor(uniform(1)).slowest_bytes_per_s
