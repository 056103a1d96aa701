"""Machines without memory, or room on their disks: clear errors, and jobs that go on."""

import resource
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from headrace.embeddings import EmbeddingTable
from headrace.embeddings.errors import JobError
from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.job.job_processes import JobHosts
from headrace.embeddings.run.job.supervisor import run_embedding_job
from headrace.errors import CommunicationError
from tests.embeddings.run.job.test_job import (
    SCRIPT,
    assert_close,
    clicks,
    environment,
    expected,
    job_options,
)
from tests.embeddings.run.job.test_starts import EarlierServer
from tests.waiting import HANG_S

__all__ = ["clicks"]

LEFT_BYTES = 32 << 20


def test_a_server_whose_system_has_no_more_memory_is_named_and_goes_on(tmp_path: Path) -> None:
    """With the limits of a host or a container, which it cannot ask for beforehand."""

    def rows(first: int, count: int) -> SlottedRows:
        return SlottedRows(
            ids=np.arange(first, first + count),
            ends=np.array([count]),
            slots=np.arange(count, dtype=np.uint32),
        )

    def fetch_all(firsts: Iterable[int]) -> None:
        for first in firsts:
            try:
                server.trainer.fetch(0, 0, -1, rows(first, 20_000))
            except CommunicationError as error:  # the stack of a thread is larger than these rows
                if "no thread for the call" not in str(error):
                    raise

    table = EmbeddingTable(name="items", rows=100_000_000, dim=64)
    with ExitStack() as ends:
        server = EarlierServer(tmp_path, ends, (table,))
        first = server.trainer.fetch(0, 0, -1, rows(0, 1000))
        status = Path(f"/proc/{server.process.pid}/statm").read_text().split()
        limit = int(status[0]) * resource.getpagesize() + LEFT_BYTES
        *_, most = resource.prlimit(server.process.pid, resource.RLIMIT_AS)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, most))
        with pytest.raises(
            CommunicationError,
            # The rows, or the array that their reply is gathered in: which is the first depends on
            # how much the process had free.
            match="^server 0, fetch: MemoryError: (embedding rows have .* no more|Unable to alloc)",
        ):
            fetch_all(20_000 * (number + 1) for number in range(100))
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (most, most))
        assert np.array_equal(server.trainer.fetch(0, 0, -1, rows(0, 1000)), first)
        assert server.process.poll() is None


@pytest.mark.slow
@pytest.mark.root
def test_a_job_goes_on_when_the_file_system_of_its_state_has_room_again(
    clicks: Path, tmp_path: Path
) -> None:
    """Servers, trainers and the cacher write to it: the first that cannot is named."""
    output, disk = tmp_path / "learned", tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        if subprocess.run(command, timeout=HANG_S, check=False).returncode:
            pytest.skip("cannot mount a file system")

    def run() -> None:
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(output)],
            job_options(folder=disk / "state", commit_every=2),
            JobHosts.on_this_machine(trainers=2, servers=2),
            on_line=lambda _name, _line: None,
            environment=environment(),
            restart=True,
        )

    mount("size=200k")
    try:
        with pytest.raises(JobError, match="No space left on device") as caught:
            run()
        assert str(disk) in str(caught.value)
        mount("remount,size=100m")
        run()
        assert_close(output, expected(clicks, "files"))
    finally:
        subprocess.run(["umount", str(disk)], timeout=HANG_S, check=False)
