"""The worked numbers of docs/cost-model.md are what the simulator says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR, FULL, CostModel
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Schedule, Transfer
from headrace.topology import Topology, without_local_alpha
from tests.report.small import MB, chain

TEXT = (Path(__file__).parent.parent / "docs" / "cost-model.md").read_text()
BACKPLANE = chain()
ALONE = replace(BACKPLANE, shared=())
DEMAND = Demand(collective=Collective.BROADCAST, ranks=3, chunks=2)


def predicted(topology: Topology, model: CostModel, joined: tuple[bool, bool]) -> float:
    transfers = [
        Transfer(src, src + 1, slot, slot, joined=bool(slot) and joined[src])
        for src in (0, 1)
        for slot in (0, 1)
    ]
    program = lower(Schedule.of(DEMAND, transfers))
    return simulate(program, topology, 2 * MB, model=model).total_us


@pytest.mark.parametrize(
    ("row", "model", "joined"),
    [
        ("`full`, one by one", FULL, (False, False)),
        ("`full`, one message a link", FULL, (True, True)),
        ("`full`, one message, then one by one", FULL, (True, False)),
        ("`executor`", EXECUTOR, (False, False)),
    ],
)
def test_the_table(row: str, model: CostModel, joined: tuple[bool, bool]) -> None:
    found = re.search(rf"^\| {re.escape(row)} \| ([\d.]+) us \| ([\d.]+) us \|$", TEXT, re.M)
    assert found, f"no row {row}"
    for said, topology in zip(found.groups(), (ALONE, BACKPLANE), strict=True):
        assert predicted(topology, model, joined) == pytest.approx(float(said), abs=0.005)


def test_the_table_model_and_the_bound() -> None:
    box = without_local_alpha(replace(ALONE, hosts=("box",), rank_host=(0, 0, 0)))
    assert predicted(box, FULL, (False, False)) == 30.0
    assert "10 + 10 + 10 = 30 us" in TEXT
    assert lower_bound(BACKPLANE, DEMAND, 2 * MB).total_us == pytest.approx(61.0)
    assert "The lower bound is 61 us" in TEXT


def test_the_executors_constants() -> None:
    assert f"{EXECUTOR.local_us_per_mb:.0f} us/MB" in TEXT
    assert f"{EXECUTOR.step_us:.0f} us of processor time" in TEXT
    assert f"first {EXECUTOR.exposed_steps}\nsteps" in TEXT
