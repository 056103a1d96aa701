"""Commands of docs/compression.md and docs/export.md run, in their order, without a warning."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app

DOCS = Path(__file__).parent.parent / "docs"

PREPARED = {
    "compression": [],
    "export": [
        "topology preset ndv2_taccl_1mb --nodes 1 -o cluster.topology",
        "collectives synthesize cluster.topology --collective allreduce --size 1050624 -o plan",
        "collectives plan cluster.topology --collective allgather -o book",
    ],
}
"""Commands whose files the documents take as there."""

NOT_RUN = {
    "compression measure": "takes a model of the user's and minutes",
    "compression plan job.profile": "takes the profile that `compression measure` would write",
}
"""Starts of commands that do not run here, and why."""


def commands(document: str) -> list[str]:
    """Return the commands of a document's blocks, without ``headrace`` and comments."""
    blocks = re.findall(
        r"^```(.*?)\n(.*?)^```$", (DOCS / f"{document}.md").read_text(), re.M | re.S
    )
    shell = [text for kind, text in blocks if kind in ("", "console")]
    lines = "".join(shell).replace("\\\n", " ").splitlines()
    text = " && ".join(line.removeprefix("$ ").split(" #")[0] for line in lines)
    parts = [part.strip() for part in text.split(" && ")]
    return [part.removeprefix("headrace ") for part in parts if part.startswith("headrace ")]


@pytest.mark.parametrize("document", PREPARED)
def test_commands_of_the_documents_run_without_a_warning(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands of these pages ran in no test, so that one that fails or warns went unnoticed."""
    monkeypatch.chdir(tmp_path)
    runnable = [line for line in commands(document) if not line.startswith(tuple(NOT_RUN))]
    assert len(runnable) >= 3
    for line in [*PREPARED[document], *runnable]:
        outcome = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": "200"})
        assert outcome.exception is None, f"{line}: {outcome.exception!r}"
        assert outcome.exit_code == 0, f"{line}: {outcome.output}"
        assert "warning:" not in outcome.output, f"{line}: {outcome.output}"


def test_commands_that_do_not_run_are_still_in_the_documents() -> None:
    lines = [line for document in PREPARED for line in commands(document)]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines), start
