"""Programs: what a short file may stand for."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.artifact import Artifact
from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.templates.ring import ring
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import races, verify
from headrace.collectives.program import (
    DEPENDENCY_COLUMNS,
    LANE_COLUMNS,
    STEP_COLUMNS,
    Program,
)
from headrace.errors import VerificationError

DEMANDS = (
    *(
        Demand(collective=collective, ranks=n, chunks=3, root=n - 1 if collective in ROOTED else 0)
        for collective in STANDARD
        for n in (1, 2, 5)
    ),
    Demand.all_to_all_v([[1, 2], [0, 3]], chunks=2),
    Demand.custom(ranks=2, slots=2, before=[(0, 0, 0, (0,))], after=[(1, 1, 0, (0,))], chunks=4),
)


@pytest.mark.parametrize("demand", DEMANDS, ids=str)
def test_conditions_are_counted_without_listing_them(demand: Demand) -> None:
    listed = sum(len(demand.initial(r)) + len(demand.final(r)) for r in range(demand.ranks))
    assert demand.conditions == listed


def empty() -> dict[str, dict[str, np.ndarray]]:
    tables = {"lanes": LANE_COLUMNS, "steps": STEP_COLUMNS, "dependencies": DEPENDENCY_COLUMNS}
    return {
        name: {column: np.empty(0, dtype) for column, dtype in columns.items()}
        for name, columns in tables.items()
    }


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"ranks": 1_000_000_000}, "field 'ranks' is 1000000000, needs 0 to 65536"),
        ({"chunks": 1_000_000_000}, "field 'chunks' is 1000000000, needs 0 to"),
        ({"ranks": 65536, "chunks": 256}, "has 33554432 values to hold or to deliver"),
        ({"collective": "all_to_all", "ranks": 65536}, "has 12884901888 values to hold"),
        (
            {"collective": "allgather", "ranks": 65536},
            "values to hold or to deliver, needs at most",
        ),
        ({"ranks": 1, "chunks": 1 << 20}, "values to hold or to deliver"),
        ({"scratch_slots": 1_000_000_000}, "scratch_slots is 1000000000, needs at most 64"),
        ({"scratch_slots": 10**18}, "scratch_slots is"),
    ],
)
def test_a_short_file_does_not_stand_for_a_large_program(
    head: dict[str, object], message: str
) -> None:
    """A plan of a few hundred bytes could say a billion chunks, and fill the memory."""
    whole = {"collective": "allreduce", "ranks": 2, "chunks": 1, "root": 0, "scratch_slots": 0}
    artifact = Artifact(kind="program", schema=2, head={**whole, **head}, tables=empty())
    with pytest.raises(ProgramError, match=message):
        Program.from_artifact(artifact)


def test_steps_move_a_bounded_number_of_slots() -> None:
    made = lower(ring(Demand(collective=Collective.BROADCAST, ranks=3)))
    wide = {**made.steps, "count": np.full_like(made.steps["count"], 1 << 20)}
    demand = Demand(collective=Collective.BROADCAST, ranks=3, chunks=1 << 20)
    with pytest.raises(ProgramError, match=r"steps.count is 4194304 slots in all, needs at most"):
        replace(made, demand=demand, steps=wide)


def test_a_plan_that_is_read_has_at_most_64_channels() -> None:
    made = lower(ring(Demand(collective=Collective.BROADCAST, ranks=3)))
    lanes = {**made.lanes, "channel": np.full_like(made.lanes["channel"], 64)}
    with pytest.raises(ProgramError, match=r"lanes.channel\[0\] is 64, needs 0 to 63"):
        Program.from_artifact(replace(made, lanes=lanes).to_artifact())


def test_scratch_that_no_step_touches_takes_no_room() -> None:
    """Verifying had a table of all slots of all ranks, however few were used."""
    made = lower(ring(Demand(collective=Collective.BROADCAST, ranks=3)))
    verify(replace(made, scratch_slots=64))


def test_following_dependencies_over_many_lanes_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Vector clocks take steps times lanes, which grows as the square of the file."""
    made = lower(ring(Demand(collective=Collective.ALLREDUCE, ranks=4, chunks=4)))
    few = {name: column[:0] for name, column in made.dependencies.items()}
    monkeypatch.setattr(races, "_MOST_CLOCK_ENTRIES", 1)
    with pytest.raises(VerificationError, match="too many to follow dependencies"):
        verify(replace(made, dependencies=few))
