"""What a newcomer meets first: names, messages and files that are not what a command expects."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.cli.app import app
from headrace.errors import ArtifactError
from headrace.report.curves import curves
from headrace.report.page import Page
from tests.waiting import JOB_S

ROOT = Path(__file__).parent.parent
PACKAGE = Path(headrace.__file__).parent


def test_subpackages_are_attributes_without_an_import_of_torch() -> None:
    """``headrace.compression`` after ``import headrace`` was an AttributeError."""
    code = (
        "import sys, headrace; assert 'torch' not in sys.modules; "
        "assert headrace.topology.Link; assert headrace.compression.CodecSpec; "
        "assert not hasattr(headrace, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=JOB_S)


def test_a_missing_native_module_names_its_remedy() -> None:
    run = subprocess.run(
        [sys.executable, str(PACKAGE / "_native.py")],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert run.returncode == 1
    assert "is not built for Python" in run.stderr
    assert "make native" in run.stderr


def test_errors_print_text_that_looks_like_an_emoji_or_mark_up_as_it_is() -> None:
    """A file named ``no:x:file`` was printed with a cross in its name."""
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "show", "no:x:[b]file"],
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert run.returncode == 2
    assert "no:x:[b]file: cannot be read" in run.stderr


def test_commands_print_to_the_console_without_emoji_codes() -> None:
    for path in PACKAGE.glob("**/cli/*.py"):
        if path.name != "console.py":
            assert not re.search(r"\bConsole\(", path.read_text()), path


def test_show_takes_a_benchmarks_result_and_names_a_trace(tmp_path: Path) -> None:
    """Both were taken for MSCCL++ plans."""
    result = next((ROOT / "benchmarks" / "synthesis" / "results").glob("kept-*.json"))
    outcome = CliRunner().invoke(app, ["show", str(result)], env={"COLUMNS": "120"})
    assert outcome.exit_code == 0
    assert json.loads(result.read_text())["bars"][0]["name"] in outcome.output
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": []}))
    for verb in ("show", "verify"):
        outcome = CliRunner().invoke(app, [verb, str(trace)])
        assert isinstance(outcome.exception, ArtifactError)
        assert "is a profiler's trace: open it in ui.perfetto.dev" in str(outcome.exception)


def test_pages_keep_numbers_whole_and_draw_no_empty_curve() -> None:
    page = Page("page")
    page.table(("rank",), [(11,)])
    html = page.html()
    assert "overflow-wrap: anywhere" not in html
    assert "td.number, th.number { text-align: right; white-space: nowrap; }" in html
    figure = curves({"drawn": [(1.0, 1.0), (2.0, 2.0)], "empty": []}, x="size", y="rate")
    assert [line["name"] for line in figure.to_dict()["data"]] == ["drawn"]


def readme_commands() -> list[list[str]]:
    block = (ROOT / "README.md").read_text().split("## Plans for a cluster that is not there")[1]
    lines = re.findall(r"^\$ headrace (.*)$", block.split("```")[1], re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.slow
def test_the_readmes_commands_run_without_a_warning(tmp_path: Path) -> None:
    """The export warned, and its advice, synthesize --runtime, led to the same warning."""
    verbs: list[str] = []
    for words in readme_commands():
        run = subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        assert "warning:" not in run.stdout + run.stderr, run.stdout
        verbs.append(words[0])
    assert verbs == ["topology", "collectives", "export", "verify", "report"]
