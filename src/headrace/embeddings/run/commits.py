"""Commits of a job: marks in its folder, each of which is what a job can begin from.

A commit exists when its mark does: all servers have logged its rows then, and the trainers have
written their states. Every start of the job has a number, and a folder that it alone writes to, so
that a process of an earlier start, which was thought lost and lives, changes nothing of a later
one. It has the start's newest marks, and what they need::

    start-3/marks/7.json         commit 7: batches that it has, and groups of the servers' logs
    start-3/trainers/7-0.pt      state of trainer 0
    start-3/server-0-of-2/...    logs of rows: see `row_logs`

Folders of earlier starts go with the first mark of a later one.
"""

import json
import shutil
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.servers.row_logs import ServerFolder, start_folder
from headrace.errors import CommunicationError
from headrace.files import parse_json, read_text, sync_folder, write_whole

_SCHEMA = 2
_MARKS = 2
"""That are kept: the newest one, and the one before it while that one's files are removed."""

_REJECTION = ("most_rejected", "rejects")
"""Fields of data that move no example to another batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file of data as a commit had it: batches are numbered in it."""

    path: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Point that a job begins from.

    Attributes
    ----------
    start : number of the job's start that made it.
    commit : its number.
    epoch : that the next batch is in; 0 is the first.
    epoch_began : number of that epoch's first batch: batches are numbered on over epochs.
    batch : number of the next batch.
    steps : training steps so far.
    trainers : their number.
    servers : the servers' logs.
    job : the job's description.
    files : of the data.
    """

    start: int
    commit: int
    epoch: int
    epoch_began: int
    batch: int
    steps: int
    trainers: int
    servers: tuple[ServerFolder, ...]
    job: JobDescription
    files: tuple[DataFile, ...]

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it."""
        return {"schema": _SCHEMA, **asdict(self)}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], source: str) -> Self:
        """Return the mark that `to_fields` made.

        Raises
        ------
        EmbeddingError : the fields are not a mark's; begins with `source`.
        """
        values = dict(fields)
        schema = values.pop("schema", None)
        if schema != _SCHEMA:
            raise EmbeddingError(
                f"{source}: has schema {schema}, needs {_SCHEMA}: another version of headrace made "
                "the commit: run the job with that one, or with another --state folder"
            )
        try:
            values["job"] = JobDescription.from_fields(values["job"])
            values["servers"] = tuple(map(ServerFolder.from_fields, values["servers"]))
            values["files"] = tuple(DataFile(**file) for file in values["files"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise EmbeddingError(f"{source}: is no mark of a commit: {error}") from error

    @property
    def place(self) -> str:
        """Return the commit and the batch that follows it, for lines of output."""
        return f"commit {self.commit}: epoch {self.epoch}, batch {self.batch - self.epoch_began}"

    def check(self, description: JobDescription) -> None:
        """Check that a job can begin from this commit.

        Raises
        ------
        EmbeddingError : it is another job, or a file of its data has changed.
        """
        difference = _of_results(self.job).difference(_of_results(description))
        if difference is not None:
            raise EmbeddingError(
                f"the job differs in {difference} from that of commit {self.commit}: run it with "
                "another --state folder, or as it was"
            )
        for file in data_files(description.data):
            if file not in self.files:
                raise EmbeddingError(
                    f"{file.path}: has changed since commit {self.commit}: the job needs the same "
                    "data, or another --state folder"
                )


def _of_results(job: JobDescription) -> JobDescription:
    """Return a description without the fields that change no result: a job may change these."""
    data = {name: value for name, value in job.data.items() if name not in _REJECTION}
    return replace(job, slots=(), data=data)


def data_files(data: Mapping[str, Any]) -> tuple[DataFile, ...]:
    """Return the files of data, by its fields; other data have none.

    Raises
    ------
    EmbeddingError : a file is absent.
    """
    files: list[DataFile] = []
    for path in data.get("paths", ()):
        try:
            status = Path(path).stat()
        except OSError as error:
            raise EmbeddingError(f"{path}: {error.strerror}") from error
        files.append(DataFile(path=path, size_bytes=status.st_size, modified_ns=status.st_mtime_ns))
    return tuple(files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Point that a job begins at: anew, or after a commit.

    Attributes
    ----------
    epoch, epoch_began, batch, steps : see `Mark`.
    commit : number of the first commit to make.
    servers : the servers' logs; None: there was no commit.
    """

    epoch: int = 0
    epoch_began: int = 0
    batch: int = 0
    steps: int = 0
    commit: int = 0
    servers: tuple[ServerFolder, ...] | None = None

    @classmethod
    def after(cls, mark: Mark | None) -> Self:
        """Return the point after a commit; None: a job begins anew."""
        if mark is None:
            return cls()
        return cls(
            epoch=mark.epoch,
            epoch_began=mark.epoch_began,
            batch=mark.batch,
            steps=mark.steps,
            commit=mark.commit + 1,
            servers=mark.servers,
        )


class CommitFolder:
    """Folder of a job's commits; the marks are the cacher's alone.

    Raises
    ------
    EmbeddingError : it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            absent = [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            for folder in absent:
                sync_folder(folder.parent)
        except OSError as error:
            is_file = isinstance(error, FileExistsError)
            reason = "it is no folder" if is_file else error.strerror
            raise EmbeddingError(f"{path}: cannot have the commits of a job: {reason}") from error

    def begin(self) -> int:
        """Return the number of a new start of the job, which no other one has.

        Raises
        ------
        CommunicationError : the system refused its folder.
        """
        with self._named("a new start"):
            while True:
                start = max(self._starts(), default=0) + 1
                with suppress(FileExistsError):  # another cacher took the number
                    start_folder(self.path, start).mkdir()
                    break
            self._marks(start).mkdir()
            self._states(start).mkdir()
            sync_folder(start_folder(self.path, start))
            sync_folder(self.path)
        return start

    def state(self, start: int, commit: int, trainer: int) -> Path:
        """Return the file of a trainer's state, of a commit that a start makes."""
        return self._states(start) / f"{commit}-{trainer}.pt"

    def newest(self) -> Mark | None:
        """Return the newest mark of the latest start that has one; None: nothing was committed.

        Raises
        ------
        EmbeddingError : it cannot be read.
        """
        for start in reversed(self._starts()):
            if commits := self._commits(start):
                path = self._mark(start, commits[-1])
                fields = parse_json(read_text(path, EmbeddingError), str(path), EmbeddingError)
                return Mark.from_fields(fields, str(path))
        return None

    def write(self, mark: Mark) -> None:
        """Mark a commit, and remove what only earlier ones need.

        Raises
        ------
        CommunicationError : the system refused it, or a later start of the job has taken over.
        """
        with self._named(f"commit {mark.commit}"):
            # A start that begins after this check does not read what follows.
            latest = max(self._starts(), default=mark.start)
            if latest > mark.start:
                raise CommunicationError(
                    f"commit {mark.commit} in {self.path}: start {latest} of the job has taken "
                    f"over from start {mark.start}, to which this process belongs"
                )
            write_whole(self._mark(mark.start, mark.commit), json.dumps(mark.to_fields()).encode())
            self._remove_before(mark)

    def _remove_before(self, mark: Mark) -> None:
        commits = self._commits(mark.start)
        for commit in commits[:-_MARKS]:
            self._mark(mark.start, commit).unlink(missing_ok=True)
        oldest = commits[-_MARKS:][0]
        for path in self._states(mark.start).glob("*-*.pt"):
            commit = path.name.partition("-")[0]
            if commit.isdigit() and oldest > int(commit):
                path.unlink(missing_ok=True)
        for start in self._starts():
            if start < mark.start:  # one of its processes may live, and write
                shutil.rmtree(start_folder(self.path, start), ignore_errors=True)

    def _marks(self, start: int) -> Path:
        return start_folder(self.path, start) / "marks"

    def _states(self, start: int) -> Path:
        return start_folder(self.path, start) / "trainers"

    def _mark(self, start: int, commit: int) -> Path:
        return self._marks(start) / f"{commit}.json"

    def _starts(self) -> Sequence[int]:
        return _numbers(path.name.removeprefix("start-") for path in self.path.glob("start-*"))

    def _commits(self, start: int) -> Sequence[int]:
        return _numbers(path.stem for path in self._marks(start).glob("*.json"))

    @contextmanager
    def _named(self, what: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise CommunicationError(f"{what} in {self.path}: {error}") from error


def _numbers(names: Iterable[str]) -> Sequence[int]:
    return sorted(int(name) for name in names if name.isdigit())
