"""A server of embedding rows: calls of its methods, over rows that lie in native memory."""

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.rpc import EMPTY, Call, Method, RpcServer
from headrace.embeddings.run.rpc_messages import Message
from headrace.embeddings.tables import TableGroup
from headrace.host_memory import available_host_bytes

_SEED_BITS = (1 << 64) - 1
_NO_LIMIT = (1 << 64) - 1


class RowService:
    """Methods of one of a job's servers.

    ``start`` describes the job. ``fetch`` and ``write_back`` are a trainer's, for every batch;
    ``read``, ``load`` and ``rows`` serve evaluation, import and export; ``status`` has figures.

    Parameters
    ----------
    number, servers : the server's, and how many there are.
    most_bytes : of memory that rows may have; None: without a limit.
    """

    def __init__(self, number: int, servers: int, most_bytes: int | None = None) -> None:
        self._number = number
        self._servers = servers
        self._memory = _native.RowMemory(_NO_LIMIT if most_bytes is None else most_bytes)
        self._changed = threading.Condition()
        self._job: _Job | None = None
        self.methods: Mapping[str, Method] = {
            "start": self._start,
            "fetch": self._fetch,
            "write_back": self._write_back,
            "read": self._read,
            "load": self._load,
            "rows": self._rows,
            "status": self._status,
        }

    def _start(self, call: Call) -> Message:
        head = call.message.head
        place = head.get("server"), head.get("servers")
        if place != (self._number, self._servers):
            raise EmbeddingError(
                f"server {self._number} of {self._servers} was started as server {place[0]} of "
                f"{place[1]}: give the addresses of all servers in their order"
            )
        description = JobDescription.from_fields(head["description"])
        trainers = _number(head, "trainers", least=1)
        with self._changed:
            if self._job is None:
                self._job = _Job(description, trainers, self._number, self._servers, self._memory)
            elif difference := self._job.difference(description, trainers):
                raise EmbeddingError(
                    f"server {self._number} serves another job, whose {difference} differ"
                )
        return EMPTY

    def _fetch(self, call: Call) -> Message:
        job, head = self._started(), call.message.head
        group = _number(head, "group", below=len(job.groups))
        after = _number(head, "after", least=None)
        with self._changed:
            call.wait(self._changed, lambda: int(job.written[:, group].min()) >= after)
        return Message(head={}, columns={"values": job.groups[group].fetch(call.message)})

    def _write_back(self, call: Call) -> Message:
        job, head = self._started(), call.message.head
        trainer = _number(head, "trainer", below=len(job.written))
        group = _number(head, "group", below=len(job.groups))
        batch = _number(head, "batch")
        with self._changed:
            expected = int(job.begun[trainer, group]) + 1
            if batch != expected:
                raise EmbeddingError(
                    f"trainer {trainer} writes rows of batch {batch} back, needs batch {expected}"
                )
            job.begun[trainer, group] = batch
        job.groups[group].write(call.message)
        with self._changed:
            job.written[trainer, group] = batch
            self._changed.notify_all()
        return EMPTY

    def _read(self, call: Call) -> Message:
        job = self._started()
        group = _number(call.message.head, "group", below=len(job.groups))
        return Message(head={}, columns={"values": job.groups[group].read(call.message)})

    def _load(self, call: Call) -> Message:
        group, table = self._started().table(call.message.head)
        group.load(table, call.message)
        return EMPTY

    def _rows(self, call: Call) -> Message:
        head = call.message.head
        group, table = self._started().table(head)
        after = _number(head, "after", least=None)
        ids, values = group.listed(table, after, _number(head, "limit", least=1))
        return Message(head={}, columns={"ids": ids, "values": values})

    def _status(self, call: Call) -> Message:
        del call
        job = self._started()
        return Message(head={**job.status(), "bytes": self._memory.bytes})

    def _started(self) -> "_Job":
        with self._changed:
            if self._job is None:
                raise EmbeddingError(f"server {self._number} has no job yet: start it first")
            return self._job


class _Job:
    """Rows of a job at one server.

    Attributes
    ----------
    begun, written : [trainers, groups]: the last batch that a trainer writes rows back of, and the
        last whose rows are written.
    """

    def __init__(
        self,
        description: JobDescription,
        trainers: int,
        number: int,
        servers: int,
        memory: _native.RowMemory,
    ) -> None:
        self._description = description
        self.groups = tuple(
            _GroupRows(description, group, number, servers, memory) for group in description.groups
        )
        self.begun = np.full((trainers, len(self.groups)), -1)
        self.written = np.full((trainers, len(self.groups)), -1)

    def difference(self, description: JobDescription, trainers: int) -> str | None:
        """Return the name of what differs from another job's."""
        if trainers != len(self.written):
            return "trainers"
        return self._description.difference(description)

    def table(self, head: Mapping[str, Any]) -> tuple["_GroupRows", int]:
        """Return the group of the table that a call names, and the table's number in it."""
        table = _number(head, "table", below=len(self._description.tables))
        return next(
            (rows, rows.group.tables.index(table))
            for rows in self.groups
            if table in rows.group.tables
        )

    def status(self) -> dict[str, Any]:
        """Return rows and bytes, of every table and of all."""
        tables = [
            self.table({"table": number})[0].table_status(number, table.name)
            for number, table in enumerate(self._description.tables)
        ]
        return {
            "tables": tables,
            "rows": sum(table["rows"] for table in tables),
            "written": self.written.tolist(),
        }


class _GroupRows:
    """Rows of one group of tables."""

    def __init__(
        self,
        description: JobDescription,
        group: TableGroup,
        number: int,
        servers: int,
        memory: _native.RowMemory,
    ) -> None:
        self.group = group
        self._dtype = np.dtype(group.dtype)
        tables = [description.tables[table] for table in group.tables]
        self._store = _native.RowStore(
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
            shard=number,
            shards=servers,
            memory=memory,
        )

    def fetch(self, message: Message) -> NDArray[Any]:
        """Return rows, and create those that do not exist."""
        ids, ends = _rows_of(message)
        values = self._room(len(ids))
        with _input_errors():
            self._store.fetch(ids, ends, values)
        return values

    def read(self, message: Message) -> NDArray[Any]:
        """Return rows, and create none."""
        ids, ends = _rows_of(message)
        values = self._room(len(ids))
        with _input_errors():
            self._store.read(ids, ends, values)
        return values

    def write(self, message: Message) -> None:
        """Write rows."""
        ids, ends = _rows_of(message)
        with _input_errors():
            self._store.write(ids, ends, _column(message, "values", self._dtype, 2))

    def load(self, table: int, message: Message) -> None:
        """Write rows of one table: their numbers, and their state where it is there."""
        ids = _column(message, "ids", np.dtype(np.int64), 1)
        values = _column(message, "values", self._dtype, 2)
        if values.shape[1] == self.group.dim and self.group.state > 0:
            rows = self._room(len(values))
            rows[:, : self.group.dim] = values
            rows[:, self.group.dim :] = self.group.state_initial
            values = rows
        ends = np.zeros(len(self.group.tables), np.int64)
        ends[table:] = len(ids)
        with _input_errors():
            self._store.write(ids, ends, values)

    def listed(self, table: int, after: int, limit: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return up to `limit` rows of a table whose ids are above `after`, rising."""
        limit = min(limit, self._store.rows(table))
        ids = np.empty(limit, np.int64)
        values = self._room(limit)
        count = self._store.scan(table, after, ids, values)
        return ids[:count], values[:count]

    def table_status(self, number: int, name: str) -> dict[str, Any]:
        """Return figures of a table, by its number in the job."""
        table = self.group.tables.index(number)
        return {
            "name": name,
            "rows": self._store.rows(table),
            "bytes": self._store.table_bytes(table),
        }

    def _room(self, rows: int) -> NDArray[Any]:
        return np.empty((rows, self.group.width), self._dtype)


@contextmanager
def _input_errors() -> Generator[None]:
    """Native errors of arguments as those of the caller's input."""
    try:
        yield
    except ValueError as error:
        raise EmbeddingError(str(error)) from error


def _rows_of(message: Message) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    integers = np.dtype(np.int64)
    return _column(message, "ids", integers, 1), _column(message, "ends", integers, 1)


def _column(message: Message, name: str, dtype: np.dtype[Any], dimensions: int) -> NDArray[Any]:
    column = message.columns.get(name)
    if column is None or column.dtype != dtype or column.ndim != dimensions:
        raise EmbeddingError(f"column {name} of a call needs {dimensions} dimensions of {dtype}")
    return column


def _number(
    head: Mapping[str, Any], name: str, *, least: int | None = 0, below: int | None = None
) -> int:
    value = head.get(name)
    if (
        not isinstance(value, int)
        or (least is not None and value < least)
        or (below is not None and value >= below)
    ):
        bounds = f"at least {least}" if below is None else f"{least} to {below - 1}"
        raise EmbeddingError(f"{name} of a call is {value!r}, needs a number, {bounds}")
    return value


def serve(settings: RoleSettings) -> RpcServer:
    """Serve a server's calls.

    Its options may have "most_bytes", a limit on the memory of rows: without one it is 90% of what
    the host has available, so that a call fails where the kernel would end the process.
    """
    most_bytes: int | None = settings.options.get("most_bytes")
    available = available_host_bytes()
    if most_bytes is None and available is not None:
        most_bytes = available * 9 // 10
    service = RowService(settings.number, settings.count, most_bytes)
    return RpcServer(settings.role, service.methods, secret=settings.secret, host=settings.host)
