"""Jobs whose server, trainer or cacher is killed between any two operations on files of a commit.

What is then in the folder is begun from: it has every commit that was made, of all rows and states.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.embeddings.run.cacher.cacher_server import CacherServer
from headrace.embeddings.run.commits import CommitFolder
from headrace.embeddings.run.readers.reader_server import ReaderServer
from headrace.embeddings.run.servers.row_server import serve as serve_rows
from headrace.errors import CommunicationError
from headrace.settings import child_environment
from tests.embeddings.run.committing_trainer import TRAINERS, train
from tests.embeddings.run.jobs import ListedBatches, settings
from tests.embeddings.run.row_servers import no_message
from tests.tiers import Sample, case
from tests.waiting import HANG_S, no_hang

SOURCE = Path(__file__).with_name("file_operations.c")
COMMITTED = 2
"""Commits in the folder before a job begins that loses a process."""
END = 4
"""Commits that are made then: after the first one the files of the earlier start are removed."""
SAMPLED = 1
"""Operations that `make test` tries, of one role."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("library") / "file_operations.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"], check=True)
    return path


class Forks:
    """Processes of one kind, one after the other, that end at an operation on files."""

    def __init__(self, kind: str, library: Path) -> None:
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.embeddings.run.killed_role", kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment({"LD_PRELOAD": str(library), "PYTHONPATH": str(Path.cwd())}),
        )

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Fork:
    """A process that has been forked.

    Attributes
    ----------
    ended : set with its end.
    told : its messages by name, and "ended": the exit code.
    """

    def __init__(self, forks: Forks, folder: Path, end_at: int, **order: Any) -> None:
        self.told: dict[str, Any] = {}
        self._changed = threading.Condition()
        process = forks.process
        assert process.stdin is not None
        process.stdin.write(json.dumps({"folder": str(folder), "end_at": end_at, **order}) + "\n")
        process.stdin.flush()
        self._thread = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._thread.start()

    def _read(self, lines: Iterator[str]) -> None:
        for line in lines:
            with self._changed:
                self.told |= json.loads(line)
                self._changed.notify_all()
                if "ended" in self.told:
                    return

    def await_any(self, *names: str) -> Mapping[str, Any]:
        """Wait until it has told one of these, or ended; return all that it has told."""
        with self._changed:
            awaited = {*names, "ended"}
            assert self._changed.wait_for(lambda: bool(awaited & self.told.keys()), HANG_S)
            return dict(self.told)

    def end(self) -> Mapping[str, Any]:
        """End it, if it has not; return what it has told."""
        told = self.await_any("pid")
        if "ended" not in told:
            os.kill(told["pid"], signal.SIGTERM)
        return self.await_any()


class CommittingJob:
    """A job in this process, but for one process of it that is forked.

    Attributes
    ----------
    made : the last commit that a trainer was told of.
    errors : of trainers.
    """

    def __init__(self, folder: Path, end: int, forks: Forks | None = None, end_at: int = 0) -> None:
        self.folder, self.end, self.made = folder, end, -1
        self.errors: list[BaseException] = []
        self._forks, self._end_at = forks, end_at
        self.fork: Fork | None = None

    def run(self) -> None:
        """Run until all trainers have ended."""
        with ExitStack() as ends:
            servers = [self._address("server", number, ends) for number in range(2)]
            reader = ReaderServer(settings("reader"), ListedBatches(1000).of)
            ends.callback(reader.close)
            options = {
                "servers": servers,
                "readers": [reader.address],
                "trainers": TRAINERS,
                "lookahead": 1,
                "prefetch": 1,
                "synchronisation": "targeted",
                "commit_every": 1,
            }
            cacher = self._address("cacher", 0, ends, **options)
            threads = [
                threading.Thread(target=self._train, args=(cacher, trainer, ends), daemon=True)
                for trainer in range(TRAINERS)
            ]
            for thread in threads:
                thread.start()
            self._await(threads, ends)
            if self.fork is not None:
                self.fork.end()

    def _await(self, threads: list[threading.Thread], ends: ExitStack) -> None:
        """Wait for the trainers, whose other processes end with the one that is killed."""

        def end_with_the_fork() -> None:
            if self.fork is not None and self.fork.await_any()["ended"]:
                ends.close()

        threading.Thread(target=end_with_the_fork, daemon=True).start()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive(), f"a trainer hangs: {self.errors}"

    def _train(self, cacher: str, trainer: int, ends: ExitStack) -> None:
        try:
            if trainer == 1 and self._forks is not None and self._forks.kind == "trainer":
                arguments = {"cacher": cacher, "trainer": 1, "end": self.end}
                self.fork = Fork(self._forks, self.folder, self._end_at, arguments=arguments)
                told = self.fork.await_any()
                if "error" in told or told["ended"]:
                    raise CommunicationError(f"trainer 1: {told}")
            else:
                train(cacher, trainer, self.end, self._note)
        except BaseException as error:
            self.errors.append(error)
            ends.close()  # as a job's supervisor does

    def _note(self, commit: int) -> None:
        self.made = max(self.made, commit)

    def _address(self, kind: str, number: int, ends: ExitStack, **options: Any) -> str:
        """Start a server or the cacher; return its address."""
        count = 2 if kind == "server" else 1
        own = settings(kind, number, count, folder=str(self.folder), **options)
        if self._forks is not None and self._forks.kind == kind and number == 0:
            message = own.to_message()
            self.fork = Fork(self._forks, self.folder, self._end_at, settings=message)
            return self.fork.await_any("address", "error").get("address", "127.0.0.1:1")
        served = serve_rows(own, no_message) if kind == "server" else CacherServer(own, ignore)
        ends.callback(served.close)
        return served.address


def ignore(**message: Any) -> None:
    del message


def make_commits(folder: Path, end: int) -> None:
    """Make commits in a folder; nothing happens to the job."""
    job = CommittingJob(folder, end)
    job.run()
    assert not job.errors, job.errors
    assert job.made == end - 1


def check_kill(base: Path, folder: Path, forks: Forks, end_at: int) -> int:
    """Kill a process at an operation, and begin from what is left; return the operations.

    The number is 0 where the process was killed.
    """
    shutil.copytree(base, folder)
    job = CommittingJob(folder, END, forks, end_at)
    with no_hang():
        job.run()
    assert job.fork is not None
    killed = job.fork.told["ended"] != 0
    assert all(isinstance(error, CommunicationError) for error in job.errors), job.errors
    mark = CommitFolder(folder).newest()
    assert mark is not None
    made = max(job.made, COMMITTED - 1)
    assert mark.commit in (made, made + 1)
    make_commits(folder, END + 1)  # it checks rows and states
    mark = CommitFolder(folder).newest()
    assert mark is not None
    assert mark.commit == END
    assert [path.name for path in folder.glob("start-*")] == [f"start-{mark.start}"]
    shutil.rmtree(folder)
    return 0 if killed else int(job.fork.told["operations"])


@pytest.mark.sampled(1, of="embedding jobs")
@pytest.mark.parametrize("kind", ["server", "trainer", "cacher"])
def test_no_commit_is_lost_where_a_process_ends_between_two_writes(
    kind: str, tmp_path: Path, library: Path, sample: Sample
) -> None:
    base = tmp_path / "base"
    make_commits(base, COMMITTED)
    with ExitStack() as ends:
        forks = Forks(kind, library)
        ends.callback(forks.close)
        operations = check_kill(base, tmp_path / "undisturbed", forks, 0)
        assert operations > 4
        for end_at in sample.of(range(1, operations + 1), SAMPLED):
            with case(kind, end_at, operations):
                assert check_kill(base, tmp_path / str(end_at), forks, end_at) == 0
