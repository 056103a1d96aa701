"""``headrace show`` and ``headrace verify``."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.artifact import Artifact
from headrace.cli import artifacts
from headrace.collectives.demand import STANDARD, Collective
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.portfolio import plan_collective
from headrace.errors import ArtifactError, VerificationError
from headrace.job.load import MachineLoad
from headrace.topology.presets import racks
from tests.waiting import HANG_S

TOPOLOGY = racks((2, 1), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)

app = typer.Typer()
app.command("show")(artifacts.show_command)
app.command("verify")(artifacts.verify_command)


def run(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    if outcome.exception is not None:
        raise outcome.exception
    assert outcome.exit_code == 0
    return outcome.output


@pytest.mark.parametrize("command", [("show",), ("verify",), ("memory", "plan", "--budget", "1G")])
def test_a_pipe_is_named_where_a_file_is_read_twice(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """`headrace show <(cat t)` called the rest damaged, and of a named pipe it waited for ever."""
    TOPOLOGY.save(tmp_path / "t")
    output = ("-o", str(tmp_path / "out")) if command[0] == "memory" else ()
    with subprocess.Popen(["cat", tmp_path / "t"], stdout=subprocess.PIPE) as source:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *command, "/dev/stdin", *output],
            stdin=source.stdout,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "error: /dev/stdin: is a pipe, needs a file: keep what comes from the pipe in one\n"
    )


@pytest.mark.parametrize(("step", "says"), [(1, "a newer headrace"), (-1, "an earlier headrace")])
def test_a_plan_of_another_version_is_not_proven_by_what_this_one_knows(
    tmp_path: Path, step: int, says: str
) -> None:
    """`headrace verify` said ok, though the fields may mean something else there."""
    plan = plan_collective(TOPOLOGY, Collective.ALLGATHER, 1 << 20)
    artifact = plan.to_artifact()
    replace(artifact, schema=artifact.schema + step).save(tmp_path / "plan")
    for command in ("show", "verify"):
        with pytest.raises(ArtifactError, match=f"plan: field 'schema' is .*; {says}"):
            run(command, tmp_path / "plan")


def test_topology(tmp_path: Path) -> None:
    TOPOLOGY.save(tmp_path / "t", {"source": "a preset"})
    shown = run("show", tmp_path / "t")
    for text in ("topology (schema 1)", "a preset", "rack1-host0", "uplink-out-0", "100 Mbit/s"):
        assert text in shown
    with pytest.raises(ArtifactError, match="field 'kind' is 'topology'"):
        run("verify", tmp_path / "t")


def test_provenance_is_shown_in_words(tmp_path: Path) -> None:
    """The load of the machine was printed as the dictionary that it is stored as."""
    load = MachineLoad(seconds=2.0, processors=2, load_average=0.5, waited_share=0.3)
    TOPOLOGY.save(tmp_path / "t", {**load.to_provenance(), "seeds": [3, 4], "limits": {"s": 9}})
    shown = run("show", tmp_path / "t")
    assert "busy: waited 30% of the time for a processor, load average 0.5 on 2" in shown
    assert "3, 4" in shown
    assert "limits: s" in shown
    assert "{" not in shown


def test_plan(tmp_path: Path) -> None:
    plan = plan_collective(TOPOLOGY, Collective.BROADCAST, 1 << 20, root=2)
    plan.save(tmp_path / "p")
    shown = run("show", tmp_path / "p")
    for text in (
        "broadcast of 3 ranks, root 2",
        plan.generator,
        "bound",
        "gap",
        "candidates",
        "1 MiB",
    ):
        assert text in shown
    assert "1 of 1 programs proven" in run("verify", tmp_path / "p")


def test_a_plan_shows_its_rounds_and_bytes(tmp_path: Path) -> None:
    everyone = tuple(row for row in TEMPLATES if row.name == "hierarchical")
    topology = racks((2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    plan_collective(topology, Collective.ALLREDUCE, 1 << 20, generators=everyone).save(
        tmp_path / "p"
    )
    shown = run("show", tmp_path / "p")
    for row in (r"rounds +4, \d+ messages", "on the wire +6 MiB", r"across groups +2 MiB \(33%\)"):
        assert re.search(row, shown)


def test_book(tmp_path: Path) -> None:
    book = build_book(TOPOLOGY, sizes=[1 << 10, 1 << 20])
    book.save(tmp_path / "b")
    shown = run("show", tmp_path / "b")
    assert all(collective in shown for collective in STANDARD)
    assert "[0, 1] [2]" in shown
    count = len(book.programs)
    assert f"{count} of {count} programs proven" in run("verify", tmp_path / "b")


def test_a_wrong_program_is_rejected(tmp_path: Path) -> None:
    program = plan_collective(TOPOLOGY, Collective.ALLREDUCE, 1 << 20).program.to_artifact()
    steps = {name: column.copy() for name, column in program.tables["steps"].items()}
    steps["op"][steps["op"] == 2] = 1  # receive instead of receive and reduce
    replace(program, tables={**program.tables, "steps": steps}).save(tmp_path / "w")
    with pytest.raises(VerificationError, match=r"w: rank \d.* needs"):
        run("verify", tmp_path / "w")


def test_any_other_kind_shows_its_head(tmp_path: Path) -> None:
    Artifact(kind="thing", schema=3, head={"colour": "blue"}).save(tmp_path / "x")
    shown = run("show", tmp_path / "x")
    assert "thing (schema 3)" in shown
    assert "blue" in shown
