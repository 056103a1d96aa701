"""Jobs of real processes whose data change: what is learned does not, and changes are told."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.embeddings.changes import JobChange
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions
from headrace.embeddings.run.job.supervisor import run_embedding_job
from tests.embeddings.run.job.test_job import (
    SCRIPT,
    assert_close,
    environment,
    expected,
    job_options,
)

ROOM = 600
"""Rows: all that the first half of the data uses, and fewer than a few batches of the second."""


def learned(
    clicks: Path, output: Path, options: JobOptions
) -> tuple[dict[str, Tensor], Sequence[JobChange]]:
    """Return what one trainer learns, and what changed meanwhile."""
    changes: dict[str, Sequence[JobChange]] = {}
    run_embedding_job(
        [sys.executable, str(SCRIPT), str(clicks), str(output)],
        options,
        JobHosts.on_this_machine(servers=2),
        on_line=lambda name, line: None,
        environment=environment(),
        on_sample=lambda times, _sample: changes.update(job=times.changes),
    )
    return torch.load(output), changes["job"]


@pytest.mark.slow
def test_a_job_learns_the_same_bit_for_bit_where_its_lookahead_follows_the_skew(
    tmp_path: Path,
) -> None:
    clicks, log = tmp_path / "clicks.tsv", tmp_path / "log"
    arguments = ["embeddings", "generate", "-o", clicks, "--examples", 2000, "--most-rows", 200]
    arguments += ["--skew", "zipf:4", "--later-skew", "uniform"]
    assert CliRunner().invoke(app, [str(argument) for argument in arguments]).exit_code == 0
    room, adapted = ROOM * 64, tmp_path / "adapted"
    weights, recorded = learned(
        clicks, adapted, job_options(lookahead=None, cache_bytes=room, adapt_log=log)
    )
    planned, unchanged = learned(
        clicks,
        tmp_path / "planned",
        job_options(lookahead=2, cache_bytes=room, adapt=False),
    )
    assert weights.keys() == planned.keys()
    for name, values in planned.items():
        assert torch.equal(weights[name], values), name
    assert_close(adapted, expected(clicks, "files"))
    changes = [json.loads(line) for line in log.read_text().splitlines()]
    lookaheads = [change for change in changes if change["event"] == "lookahead"]
    assert min(change["after"] for change in lookaheads) <= 3
    assert any("no room" in change["sentence"] for change in lookaheads)
    assert [str(change) for change in recorded] == [change["sentence"] for change in changes]
    assert not unchanged
