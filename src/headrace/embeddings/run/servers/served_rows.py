"""Rows of a job at one server, and the commits of them."""

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.joint_commits import JointCommits
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.servers.row_logs import Groups, RowLogs, ServerFolder
from headrace.embeddings.run.step_times import ServerTimes
from headrace.embeddings.tables import TableGroup

_SEED_BITS = (1 << 64) - 1


class Shard(NamedTuple):
    """One server's rows of every table: those of `number` among `servers`."""

    number: int
    servers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """Where a job starts.

    Attributes
    ----------
    number : of this start of the job.
    first_batch, first_commit : numbers of the first ones.
    committed : the servers' folders at the last commit; None: there was none.
    """

    number: int
    trainers: int
    first_batch: int
    first_commit: int
    committed: tuple[ServerFolder, ...] | None

    @classmethod
    def of(cls, head: Mapping[str, Any]) -> "JobStart":
        """Return that of a call's head.

        Raises
        ------
        EmbeddingError : a number is wrong.
        """
        folders = head.get("committed")
        return cls(
            number=number_of(head, "start"),
            trainers=number_of(head, "trainers", least=1),
            first_batch=number_of(head, "first_batch"),
            first_commit=number_of(head, "first_commit"),
            committed=None if folders is None else tuple(map(ServerFolder.from_fields, folders)),
        )


class ServedJob:
    """Rows of a job at one server.

    Attributes
    ----------
    written : [trainers, groups]: the last batch whose evicted rows a trainer has written back.
    calls_left : [trainers, groups]: calls with rows of the batch after it that have not ended, once
        one has begun. One that fails does not end: no later batch follows.
    commits, next_commit : of the job, and the number of the next one.
    logs : None: commits leave nothing.
    """

    def __init__(
        self,
        description: JobDescription,
        start: JobStart,
        shard: Shard,
        memory: _native.RowMemory,
        folder: Path | None,
        changed: threading.Condition,
    ) -> None:
        self._description = description
        self.groups = tuple(
            GroupRows(description, group, shard, memory) for group in description.groups
        )
        self.written = np.full((start.trainers, len(self.groups)), start.first_batch - 1)
        self.calls_left = np.zeros_like(self.written)
        self.times = ServerTimes()
        self._first_batch = start.first_batch
        self.commits = JointCommits[Groups](start.trainers, changed)
        self.next_commit = start.first_commit
        self.logs: RowLogs | None = None
        if folder is not None:
            self.logs = RowLogs(
                folder,
                start.number,
                *shard,
                [group.store for group in self.groups],
                description.groups,
                committed=start.committed,
                first_commit=start.first_commit,
            )

    def log(self, commit: int, group: int, message: RpcMessage) -> None:
        """Add rows that were written to a commit."""
        if self.logs is not None:
            ids, ends = rows_of(message)
            self.logs.put(commit, group, ids, ends, message.columns["values"])

    def make_commit(self, number: int) -> Groups:
        """Log a commit; return what the logs have with it.

        Raises
        ------
        CommunicationError : the system refused it.
        """
        groups = [] if self.logs is None else self.logs.commit(number)
        self.next_commit = number + 1
        return groups

    def close(self) -> None:
        """End the logs."""
        if self.logs is not None:
            self.logs.close()

    def difference(self, description: JobDescription, trainers: int) -> str | None:
        """Return the name of what differs from another job's."""
        if trainers != len(self.written):
            return "trainers"
        return self._description.difference(description)

    def table(self, head: Mapping[str, Any]) -> tuple["GroupRows", int]:
        """Return the group of the table that a call names, and the table's number in it."""
        table = number_of(head, "table", below=len(self._description.tables))
        return next(
            (rows, rows.group.tables.index(table))
            for rows in self.groups
            if table in rows.group.tables
        )

    def status(self) -> dict[str, Any]:
        """Return rows and bytes, of every table and of all, and the times of calls."""
        batches = int(self.written.min()) + 1 - self._first_batch
        tables = [
            self.table({"table": number})[0].table_status(number, table.name)
            for number, table in enumerate(self._description.tables)
        ]
        return {
            "tables": tables,
            "rows": sum(table["rows"] for table in tables),
            "written": self.written.tolist(),
            "times": replace(self.times, batches=batches).to_fields(),
        }


class GroupRows:
    """Rows of one group of tables."""

    def __init__(
        self,
        description: JobDescription,
        group: TableGroup,
        shard: Shard,
        memory: _native.RowMemory,
    ) -> None:
        self.group = group
        self._dtype = np.dtype(group.dtype)
        tables = [description.tables[table] for table in group.tables]
        self.store = _native.RowStore(
            [
                _native.RowTable(
                    name=table.name,
                    number=number_in_job,
                    rows=table.rows,
                    distribution=table.initial.distribution,
                    scale=table.initial_scale,
                )
                for number_in_job, table in zip(group.tables, tables, strict=True)
            ],
            dim=group.dim,
            state=group.state,
            state_initial=group.state_initial,
            float64=group.dtype == "float64",
            seed=description.seed & _SEED_BITS,
            shard=shard.number,
            shards=shard.servers,
            memory=memory,
        )

    def fetch(self, message: RpcMessage) -> NDArray[Any]:
        """Return rows, and create those that do not exist."""
        ids, ends = rows_of(message)
        values = self._room(len(ids))
        with _named_errors():
            self.store.fetch(ids, ends, values)
        return values

    def read(self, message: RpcMessage) -> NDArray[Any]:
        """Return rows, and create none."""
        ids, ends = rows_of(message)
        values = self._room(len(ids))
        with _named_errors():
            self.store.read(ids, ends, values)
        return values

    def write(self, message: RpcMessage) -> int:
        """Write rows, and return how many."""
        ids, ends = rows_of(message)
        with _named_errors():
            self.store.write(ids, ends, _column(message, "values", self._dtype, 2))
        return len(ids)

    def load(self, table: int, message: RpcMessage) -> RpcMessage:
        """Write rows of one table: their numbers, and their state if the values have it.

        Return them as other calls have them, with their state.
        """
        ids = _column(message, "ids", np.dtype(np.int64), 1)
        values = _column(message, "values", self._dtype, 2)
        if values.shape[1] == self.group.dim and self.group.state > 0:
            rows = self._room(len(values))
            rows[:, : self.group.dim] = values
            rows[:, self.group.dim :] = self.group.state_initial
            values = rows
        ends = np.zeros(len(self.group.tables), np.int64)
        ends[table:] = len(ids)
        with _named_errors():
            self.store.write(ids, ends, values)
        return RpcMessage(head={}, columns={"ids": ids, "ends": ends, "values": values})

    def listed(self, table: int, after: int, limit: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return up to `limit` rows of a table whose ids are above `after`, rising."""
        limit = min(limit, self.store.rows(table))
        ids = np.empty(limit, np.int64)
        values = self._room(limit)
        count = self.store.scan(table, after, ids, values)
        return ids[:count], values[:count]

    def table_status(self, number: int, name: str) -> dict[str, Any]:
        """Return figures of a table, by its number in the job."""
        table = self.group.tables.index(number)
        return {
            "name": name,
            "rows": self.store.rows(table),
            "bytes": self.store.table_bytes(table),
        }

    def _room(self, rows: int) -> NDArray[Any]:
        return np.empty((rows, self.group.width), self._dtype)


@contextmanager
def _named_errors() -> Generator[None]:
    """Native errors of arguments as those of the caller's input, and a remedy for full memory."""
    try:
        yield
    except ValueError as error:
        raise EmbeddingError(str(error)) from error
    except MemoryError as error:
        raise MemoryError(
            f"{error}: let servers on more hosts share the rows, or take hosts with more memory"
        ) from error


def rows_of(message: RpcMessage) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids of a call, and where those of each table end.

    Raises
    ------
    EmbeddingError : a column is absent, or of another type.
    """
    integers = np.dtype(np.int64)
    return _column(message, "ids", integers, 1), _column(message, "ends", integers, 1)


def _column(message: RpcMessage, name: str, dtype: np.dtype[Any], dimensions: int) -> NDArray[Any]:
    column = message.columns.get(name)
    if column is None or column.dtype != dtype or column.ndim != dimensions:
        raise EmbeddingError(f"column {name} of a call needs {dimensions} dimensions of {dtype}")
    return column


def number_of(
    head: Mapping[str, Any], name: str, *, least: int | None = 0, below: int | None = None
) -> int:
    """Return a number of a call's head.

    Raises
    ------
    EmbeddingError : it is absent, or out of range.
    """
    value = head.get(name)
    if (
        not isinstance(value, int)
        or (least is not None and value < least)
        or (below is not None and value >= below)
    ):
        bounds = f"at least {least}" if below is None else f"{least} to {below - 1}"
        raise EmbeddingError(f"{name} of a call is {value!r}, needs a number, {bounds}")
    return value
