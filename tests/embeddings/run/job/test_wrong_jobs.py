"""Jobs that cannot go on: a clear error at once, and a folder that the job goes on from."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.embeddings.errors import JobError
from headrace.embeddings.run.job.job_processes import JobHosts, RoleHost
from headrace.embeddings.run.job.supervisor import run_embedding_job
from headrace.launch.roles import start_local
from tests.embeddings.run.clicks_job import BATCH, ROWS, TABLES
from tests.embeddings.run.job.test_job import (
    SCRIPT,
    assert_close,
    clicks,
    environment,
    expected,
    job_options,
)
from tests.embeddings.run.job_plans import job_plan
from tests.waiting import JOB_S

__all__ = ["clicks"]

HEADRACE = str(Path(sys.executable).with_name("headrace"))

_FILE_BYTES = 5000
"""Some commits of a table's rows."""


def start_with_small_files(
    argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start a process whose files cannot grow, as on a disk that is full."""
    process = start_local(argv, env=env, **options)
    assert isinstance(process, subprocess.Popen)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("purpose", "message"),
    [
        (
            "ends-0",
            r"trainer 1 ended without a call of headrace\.embeddings\.fit, which each of the job's "
            "2 trainers has to make",
        ),
        (
            "ends-1",
            # that trainer 1 had ended is in the first line, too, if its process is the faster one
            "^trainer 0 ended with exit code 1(?s:.*)the beginning of epoch 1 needs all trainers: "
            "rank 1 left the group",
        ),
    ],
)
def test_a_trainer_that_ends_before_the_others_is_named(
    clicks: Path, tmp_path: Path, purpose: str, message: str
) -> None:
    """With "ends-0" the others waited for half an hour for it to join."""
    with pytest.raises(JobError, match=message) as caught:
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(tmp_path / "learned"), purpose],
            job_options(),
            JobHosts.on_this_machine(trainers=2),
            on_line=lambda _name, _line: None,
            environment=environment(),
        )
    assert caught.value.exit_code == 1


@pytest.mark.slow
def test_a_job_goes_on_from_its_last_commit_when_a_full_disk_has_room_again(
    clicks: Path, tmp_path: Path
) -> None:
    output, folder = tmp_path / "learned", tmp_path / "state"
    begun: list[str] = []

    def run(servers: RoleHost) -> None:
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(output)],
            job_options(folder=folder, commit_every=2),
            JobHosts(servers=(servers,)),
            on_line=lambda name, line: begun.append(line) if name == "supervisor" else None,
            environment=environment(),
            restart=True,
        )

    with pytest.raises(JobError, match=r"(?s)server 0, commit: .*cannot write .*File too large"):
        run(RoleHost(start=start_with_small_files))
    assert not begun
    run(RoleHost())
    (line,) = begun
    assert line.startswith("The job begins from commit ")
    assert_close(output, expected(clicks, "files"))


@pytest.mark.slow
def test_a_job_that_is_interrupted_in_commits_goes_on_from_the_last(
    clicks: Path, tmp_path: Path
) -> None:
    """As Ctrl-C does it: all processes of the terminal's group get the signal."""
    plan, output, folder = tmp_path / "job.plan", tmp_path / "learned", tmp_path / "state"
    room = TABLES * ROWS * 64
    job_plan(batch=BATCH, lookahead=4, cache_bytes=room, commit_every=1).save(plan)
    command = [HEADRACE, "embeddings", "run", str(plan), "--state", str(folder), "--"]
    command += [str(SCRIPT), str(clicks), str(output)]
    with subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout is not None
        assert any("epoch 0: loss" in line for line in job.stdout)  # each batch is committed
        os.killpg(job.pid, signal.SIGINT)
        output_after, errors = job.communicate(timeout=JOB_S)
        assert job.returncode == 130, errors
        assert "Traceback" not in output_after + errors
    assert_none_runs(str(output))
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "[supervisor] The job begins from commit " in done.stdout
    assert_close(output, expected(clicks, "files"))


def assert_none_runs(argument: str) -> None:
    """Check that no process with an argument is left."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert argument.encode() not in process.read_bytes()


@pytest.mark.slow
def test_a_rendezvous_at_a_port_that_is_in_use_is_an_error_at_once(
    clicks: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = f"(?s)^trainer 0 ended with .*: port {port} of this host"
        with pytest.raises(JobError, match=error):
            run_embedding_job(
                [sys.executable, str(SCRIPT), str(clicks), str(tmp_path / "learned")],
                job_options(),
                replace(JobHosts.on_this_machine(trainers=2), rendezvous=port),
                on_line=lambda _name, _line: None,
                environment=environment(),
            )
