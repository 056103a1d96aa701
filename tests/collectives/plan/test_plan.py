"""Plans: the certificate, and the way to disk and back."""

from dataclasses import replace
from pathlib import Path

import pytest

import headrace.artifact as artifact_io
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.verify import Proof
from headrace.errors import ArtifactError, HeadraceError, ProgramError
from headrace.topology.presets import racks

TOPOLOGY = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_collective(TOPOLOGY, "allreduce", 1 << 20)


def test_certificate(plan: Plan) -> None:
    assert plan.topology_digest == plan.bound.topology_digest == TOPOLOGY.digest
    assert plan.proof.program_digest == plan.program.digest
    assert plan.gap == pytest.approx(plan.predicted_us / plan.bound.total_us - 1)
    assert plan.maker in {candidate.maker for candidate in plan.candidates}


def test_gap_where_nothing_has_to_move() -> None:
    alone = plan_collective(racks((1,), host_bytes_per_s=1, uplink_bytes_per_s=1), "allreduce", 9)
    assert (alone.predicted_us, alone.bound.total_us, alone.gap) == (0, 0, 0)


def test_round_trip_byte_for_byte(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "one", {"made": "by hand"})
    again = Plan.load(tmp_path / "one")
    again.save(tmp_path / "two", {"made": "by hand"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert again.candidates == plan.candidates
    assert again.bound == plan.bound
    assert again.program.digest == plan.program.digest


def test_a_proof_of_another_program_is_refused(plan: Plan) -> None:
    with pytest.raises(ArtifactError, match=r"proof.program_digest"):
        replace(plan, proof=Proof(program_digest="0" * 64, verifier_version=1))


def test_an_altered_program_is_refused(plan: Plan) -> None:
    artifact = plan.to_artifact()
    steps = {name: column.copy() for name, column in artifact.tables["steps"].items()}
    steps["slot"][0] ^= 1
    altered = replace(artifact, tables={**artifact.tables, "steps": steps})
    with pytest.raises(ArtifactError, match=r"proof.program_digest"):
        Plan.from_artifact(altered)


def test_a_proof_by_another_verifier_is_made_anew(plan: Plan) -> None:
    artifact = plan.to_artifact()
    old = {**artifact.head["proof"], "verifier_version": 0}
    again = Plan.from_artifact(replace(artifact, head={**artifact.head, "proof": old}))
    assert again.proof == plan.proof


@pytest.mark.parametrize("field", ["program", "proof", "maker", "bound", "candidates"])
def test_a_missing_field_is_named(plan: Plan, field: str) -> None:
    artifact = plan.to_artifact()
    head = {name: value for name, value in artifact.head.items() if name != field}
    with pytest.raises(HeadraceError, match=field) as error:
        Plan.from_artifact(replace(artifact, head=head), "somewhere")
    assert isinstance(error.value, ArtifactError | ProgramError)


def test_another_kind_is_refused(tmp_path: Path) -> None:
    TOPOLOGY.save(tmp_path / "file")
    with pytest.raises(ArtifactError, match="field 'kind' is 'topology', needs 'plan'"):
        Plan.load(tmp_path / "file")
    assert artifact_io.load(tmp_path / "file").kind == "topology"
