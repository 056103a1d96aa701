"""Conditions as columns say what `Demand.initial` and `Demand.final` say."""

import numpy as np
import pytest

from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.plan.verify.conditions import SlotContents, Specification

CUSTOM = Demand.custom(
    ranks=3,
    slots=2,
    before=[(0, 0, 0, (0,)), (1, 0, 0, (1,)), (2, 1, 1, (0, 2))],
    after=[(1, 1, 0, (0, 1)), (0, 1, 1, (0, 2))],
    chunks=2,
)
UNEVEN = Demand.all_to_all_v([[1, 0, 2], [0, 0, 3], [1, 1, 0]], chunks=2)


def _demands() -> list[Demand]:
    return [
        CUSTOM,
        UNEVEN,
        *(
            Demand(collective=each, ranks=ranks, chunks=chunks, root=root)
            for each in STANDARD
            for ranks in (1, 2, 5)
            for chunks in (1, 3)
            for root in ((0, ranks - 1) if each in ROOTED else (0,))
        ),
    ]


@pytest.mark.parametrize("demand", _demands(), ids=lambda d: f"{d.collective}-{d.ranks}-{d.chunks}")
def test_columns_are_the_lists(demand: Demand) -> None:
    found = Specification.of(demand)
    assert len(set(found.masks)) == len(found.masks)

    def rows(values: SlotContents) -> list[tuple[int, int, int, int]]:
        columns = (values.rank, values.slot, values.item)
        masks = [found.masks[by] for by in values.by.tolist()]
        return list(zip(*(column.tolist() for column in columns), masks, strict=True))

    for values, wanted in ((found.before, demand.initial), (found.after, demand.final)):
        each = [(rank, *row) for rank in range(demand.ranks) for row in wanted(rank)]
        assert rows(values) == each
        assert all(c.dtype == np.int64 for c in (values.rank, values.slot, values.item, values.by))


def test_every_collective_is_among_them() -> None:
    assert {demand.collective for demand in _demands()} == set(Collective)
