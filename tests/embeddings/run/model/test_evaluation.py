"""Batches of evaluation, which a thread reads ahead."""

import multiprocessing
from collections.abc import Generator
from typing import cast

import pytest

from headrace.embeddings.run.model.evaluation import EvaluationRows, ahead
from tests.waiting import HANG_S, no_hang


def numbered(count: int) -> Generator[EvaluationRows]:
    yield from (cast("EvaluationRows", number) for number in range(count))


def test_batches_and_errors_come_in_their_order() -> None:
    def broken() -> Generator[EvaluationRows]:
        yield from numbered(2)
        raise ValueError("line 3")

    with no_hang():
        assert [*ahead(numbered(5))] == [0, 1, 2, 3, 4]
        rows = ahead(broken())
        assert [next(rows), next(rows)] == [0, 1]
        with pytest.raises(ValueError, match="line 3"):
            next(rows)


def test_an_evaluation_that_is_left_reads_no_more() -> None:
    ended: list[bool] = []

    def endless() -> Generator[EvaluationRows]:
        try:
            while True:
                yield from numbered(1)
        finally:
            ended.append(True)

    with no_hang():
        rows = ahead(endless())
        next(rows)
        rows.close()
    assert ended == [True]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads, from 3.12 on
def test_workers_of_a_loader_end_without_an_error() -> None:
    """Forked in an executor's thread they ended with exit code 1, which torch reports."""
    exit_codes: list[int | None] = []

    def from_a_worker() -> Generator[EvaluationRows]:
        worker = multiprocessing.get_context("fork").Process(target=int)
        worker.start()
        worker.join(HANG_S)
        exit_codes.append(worker.exitcode)
        yield from numbered(1)

    assert [*ahead(from_a_worker())] == [0]
    assert exit_codes == [0]
