"""Servers of rows in this process's memory, with the rules of real ones."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.servers.row_client import DirtyRows
from headrace.embeddings.tables import TableGroup
from headrace.errors import CommunicationError
from tests.waiting import HANG_S


def initial_numbers(table: int, row: int, dim: int) -> np.ndarray:
    return np.random.default_rng([table, row]).standard_normal(dim)


class MemoryServers:
    """Rows by table and id; fetches wait for the evictions of all trainers.

    Parameters
    ----------
    before_fetch : called by every fetch, with the trainer and the batch.
    """

    def __init__(
        self,
        groups: Sequence[TableGroup],
        trainers: int,
        before_fetch: Callable[[int, int], None] = lambda trainer, batch: None,
    ) -> None:
        self.groups = groups
        self.rows: dict[tuple[int, int], np.ndarray] = {}
        self.before_fetch = before_fetch
        self.written = np.full((trainers, len(groups)), -1)
        self.closed = np.zeros(trainers, bool)
        self.pending: dict[int, dict[tuple[int, int], np.ndarray]] = {}
        self.commits: dict[int, int] = {}
        self.committed: list[dict[tuple[int, int], np.ndarray]] = [{}]
        self.changed = threading.Condition()

    def connection(self, trainer: int) -> "Connection":
        return Connection(self, trainer)


class Connection:
    """A trainer's `ServerConnections`."""

    def __init__(self, servers: MemoryServers, trainer: int) -> None:
        self.servers = servers
        self.trainer = trainer

    def fetch(self, batch: int, group: int, after: int, rows: SlottedRows) -> np.ndarray:
        servers = self.servers
        servers.before_fetch(self.trainer, batch)
        assert len(rows.ids) > 0
        with servers.changed:
            allowed = servers.changed.wait_for(
                lambda: servers.written[:, group].min() >= after or servers.closed[self.trainer],
                HANG_S,
            )
            if servers.closed[self.trainer] or not allowed:
                raise CommunicationError(f"server 0: batch {batch} was not fetched")
            fetched = np.stack(
                [self._row(group, table, row).copy() for table, row in self._names(group, rows)]
            )
        fetched.flags.writeable = False
        return fetched

    def write_back(
        self,
        batch: int,
        group: int,
        rows: SlottedRows,
        values: np.ndarray,
        *,
        commit: int = 0,
    ) -> None:
        servers = self.servers
        with servers.changed:
            assert servers.written[self.trainer, group] == batch - 1, "in the order of batches"
            for name, row in zip(self._names(group, rows), values, strict=True):
                servers.rows[name] = row.copy()
                servers.pending.setdefault(commit, {})[name] = row.copy()
            servers.written[self.trainer, group] = batch
            servers.changed.notify_all()

    def read(self, group: int, ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
        rows = SlottedRows(ends=ends, ids=ids, slots=ids.astype(np.uint32))
        with self.servers.changed:
            before = dict(self.servers.rows)
            values = [self._row(group, table, row) for table, row in self._names(group, rows)]
            self.servers.rows = before  # none is created
        shape = self.servers.groups[group]
        return np.array(values, shape.dtype).reshape(len(ids), shape.width)

    def load(self, table: int, ids: np.ndarray, values: np.ndarray) -> None:
        groups = self.servers.groups
        group = next(number for number, group in enumerate(groups) if table in group.tables)
        with self.servers.changed:
            next_commit = len(self.servers.committed) - 1
            pending = self.servers.pending.setdefault(next_commit, {})
            for row, numbers in zip(ids.tolist(), values, strict=True):
                created = self._row(group, table, row)
                created[: len(numbers)] = numbers
                pending[table, row] = created.copy()

    def export(self, table: int, after: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
        with self.servers.changed:
            ids = sorted(row for own, row in self.servers.rows if own == table and row > after)
            rows = [self.servers.rows[table, row] for row in ids[:limit]]
        return np.array(ids[:limit], np.int64), np.array(rows)

    def commit(self, commit: int, dirty: Sequence[DirtyRows]) -> Mapping[str, Any]:
        servers = self.servers
        with servers.changed:
            pending = servers.pending.setdefault(commit, {})
            for group, part in enumerate(dirty):
                for name, row in zip(self._names(group, part.rows), part.values, strict=True):
                    pending[name] = row.copy()
            servers.commits[commit] = servers.commits.get(commit, 0) + 1
            if servers.commits[commit] == len(servers.closed):
                assert len(servers.committed) == commit + 1, "in the order of commits"
                servers.committed.append(servers.committed[-1] | servers.pending.pop(commit))
                servers.changed.notify_all()
            made = servers.changed.wait_for(
                lambda: len(servers.committed) > commit + 1 or servers.closed[self.trainer], HANG_S
            )
            if servers.closed[self.trainer] or not made:
                raise CommunicationError(f"server 0: commit {commit} was not made")
        return {}

    def close(self) -> None:
        with self.servers.changed:
            self.servers.closed[self.trainer] = True
            self.servers.changed.notify_all()

    def _names(self, group: int, rows: SlottedRows) -> list[tuple[int, int]]:
        counts = np.diff(rows.ends, prepend=0)
        tables = np.repeat(self.servers.groups[group].tables, counts)
        return list(zip(tables.tolist(), rows.ids.tolist(), strict=True))

    def _row(self, group: int, table: int, row: int) -> np.ndarray:
        shape = self.servers.groups[group]
        numbers = initial_numbers(table, row, shape.dim)
        state = np.full(shape.state, shape.state_initial)
        created = np.concatenate([numbers, state]).astype(shape.dtype)
        return self.servers.rows.setdefault((table, row), created)
