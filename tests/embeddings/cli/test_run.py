"""``headrace embeddings run``: output, exit codes and the end of a job."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from headrace.artifact import load
from headrace.cli.app import app
from headrace.embeddings import EmbeddingPlan, EmbeddingRecord
from headrace.embeddings.errors import JobError
from headrace.embeddings.run.job import supervisor
from headrace.embeddings.run.job.job_times import OnSample
from tests.embeddings.run.job.test_record import job as sampled_job
from tests.embeddings.run.job_peer import SCRIPT
from tests.embeddings.run.job_plans import job_plan
from tests.launch.test_roles import assert_ends
from tests.waiting import JOB_S

SAMPLED = pytest.mark.sampled(2)

COMMAND = """
import sys
from headrace.embeddings.run.job import job_processes
job_processes._PROCESS = (sys.executable, "-m", "tests.embeddings.run.job_peer")
from headrace.cli.main import main
main()
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "job.plan"
    job_plan().save(path)
    return path


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def start(*arguments: object) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", COMMAND, "embeddings", "run", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(Path.cwd()), "COLUMNS": "200"}
    return subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@SAMPLED
def test_output_has_the_trainers_number_and_the_exit_code_is_that_of_the_failed_one(
    plan: Path, script: Path
) -> None:
    with start(plan, "--servers", 2, "--", script, "fail") as job:
        output, errors = job.communicate(timeout=JOB_S)
    assert job.returncode == 3
    assert sorted(output.splitlines()) == [
        "[trainer 0] first line of output",
        "[trainer 1] first line of output",
        "[trainer 1] last line of errors",
    ]
    assert errors == (
        "error: trainer 1 ended with exit code 3; its last lines:\n"
        "first line of output\nlast line of errors\n"
    )


@SAMPLED
def test_a_failed_job_is_json_with_the_exit_code(plan: Path, script: Path) -> None:
    """With --json its error was text, unlike that of every other verb."""
    with start(plan, "--servers", 2, "--json", "--", script, "fail") as job:
        output, errors = job.communicate(timeout=JOB_S)
    assert (job.returncode, output) == (3, "")
    error = json.loads(errors.splitlines()[-1])["error"]
    assert (error["type"], error["exit_code"]) == ("JobError", 3)
    assert error["message"].startswith("trainer 1 ended with exit code 3; its last lines:")


@SAMPLED
def test_a_job_that_ends_well(plan: Path, script: Path) -> None:
    with start(plan, "--trainers", 1, "--", script, "describe") as job:
        output, errors = job.communicate(timeout=JOB_S)
    assert job.returncode == 0
    assert errors.startswith("warning: the script trained on no batch: it has to call")
    assert output.startswith('[trainer 0] {"peers"')
    assert '"WORLD_SIZE": "1"' in output


@SAMPLED
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_processes(
    plan: Path, script: Path, number: signal.Signals, code: int
) -> None:
    with start(plan, "--", script, "wait") as job:
        assert job.stdout is not None
        pids = [pid for _ in range(2) for pid in job.stdout.readline().split("pids ")[1].split()]
        job.send_signal(number)
        assert job.wait(JOB_S) == code
    for pid in pids:
        assert_ends(int(pid))


def test_wrong_input_is_named_before_anything_starts(plan: Path, script: Path) -> None:
    absent = script.with_name("absent.py")
    with start(plan, "--", absent) as job:
        _, errors = job.communicate(timeout=JOB_S)
    assert job.returncode == 2
    assert errors.startswith(f"error: {absent}: no such file: a job needs a Python script")
    with start(script, "--", script) as job:
        _, errors = job.communicate(timeout=JOB_S)
    assert job.returncode == 2
    assert errors.startswith(f"error: {script}")
    with start(plan, "--commit-every", 5, "--", script) as job:  # ran, and committed nothing
        _, errors = job.communicate(timeout=JOB_S)
    assert job.returncode == 2
    assert errors.startswith("error: --commit-every needs --state: ")


def test_a_plan_of_a_newer_version_is_refused(plan: Path, script: Path) -> None:
    artifact = load(plan)
    plan.write_bytes(replace(artifact, schema=artifact.schema + 1).to_bytes())
    with start(plan, "--", script) as job:
        _, errors = job.communicate(timeout=JOB_S)
    assert job.returncode == 2
    assert errors.startswith(f"error: {plan}: field 'schema' is {EmbeddingPlan.SCHEMA + 1}, needs ")
    assert "a newer headrace wrote the file: read it with that version" in errors


def test_a_job_that_fails_has_a_record(
    plan: Path, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had none, though that is when one asks what its steps waited for."""
    times = sampled_job()

    def run(*_: object, on_sample: OnSample, **__: object) -> NoReturn:
        on_sample(times, times.samples[-1])
        raise JobError("trainer 1 ended with exit code 3", 3)

    monkeypatch.setattr(supervisor, "run_embedding_job", run)
    path = tmp_path / "job.record"
    arguments = ["embeddings", "run", str(plan), "--record", str(path), "--", str(script)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, JobError)
    recorded = EmbeddingRecord.load(path)
    assert recorded.samples == len(times.samples)
    assert recorded.provenance["script"] == [str(script)]
