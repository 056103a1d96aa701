"""A script's process as a trainer: what its environment lacks is named before anything starts."""

import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import NoReturn, cast

import pytest

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run import join
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions
from headrace.embeddings.run.join import join_job
from headrace.embeddings.tables import EmbeddingTable, table_groups
from headrace.errors import CommunicationError

TABLES = (EmbeddingTable(name="items", rows=8, dim=2),)
DESCRIPTION = JobDescription(
    tables=TABLES, columns=((0,),), groups=table_groups(TABLES), slots=(8,), seed=0, data={}
)
JOB = {"HEADRACE_EMBEDDINGS_CACHER": "127.0.0.1:1", "HEADRACE_EMBEDDINGS_SECRET": "word"}


@pytest.mark.parametrize(
    ("environment", "error", "text"),
    [
        (
            {"RANK": "1", "WORLD_SIZE": "2"},
            EmbeddingError,
            "there are 2 trainers without a cacher: start the script by 'headrace embeddings run",
        ),
        (
            {**JOB, "HEADRACE_TLS": "on", "HEADRACE_EMBEDDINGS_CACHER": "10.1.2.3:1"},
            EmbeddingError,
            "HEADRACE_TLS is on, but the calls of embeddings are not encrypted",
        ),
        (
            {**JOB, "HEADRACE_TLS": "on", "HEADRACE_EMBEDDINGS_CACHER": "node_1:1"},
            EmbeddingError,
            "HEADRACE_TLS is on, but the calls of embeddings are not encrypted",
        ),
        (
            {**JOB, "HEADRACE_SOCKET_IFNAME": "absent0"},
            CommunicationError,
            "this host has no address of IPv4 for trainers on absent0",
        ),
        (JOB, CommunicationError, "cacher, attend: no connection to 127.0.0.1:1"),
        (  # it ended with a ValueError: a name is no numeric address
            {**JOB, "HEADRACE_EMBEDDINGS_CACHER": "localhost:1"},
            CommunicationError,
            "cacher, attend: no connection to localhost:1",
        ),
    ],
)
def test_a_job_that_cannot_be_joined(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    error: type[Exception],
    text: str,
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(error, match=text):
        join_job(DESCRIPTION)


def test_processes_start_where_the_script_did(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a script had changed the folder, as Hydra does, its reader "can't open file"."""
    began = Path.cwd()

    def processes(_: JobOptions, hosts: JobHosts, **_options: object) -> NoReturn:
        argv = [sys.executable, "-c", "import os; print(os.getcwd())"]
        with cast("Popen[str]", hosts.readers[0].start(argv, stdout=PIPE, text=True)) as reader:
            assert reader.stdout is not None
            raise CommunicationError(reader.stdout.read().strip())

    monkeypatch.setattr(join, "JobProcesses", processes)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommunicationError) as raised:
        join_job(DESCRIPTION)
    assert Path(str(raised.value)) == began
