"""Collectives that follow each other: the next one needs the results of the last."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from headrace.collectives.run.torch.chained import ChainedWork
from tests.collectives.run.torch.test_caller import reduce, two


class LostCopies:
    """Copies to a device that does not answer; see `copies.CudaCopies`."""

    devices = ()

    def to_device(self, pairs: object) -> None:
        pass

    def wait(self) -> None:
        raise RuntimeError("the device is lost")


def test_a_step_whose_results_do_not_arrive_is_the_last_one() -> None:
    """The next step went on with memory that no result had been copied to."""
    reasons: list[str] = []
    begun: list[str] = []
    with two() as (first, second):

        def steps() -> Iterator[Any]:
            begun.append("first")
            work = reduce(first)
            work.land(cast(Any, LostCopies()), [], [])
            yield work
            begun.append("second")

        chained = ChainedWork(first.executor, reasons.append, steps(), [])
        reduce(second)
        with pytest.raises(RuntimeError, match="the device is lost"):
            chained.wait()
    assert begun == ["first"]
    assert len(reasons) == 1
