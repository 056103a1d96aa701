"""``headrace export``, and ``headrace verify`` of files of other tools."""

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import artifacts
from headrace.collectives.cli.export import export_command
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.export.msccl_xml import read
from headrace.collectives.plan.book import build_book
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.program import Schedule, Transfer
from headrace.errors import InputError, VerificationError
from headrace.topology.presets import uniform

TOPOLOGY = uniform(4)

app = typer.Typer()
app.command("export")(export_command)
app.command("verify")(artifacts.verify_command)


def run(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    if outcome.exception is not None:
        raise outcome.exception
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    plan_collective(TOPOLOGY, Collective.ALLREDUCE, 1 << 20).save(tmp_path / "plan")
    return tmp_path / "plan"


@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json"])
def test_a_plan_is_written_and_verified(plan: Path, form: str) -> None:
    out = plan.with_suffix(".xml" if form == "msccl-xml" else ".json")
    said = run("export", plan, "--format", form, "-o", out, "--instances", 2, "--in-place")
    assert "allreduce of 4 GPUs, 2 instances, in place" in said
    assert "proven as written" in said
    assert "ok allreduce of 4 GPUs" in run("verify", out)


def test_options_reach_the_file(plan: Path) -> None:
    out = plan.with_name("a.xml")
    run("export", plan, "-o", out, "--protocol", "LL128", "--min-bytes", "4K", "--max-bytes", "1M")
    algorithm, _ = read(out.read_bytes())
    assert algorithm.protocol == "LL128"
    assert (algorithm.min_bytes, algorithm.max_bytes) == (4096, 1 << 20)
    assert (algorithm.in_place, algorithm.out_of_place) == (False, True)


def test_instances_follow_the_size_unless_given(tmp_path: Path) -> None:
    said = {}
    for size in (1 << 16, 1 << 24):
        plan_collective(TOPOLOGY, Collective.ALLGATHER, size).save(tmp_path / "p")
        said[size] = run("export", tmp_path / "p", "-o", tmp_path / "p.xml")
    assert "1 instances" in said[1 << 16]
    assert "8 instances" in said[1 << 24]


def test_a_runtime_that_does_not_know_the_collective_is_named(tmp_path: Path) -> None:
    plan_collective(TOPOLOGY, Collective.REDUCE_SCATTER, 1 << 16).save(tmp_path / "p")
    said = run("export", tmp_path / "p", "-o", tmp_path / "p.xml")
    assert "warning: msccl refuses coll reducescatter: give --runtime msccl for it" in said
    assert "refused by msccl" in run("verify", tmp_path / "p.xml")
    said = run("export", tmp_path / "p", "-o", tmp_path / "q.xml", "--runtime", "msccl")
    assert "refuses coll" not in said


def test_an_entry_of_a_book(tmp_path: Path) -> None:
    book = build_book(
        TOPOLOGY, sizes=[1 << 10, 1 << 24], collectives=[Collective.BROADCAST, Collective.ALLREDUCE]
    )
    book.save(tmp_path / "book")
    out = tmp_path / "b.xml"
    said = run(
        "export", tmp_path / "book", "--collective", "broadcast", "--size", "1K", "--root", 2,
        "-o", out,
    )  # fmt: skip
    assert "broadcast of 4 GPUs, root 2" in said
    assert run("verify", out).startswith("ok broadcast")
    with pytest.raises(InputError, match="needs --collective and --size"):
        run("export", tmp_path / "book", "-o", out)
    with pytest.raises(InputError, match="holds no plan for gather"):
        run("export", tmp_path / "book", "--collective", "gather", "--size", "1K", "-o", out)


def test_what_cannot_be_exported_says_why(plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.xml"
    with pytest.raises(InputError, match="choose in books"):
        run("export", plan, "--collective", "allreduce", "-o", out)
    with pytest.raises(InputError, match="--collective, --size and --root choose in books"):
        run("export", plan, "--root", 1, "-o", out)
    with pytest.raises(ProgramError, match="needs Simple"):
        run("export", plan, "--format", "mscclpp-json", "--protocol", "LL", "-o", out)
    with pytest.raises(ProgramError, match="instances is 3"):
        run("export", plan, "--instances", 3, "-o", out)
    plan_collective(TOPOLOGY, Collective.ALL_TO_ALL, 1 << 10).save(tmp_path / "a2a")
    with pytest.raises(ProgramError, match="out of place only"):
        run("export", tmp_path / "a2a", "--in-place", "-o", out)
    TOPOLOGY.save(tmp_path / "t", {})
    with pytest.raises(InputError, match="field 'kind' is 'topology'"):
        run("export", tmp_path / "t", "-o", out)
    assert not out.exists()


def test_a_spoiled_file_is_refuted(plan: Path) -> None:
    out = plan.with_name("a.xml")
    run("export", plan, "-o", out, "--instances", 1)
    text = out.read_text()
    out.write_text(text.replace('type="rrc"', 'type="r"', 1))
    outcome = CliRunner().invoke(app, ["verify", str(out)], env={"COLUMNS": "200"})
    assert isinstance(outcome.exception, VerificationError)
    assert "error (value): gpu " in outcome.output
    out.write_text("<html/>")
    with pytest.raises(InputError, match="needs algo"):
        run("verify", out)


@pytest.mark.parametrize("name", ["a", "a.txt", "a.json", "a.xml", "a.book"])
@pytest.mark.parametrize("form", ["msccl-xml", "mscclpp-json"])
def test_files_are_known_by_their_content(plan: Path, form: str, name: str) -> None:
    out = plan.with_name(name)
    run("export", plan, "--format", form, "-o", out, "--instances", 1)
    assert run("verify", out).startswith("ok allreduce")
    out.write_bytes(b"\n \n" + out.read_bytes())
    assert run("verify", out).startswith("ok allreduce")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "file.xml: is empty; needs a headrace artifact, MSCCL XML (begins with '<') or"),
        (b" \n\t", "file.xml: is empty"),
        (
            b"PK\x03\x04\xff",
            "file.xml: begins with 'PK\\x03\\x04\\\\xff'; needs a headrace artifact",
        ),
        (b"[1, 2]", "file.xml: begins with '[1, 2]'"),
        (
            b' {"a": 1}',
            "is no headrace artifact, but JSON with the fields 'a'; needs an artifact, or",
        ),
        (
            b"<algo",
            "not well-formed XML (unclosed token) (read as MSCCL XML, as it begins with '<'",
        ),
    ],
)
def test_what_is_neither_is_shown(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "file.xml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(says)):
        run("verify", file)


def test_an_artifact_may_have_any_name(plan: Path) -> None:
    for name in ("plan.json", "plan.xml", "plan"):
        plan = plan.rename(plan.with_name(name))
        assert "1 of 1 programs proven" in run("verify", plan)


def test_a_json_plan_is_json(plan: Path) -> None:
    out = plan.with_name("a.json")
    run("export", plan, "--format", "mscclpp-json", "-o", out, "--instances", 1)
    assert {"name", "collective", "protocol", "inplace", "gpus"} <= set(json.loads(out.read_text()))


def test_a_runtime_is_kept_to_and_its_selection_is_printed(tmp_path: Path) -> None:
    """Files were written that runtimes refuse, or pass over for other element counts, silently."""
    chain = Schedule.of(
        Demand(collective=Collective.BROADCAST, ranks=2, chunks=100),
        [Transfer(0, 1, k, k) for k in range(100)],
    )
    lower(chain).to_artifact().save(tmp_path / "program")
    out = tmp_path / "x.xml"
    for runtime, steps in (("msccl", 100), ("msccl-executor-nccl", 64), ("strictest", 64)):
        said = run("export", tmp_path / "program", "-o", out, "--runtime", runtime)
        assert "taken for element counts that are multiples of 100" in said
        algorithm, _ = read(out.read_bytes())
        longest = max(len(tb.steps) for gpu in algorithm.gpus for tb in gpu.threadblocks)
        assert steps // 2 < longest <= steps
        named = "refused by msccl-executor-nccl (at most 64)" in run("verify", out)
        assert named == (runtime == "msccl")
    with pytest.raises(ProgramError, match="mscclpp reads mscclpp-json"):
        run("export", tmp_path / "program", "-o", out, "--runtime", "mscclpp")


def test_a_size_that_does_not_select_the_file_is_warned_of(tmp_path: Path) -> None:
    for size, warned in ((1 << 20, False), ((1 << 20) + 1, True)):
        plan_collective(TOPOLOGY, Collective.ALLREDUCE, size).save(tmp_path / "p")
        said = run("export", tmp_path / "p", "-o", tmp_path / "p.xml")
        assert ("warning: the plan is meant for" in said) == warned
