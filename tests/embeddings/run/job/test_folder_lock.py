"""A job's folder belongs to one job of a host at a time."""

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.job.folder_lock import locked_folder

OWNER = """
import sys
from pathlib import Path
from headrace.embeddings.run.job.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_a_folder_that_another_job_has_is_refused_until_its_process_ends(tmp_path: Path) -> None:
    """A second start took the folder over, and the first job ended at its next commit."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        message = rf": another job commits to it, of process {owner.pid} on this host"
        with pytest.raises(EmbeddingError, match=message), locked_folder(tmp_path):
            pass
        owner.kill()
        owner.wait()
    with locked_folder(tmp_path):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads, from 3.12 on
def test_a_child_of_a_fork_has_no_lock(tmp_path: Path) -> None:
    """A job that had ended, and left a child, kept the next one out."""
    read, write = os.pipe()
    with locked_folder(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent closes its end
            os._exit(0)
        with pytest.raises(EmbeddingError, match="another job"), locked_folder(tmp_path):
            pass
    try:
        with locked_folder(tmp_path):
            pass
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_a_folder_of_a_host_that_may_be_cut_off_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locked_folder(tmp_path):
        monkeypatch.setattr(socket, "gethostname", lambda: "another-host")
        with locked_folder(tmp_path):
            pass
        assert json.loads((tmp_path / "lock").read_text())["host"] != "another-host"


def test_a_folder_without_a_lock_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    message = "cannot have the commits .*: Is a directory"
    with pytest.raises(EmbeddingError, match=message), locked_folder(tmp_path):
        pass


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As on a full device."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    message = f"{tmp_path}: cannot have the commits of a job: File too large"
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        with pytest.raises(EmbeddingError, match=message), locked_folder(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with locked_folder(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()
