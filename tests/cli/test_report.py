"""``headrace report``, and the sends that ``headrace show`` prints."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.artifacts import show_command
from headrace.cli.report import report_command
from headrace.collectives.demand import Collective
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.request import Method
from headrace.errors import ArtifactError
from headrace.topology.presets import dgx2
from tests.report.small import relay

app = typer.Typer()
app.command("report")(report_command)
app.command("show")(show_command)


def run(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "120"})
    if outcome.exception is not None:
        raise outcome.exception
    return outcome.output


def test_report_writes_a_page(tmp_path: Path) -> None:
    relay().save(tmp_path / "plan")
    page = tmp_path / "page.html"
    assert "MiB" in run("report", tmp_path / "plan", "-o", page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(ArtifactError, match="cannot be written"):
        run("report", tmp_path / "plan", "-o", tmp_path)


def test_a_file_whose_name_is_no_utf8_has_a_page(tmp_path: Path) -> None:
    """Linux takes any bytes as a name: the page's title raised UnicodeEncodeError."""
    plan = Path(os.fsdecode(os.fsencode(tmp_path) + b"/pl\xe4n"))
    relay().save(plan)
    page = tmp_path / "page.html"
    run("report", plan, "-o", page)
    assert "pl\\udce4n" in page.read_text()


def test_a_page_is_written_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk used to leave half a page in place of the one before."""
    relay().save(tmp_path / "plan")
    page = tmp_path / "page.html"
    page.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ArtifactError, match=r"page.html: cannot be written: the disk is full"):
        run("report", tmp_path / "plan", "-o", page)
    assert page.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [page, tmp_path / "plan"]


def test_show_prints_sends_and_utilisation(tmp_path: Path) -> None:
    relay().save(tmp_path / "plan")
    shown = run("show", tmp_path / "plan")
    assert "sends (full model, 63 us in all)" in shown
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "0.00 31.00 0 1 0 2 MB 0-1" in lines
    assert "47.00 63.00 1 2 2 1 MB 1" in lines
    assert "backplane 100.0%" in lines
    assert "1 > 2 34.9%" in lines
    assert "--all" not in shown


def test_long_plans_are_cut_unless_all_is_wanted(tmp_path: Path) -> None:
    plan = plan_collective(dgx2(2), Collective.ALL_TO_ALL, 1 << 24, method=Method(model=FULL))
    plan.save(tmp_path / "plan")
    short, full = run("show", tmp_path / "plan"), run("show", tmp_path / "plan", "--all")
    assert "more sends: --all shows them" in short
    assert "--all" not in full
    assert len(full.splitlines()) > 200 > len(short.splitlines())


def test_long_topologies_are_cut_unless_all_is_wanted(tmp_path: Path) -> None:
    dgx2(2).save(tmp_path / "t")
    short, full = run("show", tmp_path / "t"), run("show", tmp_path / "t", "--all")
    assert "more links: --all shows them" in short
    assert "--all" not in full


@pytest.mark.parametrize(
    ("text", "name"), [("<algo/>", "MSCCL XML"), ('{"gpus": []}', "MSCCL\\+\\+ JSON")]
)
def test_a_file_that_only_verify_reads_says_so(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "f").write_text(text)
    says = f"looks like {name} and is no headrace artifact; headrace verify checks it"
    for command in (("show",), ("report", "-o", tmp_path / "page.html")):
        with pytest.raises(ArtifactError, match=says):
            run(*command, tmp_path / "f")
