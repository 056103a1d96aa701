"""Orbit plans on disk, and what they refuse to be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.instruments.perturbed import perturbed
from headrace.artifact import Artifact
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.generators.orbits import simulate
from headrace.collectives.plan.generators.orbits.build import plan_orbits
from headrace.collectives.plan.generators.orbits.group import group_of
from headrace.collectives.plan.generators.orbits.plan import ORBIT_COLLECTIVES, OrbitPlan
from headrace.collectives.plan.generators.orbits.simulate import expand, simulate_orbits
from headrace.errors import InputError, SymmetryError, TopologyError
from headrace.topology import Topology, subgraph
from headrace.topology.presets import mesh, ndv2, ring, torus

PLAN = plan_orbits(torus((3, 4)), Collective.ALLGATHER, 12000, chunks=(2,)).plan


@pytest.mark.parametrize("collective", sorted(ORBIT_COLLECTIVES))
def test_to_disk_and_back_byte_for_byte(tmp_path: Path, collective: Collective) -> None:
    plan = plan_orbits(torus((3, 4)), collective, 12000, chunks=(2,)).plan
    first, second = tmp_path / "first", tmp_path / "second"
    plan.save(first, {"made": "here"})
    again = OrbitPlan.load(first)
    assert again.digest == plan.digest
    again.save(second, {"made": "here"})
    assert first.read_bytes() == second.read_bytes()


def test_equal_inputs_give_equal_plans() -> None:
    again = plan_orbits(torus((3, 4)), Collective.ALLGATHER, 12000, chunks=(2,)).plan
    assert again.digest == PLAN.digest


def sends(**columns: list[int]) -> dict[str, np.ndarray]:
    changed = {name: column.copy() for name, column in PLAN.sends.items()}
    for name, values in columns.items():
        changed[name] = np.array(values, dtype=changed[name].dtype)
    return changed


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"demand": Demand(collective=Collective.BROADCAST, ranks=12)}, "differs from the others"),
        ({"demand": Demand(collective=Collective.ALLREDUCE, ranks=12, chunks=7)}, "multiple of 12"),
        ({"generators": PLAN.generators[:, :5]}, "generators has shape"),
        ({"generators": np.zeros((1, 12), dtype=np.int32)}, r"generators\[0\] is no permutation"),
        ({"sends": {"dst": PLAN.sends["dst"]}}, "sends has columns"),
        ({"sends": sends(chunk=[])}, "differ in length"),
        ({"sends": sends(block=[12] * len(PLAN.sends["dst"]))}, r"sends.block\[0\] is 12"),
        ({"sends": sends(dst=[0] * len(PLAN.sends["dst"]))}, "sends to itself"),
        ({"sends": sends(message=[0] * len(PLAN.sends["dst"]))}, "needs one receiver"),
        ({"sends": sends(message=[1] * len(PLAN.sends["dst"]))}, "needs to start at 0"),
        (
            {"sends": {**PLAN.sends, "chunk": PLAN.sends["chunk"].astype(np.int64)}},
            "sends.chunk has type int64",
        ),
    ],
)
def test_malformed_plans_are_refused(changes: dict, problem: str) -> None:
    with pytest.raises(ProgramError, match=problem):
        replace(PLAN, **changes)


@pytest.mark.parametrize("field", ["collective", "ranks", "chunks", "generators"])
def test_files_without_a_field_are_refused(field: str) -> None:
    whole = PLAN.to_artifact()
    head = {name: value for name, value in whole.head.items() if name != field}
    for bad in (head, {**whole.head, field: -1}):
        with pytest.raises(ProgramError, match="x.plan"):
            OrbitPlan.from_artifact(
                Artifact(kind="orbit-plan", schema=1, head=bad, tables=whole.tables), "x.plan"
            )


def test_predictions_hold_for_symmetric_costs_only() -> None:
    with pytest.raises(SymmetryError, match=r"generators\[0\] is no automorphism"):
        simulate_orbits(PLAN, perturbed(torus((3, 4)), seed=1), 12000)
    with pytest.raises(SymmetryError, match="12 ranks"):
        simulate_orbits(PLAN, ring(5), 12000)
    turning = plan_orbits(torus((2, 3)), Collective.ALLGATHER, 6000).plan
    with pytest.raises(TopologyError, match="no link 0 -> 3"):
        simulate_orbits(turning, _without_side(torus((2, 3))), 6000)
    with pytest.raises(InputError, match="total_bytes is -1"):
        simulate_orbits(PLAN, torus((3, 4)), -1)


def _without_side(topology: Topology) -> Topology:
    """Two circles of three, and nothing between them."""
    kept = [k for k, link in enumerate(topology.links) if abs(link.src - link.dst) != 3]
    return subgraph(topology, kept)


def test_where_ranks_differ_there_is_no_group() -> None:
    for topology in (mesh((3, 3)), ndv2(2)):
        with pytest.raises(SymmetryError, match="has no group"):
            group_of(topology)
    with pytest.raises(ProgramError, match="no orbit plan"):
        plan_orbits(ring(4), Collective.BROADCAST, 100)
    with pytest.raises(ProgramError, match="one rank"):
        plan_orbits(ring(1), Collective.ALLGATHER, 100)


def test_large_plans_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "MAX_SENDS", 10)
    with pytest.raises(ProgramError, match="keep the plan as orbits"):
        expand(PLAN)
