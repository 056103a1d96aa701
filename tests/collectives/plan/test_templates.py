"""Every template delivers its demand, for every rank count, root, chunk count and variant."""

import pytest
from tests.collectives.plan.template_cases import SERVES, makers, serves
from tests.collectives.plan.symbolic import check

from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.plan.lower import lower
from headrace.errors import ProgramError


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", SERVES)
def test_delivers(name: str, ranks: int) -> None:
    for collective in Collective:
        for root in {0, ranks - 1, ranks // 2} if collective in ROOTED else {0}:
            for chunks in (1, 3, 2 * ranks):
                demand = Demand(collective=collective, ranks=ranks, chunks=chunks, root=root)
                for make in makers(name, ranks):
                    if not serves(name, demand):
                        with pytest.raises(ProgramError, match=name):
                            make(demand)
                        continue
                    check(lower(make(demand)), seeds=1)
