"""Files of earlier versions (golden/written): one of every kind is shown, verified and used.

They are never written anew: what a later version may not do is change what they mean.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace.artifact as artifact_io
from headrace.cli.app import app
from headrace.collectives.measure.pcie.probes import HardwareProbes
from headrace.collectives.plan.book import PlanBook
from headrace.kinds import artifact_kinds
from tests.waiting import JOB_S

WRITTEN = Path(__file__).parent / "golden" / "written"
ROOT = Path(__file__).parent.parent
DIGESTS = {
    "attention-plan": "5402b405c5d35f51fd8fa162af6b46f3370593057999fa3d3943944d893f816f",
    "attention-profile": "ab901e6090680d3de33755dca2b41c3bdc4a6f37f33fa2a1de54be92ff668914",
    "compression-plan": "de678f51ad222160738a409e60f03fb85b18c5142f98cb0e9fea4a3512bb3006",
    "compression-profile": "286e84317906cf6a179379df7a62f52cf70f367d2f0b262f5a5202ba9d8b63b9",
    "embedding-plan": "fa48672f28b1973e251f2b311a063ebd178f08a84b283c04b869d539cf7094a9",
    "embedding-profile": "3f40aeb1d4c3e60e91a06b4a8b0c69d8ee321b60c157738566049a1849458fc0",
    "embedding-record": "e8fa4c0dc8ee6f3507426e1c529edb6199de89f2ea599937acc6dcf9f9c615d1",
    "hardware-probes": "b00a46100bc28c5dbf3d68467771e2d3c2635d43d80da0a0cc8401fa185d1e5a",
    "index-plan": "73dc90a77fee61bcac70554b52266cd28f0cb05ebc0631663fb1e39e92e11fe2",
    "index-profile": "e380246fc027a321c1c54008f3adcba70cf6e8eb2108e3d7731179048f0d952e",
    "memory-plan": "f0897114c8b7c2d9e0d72a07536a5730521ea2cd2dcadeeb7088164ce212553d",
    "memory-profile": "db008bebe3da6ed29ca473c202750ed24ae9dc0f48e7feaa1a79f42580cbdc17",
    "orbit-plan": "83d4ab93b05036979c4ce9e25149d6b4e4886f3c2b6f2da960e73742aa02e2ba",
    "plan": "921f7cf10a88e22018fdee1e0a19462ff8b3e46e9f1253f9550cf295e064865f",
    "plan-book": "d936e9d09f8186897e588de858b052b6f33f794baac3defc30cdee98dabb001f",
    "profile": "8b7612d6478a25942ba4a77d4aae90a6c2061b6dfcb6c92ac5185d426de90ddb",
    "program": "2ad84fdbe37ca9c2f2ad3f875debd17cf355d7c1cf227c11a473ae9fd1ccdee2",
    "topology": "69f16f7e1d37a9c97cfad6156c2ed0664e051009fd2f94f970e24ba296035828",
}
"""Of each kind: the digest of its content, which later writing of the same content keeps."""

REWRITTEN = {
    "compression-plan": "98979a6f959a94682c64c6318832840811e6e05613aa11297594e04a6041ad4a",
}
"""Of kinds that got a field since: the digest of what is written of the same file now."""

NEW_PROVENANCE = ("orbit-plan", "plan", "topology")
"""Kinds whose values hold no provenance: the caller that writes a file passes it."""

PROVEN = {"orbit-plan": "proven by symmetry", "plan": "1 of 1", "plan-book": "9 of 9"}
"""Of the kinds with programs besides single ones: what verification says."""


def file(kind: str) -> Path:
    return WRITTEN / f"{kind}.headrace"


def done(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kind", DIGESTS)
def test_every_kind_loads_and_shows(kind: str) -> None:
    artifact = artifact_io.load(file(kind))
    assert artifact.kind == kind
    assert artifact.digest == DIGESTS[kind]
    shown = done("show", file(kind))
    assert kind in shown
    assert DIGESTS[kind] in shown


@pytest.mark.parametrize("kind", DIGESTS)
def test_every_kind_is_written_as_it_was(kind: str) -> None:
    value = artifact_kinds()[kind].load(artifact_io.load(file(kind)), kind)
    assert value.to_artifact().digest == REWRITTEN.get(kind, DIGESTS[kind])
    if kind not in (*REWRITTEN, *NEW_PROVENANCE):
        assert value.to_artifact().to_bytes() == file(kind).read_bytes()


@pytest.mark.parametrize("kind", [*PROVEN, "program"])
def test_plans_are_proven_anew(kind: str) -> None:
    assert PROVEN.get(kind, "1 of 1") in done("verify", file(kind))


@pytest.mark.parametrize(
    "kind",
    ["compression-plan", "compression-profile", "plan", "plan-book", "profile", "topology"],
)
def test_pages_are_drawn(kind: str, tmp_path: Path) -> None:
    done("report", file(kind), "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 0


def test_a_compression_plan_is_computed_again() -> None:
    assert "4 steps computed again" in done("verify", file("compression-plan"))


def test_a_plan_keeps_its_generators_name() -> None:
    assert "matching" in done("show", file("plan"))


def test_probes_are_read() -> None:
    assert len(HardwareProbes.load(file("hardware-probes")).value)


@pytest.mark.sampled(4, of="long plans")
def test_a_book_is_adapted(tmp_path: Path) -> None:
    new = tmp_path / "new"
    done("collectives", "adapt", file("plan-book"), "--profile", file("profile"), "-o", new)
    before, after = PlanBook.load(file("plan-book")), PlanBook.load(new)
    assert [entry.to_bytes for entry in before.entries] == [
        entry.to_bytes for entry in after.entries
    ]
    kept = {entry.plan.program.digest for entry in before.entries}
    assert kept & {entry.plan.program.digest for entry in after.entries}  # the network is the same


@pytest.mark.slow
def test_a_book_serves_a_job() -> None:
    command = [sys.executable, str(Path(__file__).with_name("old_book_job.py"))]
    testbed = [sys.executable, "-m", "headrace", "testbed", "run", "examples/testbed-2x2.toml"]
    result = subprocess.run(
        ["env", f"HEADRACE_PLAN_BOOK={file('plan-book')}", *testbed, "--", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("reduced") == 4
