"""Durable logs of a server's rows: a folder for each table, and commits of all of them.

A server begins with links to the files of the last commit, in a folder of its own start of the job:
the server that wrote them may live, and append to them. It commits to files of its own.
"""

import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.tables import TableGroup
from headrace.errors import CommunicationError
from headrace.files import sync_folder

_TRIES = 10
"""To link files of a server that lives, and may write a snapshot meanwhile."""

Groups = list[list[int]]
"""Of every group of tables, the number of groups of changes in each table's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFolder:
    """Logs of one of a job's servers, as a commit has them.

    Attributes
    ----------
    start : number of the job's start that has them.
    server, servers : its number, and how many servers there were.
    groups : see `Groups`.
    """

    start: int
    server: int
    servers: int
    groups: Groups

    def path(self, job_folder: Path) -> Path:
        """Return the folder."""
        return server_folder(job_folder, self.start, self.server, self.servers)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return the folder that a message describes, as `dataclasses.asdict` does.

        Raises
        ------
        EmbeddingError : the fields are not those of a folder.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise EmbeddingError(f"the logs of a server cannot be read: {error}") from error


def start_folder(job_folder: Path, start: int) -> Path:
    """Return the folder that a start of the job writes to."""
    return job_folder / f"start-{start}"


def server_folder(job_folder: Path, start: int, server: int, servers: int) -> Path:
    """Return a server's folder in that of a start."""
    return start_folder(job_folder, start) / f"server-{server}-of-{servers}"


class RowLogs:
    """Logs of the rows of one server.

    Parameters
    ----------
    folder : of the job.
    start : number of this start of the job.
    stores, groups : of every group of tables.
    committed : the folders of the last commit; a server of another number of servers takes its
        rows from all of them. None: there was no commit, and the logs are empty.
    first_commit : number of the first commit to make.

    Raises
    ------
    CommunicationError : a folder cannot be opened, or is damaged.
    """

    def __init__(
        self,
        folder: Path,
        start: int,
        server: int,
        servers: int,
        stores: Sequence[_native.RowStore],
        groups: Sequence[TableGroup],
        *,
        committed: Sequence[ServerFolder] | None,
        first_commit: int,
    ) -> None:
        self._groups = tuple(groups)
        self._folder = server_folder(folder, start, server, servers)
        same = [
            part for part in committed or () if (part.server, part.servers) == (server, servers)
        ]
        with _named(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for part in same:
                self._link(part.path(folder), self._folder)
            self._logs = [
                _native.StoreLog(
                    store,
                    _folders(self._folder, number, group),
                    groups=same[0].groups[number] if same else [],
                    first_commit=first_commit,
                )
                for number, (store, group) in enumerate(zip(stores, groups, strict=True))
            ]
            sync_folder(self._folder)
            sync_folder(self._folder.parent)
        for part in committed or ():
            if not same:
                self._adopt(part.path(folder), part.groups, first_commit)

    def put(
        self,
        commit: int,
        group: int,
        ids: NDArray[np.int64],
        ends: NDArray[np.int64],
        values: NDArray[Any],
    ) -> None:
        """Add rows that were written to a commit: in memory, or in the logs where they are many.

        Raises
        ------
        EmbeddingError : the commit is made already.
        CommunicationError : the system refused to write them; the commit fails then, too.
        """
        try:
            self._logs[group].put(commit, ids, ends, values)
        except ValueError as error:
            raise EmbeddingError(str(error)) from error
        except (OSError, RuntimeError) as error:
            raise _failure(self._folder, error) from error

    def commit(self, commit: int) -> Groups:
        """Return the groups of the logs when the rows of a commit are on the device.

        Raises
        ------
        CommunicationError : the system refused to write them.
        """
        with _named(self._folder):
            return [log.commit(commit) for log in self._logs]

    def marked(self, commit: int) -> None:
        """All servers have made a commit: write snapshots where logs are long."""
        with _named(self._folder):
            for log in self._logs:
                log.checkpoint_if_due(commit)

    def close(self) -> None:
        """End the logs."""
        for log in self._logs:
            log.close()

    def _link(self, source: Path, target: Path) -> None:
        for number, group in enumerate(self._groups):
            folders = zip(
                _folders(source, number, group), _folders(target, number, group), strict=True
            )
            for from_folder, to_folder in folders:
                _link_files(Path(from_folder), Path(to_folder))

    def _adopt(self, source: Path, groups: Groups, commit: int) -> None:
        links = self._folder / f"from-{source.name}"
        with _named(source):
            links.mkdir()
            self._link(source, links)
            for number, (log, group) in enumerate(zip(self._logs, self._groups, strict=True)):
                log.adopt(_folders(links, number, group), groups=groups[number], commit=commit)
            shutil.rmtree(links)


def _link_files(source: Path, target: Path) -> None:
    """Link the snapshots and logs of a folder, or copy them where the system has no links.

    Raises
    ------
    OSError : the system refused it.
    """
    for tries in range(_TRIES):
        target.mkdir()
        try:
            for path in source.iterdir():
                if path.name.startswith(("snapshot-", "changes-")) and path.suffix != ".part":
                    _link_file(path, target / path.name)
        except FileNotFoundError:  # a new snapshot has replaced it
            if tries == _TRIES - 1:
                raise
            shutil.rmtree(target)
        else:
            return


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:  # a later commit's mark needs what the link would have
            os.fsync(file.fileno())


def _folders(folder: Path, number: int, group: TableGroup) -> list[str]:
    return [str(folder / f"group-{number}-table-{table}") for table in group.tables]


@contextmanager
def _named(folder: Path) -> Generator[None]:
    """Native errors of files as those of a process, with the folder."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise _failure(folder, error) from error


def _failure(folder: Path, error: Exception) -> CommunicationError:
    return CommunicationError(f"the logs of rows in {folder}: {error}")
