"""Real servers of rows in threads of a test's process."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.process import RoleSettings
from headrace.embeddings.run.servers.row_client import DirtyRows, ServerConnections, start_servers
from headrace.embeddings.run.servers.row_logs import ServerFolder
from headrace.embeddings.run.servers.row_server import serve
from headrace.embeddings.tables import EmbeddingTable, TableGroup
from tests.embeddings.run.memory_servers import initial_numbers
from tests.embeddings.run.rpc_peer import SECRET
from tests.waiting import ENDLESS_S


def settings(number: int, count: int, **options: Any) -> RoleSettings:
    return RoleSettings(
        kind="server",
        number=number,
        count=count,
        host="127.0.0.1",
        deadline_s=ENDLESS_S,
        secret=SECRET,
        options=options,
    )


def no_message(**message: Any) -> None:
    raise AssertionError(f"a server tells its parent {message}")


def describe(tables: Sequence[EmbeddingTable], groups: Sequence[TableGroup]) -> JobDescription:
    return JobDescription(
        tables=tuple(tables),
        columns=tuple((number,) for number in range(len(tables))),
        groups=tuple(groups),
        slots=(10,) * len(groups),
        seed=3,
        data={"format": "none"},
    )


class Connections(ServerConnections):
    """A trainer's connections; commits are those of all of them."""

    def __init__(self, running: "RunningServers", trainer: int) -> None:
        super().__init__(
            running.addresses, running.description, trainer, secret=SECRET, deadline_s=ENDLESS_S
        )
        self.running = running

    def commit(self, commit: int, dirty: Sequence[DirtyRows]) -> Mapping[str, Any]:
        committed = super().commit(commit, dirty)
        servers = len(self.running.addresses)
        folders = [
            ServerFolder(start=self.running.number, server=server, servers=servers, groups=groups)
            for server, groups in enumerate(committed["groups"])
        ]
        assert self.running.committed.setdefault(commit, folders) == folders
        return committed


class RunningServers:
    """Servers of a job, as `MemoryServers` to a test of trainers.

    Parameters
    ----------
    loaded : rows of every table that have the values of `MemoryServers` at first.
    begin : see `start_servers`.

    Attributes
    ----------
    committed : the servers' folders, by the number of the commit.
    number : of the job's start.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        groups: Sequence[TableGroup],
        trainers: int,
        *,
        servers: int = 1,
        loaded: int = 0,
        begin: Mapping[str, Any] = {},
        **options: Any,
    ) -> None:
        self.description = describe(tables, groups)
        self.trainers = trainers
        self.served = [
            serve(settings(number, servers, **options), no_message) for number in range(servers)
        ]
        self.addresses = [server.address for server in self.served]
        self.connections: list[ServerConnections] = []
        self.committed: dict[int, list[ServerFolder]] = {}
        self.number: int = begin.get("start", 0)
        self.start(self.description, **begin)
        own = self.connection(0)
        for table, shape in enumerate(tables):
            if loaded:
                numbers = [initial_numbers(table, row, shape.dim) for row in range(loaded)]
                dtype = next(group.dtype for group in groups if table in group.tables)
                own.load(table, np.arange(loaded), np.stack(numbers).astype(dtype))

    def start(self, description: JobDescription, trainers: int | None = None, **begin: Any) -> None:
        start_servers(
            self.addresses,
            description,
            self.trainers if trainers is None else trainers,
            role="cacher",
            secret=SECRET,
            **begin,
        )

    def connection(self, trainer: int) -> ServerConnections:
        connections = Connections(self, trainer)
        self.connections.append(connections)
        return connections

    @property
    def rows(self) -> dict[tuple[int, int], np.ndarray]:
        rows: dict[tuple[int, int], np.ndarray] = {}
        with self.connection(0) as own:
            for table in range(len(self.description.tables)):
                ids, values = own.export(table, -1, 1000)
                rows |= {
                    (table, row): numbers for row, numbers in zip(ids.tolist(), values, strict=True)
                }
        return rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connections in self.connections:
            connections.close()
        for server in self.served:
            server.close()
