"""``headrace show A B`` and ``report A B``: the changes from one artifact to another."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace.artifact as artifact_io
from headrace.cli.app import app
from headrace.errors import ArtifactError
from headrace.report.changes import changes_between, relative_change
from tests.old_files_test import WRITTEN

FILES = sorted(WRITTEN.glob("*.headrace"))


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("24 us, predicted", "30 us, predicted", "+25.0%"),
        ("1 KiB", "2.00 KB, of all", "+95.3%"),
        ("1,000", "500", "-50.0%"),
        ("2 ms", "0.5 s", "+24900.0%"),
        ("40%", "35.5%", "-4.5 points"),
        ("100 B", "100 us", ""),
        ("0 B", "5 B", ""),
        ("db008bebe3da, measured", "ab0", ""),
        ("a model", "another", ""),
        ("2.15.0+cu132", "2.16", ""),
    ],
)
def test_figures_are_compared_in_one_unit(before: str, after: str, change: str) -> None:
    assert relative_change(before, after) == change


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_artifact_of_any_kind_differs_in_nothing_from_itself(file: Path) -> None:
    assert changes_between(file, file) == []


def test_figures_and_rows_that_changed_are_shown(tmp_path: Path) -> None:
    before = WRITTEN / "memory-plan.headrace"
    artifact = artifact_io.load(before)
    after = tmp_path / "after.headrace"
    head = {**artifact.head, "budget_bytes": 150}
    replace(artifact, head=head, provenance={"made": "by hand"}).save(after)
    changes = [change.cells() for change in changes_between(before, after)]
    assert changes == [
        ("budget", "100 B", "150 B", "+50.0%"),
        ("provenance: made", "by a test", "by hand", ""),
    ]
    shown = CliRunner().invoke(app, ["show", str(before), str(after)], env={"COLUMNS": "120"})
    assert shown.exit_code == 0, shown.output
    assert "by a test" in shown.output
    assert "by hand" in shown.output
    page = tmp_path / "page.html"
    drawn = CliRunner().invoke(app, ["report", str(before), str(after), "-o", str(page)])
    assert drawn.exit_code == 0, drawn.output
    assert "Changes of a memory-plan" in page.read_text()


def test_equal_artifacts_are_said_to_be_equal() -> None:
    file = str(WRITTEN / "plan.headrace")
    shown = CliRunner().invoke(app, ["show", file, file])
    assert "Nothing that is shown of them differs." in shown.output


def test_artifacts_of_two_kinds_are_refused() -> None:
    with pytest.raises(ArtifactError, match="field 'kind' is 'index-plan', needs 'memory-plan'"):
        changes_between(WRITTEN / "memory-plan.headrace", WRITTEN / "index-plan.headrace")
