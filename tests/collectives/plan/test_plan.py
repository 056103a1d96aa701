"""Plans: the certificate, and the way to disk and back."""

from dataclasses import replace
from pathlib import Path

import pytest

import headrace.artifact as artifact_io
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.plan import Plan
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.verify import Proof
from headrace.collectives.program import Program
from headrace.errors import ArtifactError, HeadraceError, VerificationError
from headrace.topology.presets import racks

TOPOLOGY = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_collective(TOPOLOGY, "allreduce", 1 << 20)


def test_certificate(plan: Plan) -> None:
    assert plan.topology_digest == plan.bound.topology_digest == TOPOLOGY.digest
    assert plan.proof.program_digest == plan.program.digest
    assert plan.gap == pytest.approx(plan.predicted_us / plan.bound.total_us - 1)
    assert plan.generator in {candidate.generator for candidate in plan.candidates}


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


def test_a_program_altered_with_its_digest_is_refused(plan: Plan) -> None:
    artifact = plan.to_artifact()
    steps = {name: column.copy() for name, column in artifact.tables["steps"].items()}
    steps["op"][steps["op"] == 2] = 1  # receive instead of receive and reduce
    tables = {**artifact.tables, "steps": steps}
    part = replace(plan.program.to_artifact(), tables=tables)
    proof = {**artifact.head["proof"], "program_digest": Program.from_artifact(part).digest}
    forged = replace(artifact, head={**artifact.head, "proof": proof}, tables=tables)
    with pytest.raises(VerificationError, match="somewhere"):
        Plan.from_artifact(forged, "somewhere")


@pytest.mark.parametrize("found", [None, "x", 0.9, True, [], {}])
@pytest.mark.parametrize("field", ["collective", "ranks", "chunks", "root", "scratch_slots"])
def test_a_bad_field_of_a_program_is_named(plan: Plan, field: str, found: object) -> None:
    part = plan.program.to_artifact()
    with pytest.raises(ProgramError, match=f"field '{field}'.*"):
        Program.from_artifact(replace(part, head={**part.head, field: found}))


@pytest.mark.parametrize("table", ["lanes", "steps", "dependencies"])
def test_a_missing_column_or_table_of_a_program_is_named(plan: Plan, table: str) -> None:
    part = plan.program.to_artifact()
    columns = dict(part.tables[table])
    columns.popitem()
    with pytest.raises(ProgramError, match=f"{table} has columns"):
        Program.from_artifact(replace(part, tables={**part.tables, table: columns}))
    tables = {name: kept for name, kept in part.tables.items() if name != table}
    with pytest.raises(ProgramError, match=f"table '{table}' is missing"):
        Program.from_artifact(replace(part, tables=tables))


@pytest.mark.parametrize("found", [None, "x", [], [[1]]])
@pytest.mark.parametrize(
    "field", ["maker", "total_bytes", "predicted_us", "bound", "candidates", "proof", "program"]
)
def test_a_bad_field_is_refused(plan: Plan, field: str, found: object) -> None:
    if (field, found) in (("maker", "x"), ("candidates", [])):
        return
    artifact = plan.to_artifact()
    with pytest.raises(ArtifactError, match=f"somewhere.*{field}"):
        Plan.from_artifact(replace(artifact, head={**artifact.head, field: found}), "somewhere")
