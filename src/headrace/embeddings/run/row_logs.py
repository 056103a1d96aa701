"""Durable logs of a server's rows: a folder for each table, and commits of all of them."""

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

Groups = list[list[int]]
"""Of every group of tables, the number of groups of changes in each table's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFolder:
    """Logs of one of a job's servers, as a commit has them.

    Attributes
    ----------
    server, servers : its number, and how many servers there were.
    groups : see `Groups`.
    """

    server: int
    servers: int
    groups: Groups

    @property
    def name(self) -> str:
        """Name of the folder, within the job's."""
        return folder_name(self.server, self.servers)

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


def folder_name(server: int, servers: int) -> str:
    """Return the name of a server's folder, within the job's."""
    return f"server-{server}-of-{servers}"


class RowLogs:
    """Logs of the rows of one server.

    Parameters
    ----------
    folder : of the job.
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
        server: int,
        servers: int,
        stores: Sequence[_native.RowStore],
        groups: Sequence[TableGroup],
        *,
        committed: Sequence[ServerFolder] | None,
        first_commit: int,
    ) -> None:
        self._groups = tuple(groups)
        self._job_folder = folder
        self._servers = servers
        own = folder / folder_name(server, servers)
        same = [
            part for part in committed or () if (part.server, part.servers) == (server, servers)
        ]
        with _named(own):
            if not same:
                shutil.rmtree(own, ignore_errors=True)
            own.mkdir(parents=True, exist_ok=True)
            self._logs = [
                _native.StoreLog(
                    store,
                    _folders(own, number, group),
                    groups=same[0].groups[number] if same else [],
                )
                for number, (store, group) in enumerate(zip(stores, groups, strict=True))
            ]
        for part in committed or ():
            if not same:
                self._adopt(folder / part.name, part.groups, first_commit)

    def put(
        self,
        commit: int,
        group: int,
        ids: NDArray[np.int64],
        ends: NDArray[np.int64],
        values: NDArray[Any],
    ) -> None:
        """Add rows that were written to a commit.

        Raises
        ------
        EmbeddingError : the commit is made already.
        """
        try:
            self._logs[group].put(commit, ids, ends, values)
        except ValueError as error:
            raise EmbeddingError(str(error)) from error

    def commit(self, commit: int) -> Groups:
        """Return what the logs have when the rows of a commit are on the device.

        Raises
        ------
        CommunicationError : the system refused to write them.
        """
        with _named(self._job_folder):
            return [log.commit(commit) for log in self._logs]

    def marked(self, commit: int) -> None:
        """All servers have made a commit: write snapshots where logs are long.

        Folders of other numbers of servers go.
        """
        with _named(self._job_folder):
            for log in self._logs:
                log.checkpoint_if_due(commit)
        for path in self._job_folder.glob("server-*-of-*"):
            if not path.name.endswith(f"-of-{self._servers}"):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """End the logs."""
        for log in self._logs:
            log.close()

    def _adopt(self, folder: Path, groups: Groups, commit: int) -> None:
        with _named(folder):
            for number, (log, group) in enumerate(zip(self._logs, self._groups, strict=True)):
                log.adopt(_folders(folder, number, group), groups=groups[number], commit=commit)


def _folders(folder: Path, number: int, group: TableGroup) -> list[str]:
    return [str(folder / f"group-{number}-table-{table}") for table in group.tables]


@contextmanager
def _named(folder: Path) -> Generator[None]:
    """Native errors of files as those of a process, with the folder."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise CommunicationError(f"the logs of rows in {folder}: {error}") from error
