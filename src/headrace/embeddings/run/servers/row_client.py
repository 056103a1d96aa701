"""A trainer's connections to all servers of rows."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.rpc.calls import RpcClient
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.servers.row_logs import ServerFolder
from headrace.embeddings.run.servers.shards import ServerRows, by_server
from headrace.embeddings.tables import TableGroup
from headrace.errors import CommunicationError

Ids = NDArray[np.int64]
RowValues = NDArray[Any]
"""[rows, width of the group]: numbers that the model reads, then the optimizer's state."""

_PARTS = 4
"""Calls that rows are split into: while those of one are under way, others are looked up."""
_EXPORT_MARGIN = 256
"""Rows that a server is asked for beyond its share of a page, as shares differ by chance."""
_LEAST_BYTES = 1 << 20
"""Rows of a call where they are split: a call costs as long as some 50 kB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DirtyRows:
    """Rows of a group at a commit whose newest value a trainer has, and the servers have not."""

    rows: SlottedRows
    values: RowValues


def start_servers(
    addresses: Sequence[str],
    description: JobDescription,
    trainers: int,
    *,
    role: str,
    secret: str,
    deadline_s: float = 60.0,
    start: int = 0,
    first_batch: int = 0,
    first_commit: int = 0,
    committed: Sequence[ServerFolder] | None = None,
) -> None:
    """Describe the job to all servers; a second time with the same description is no error.

    Parameters
    ----------
    start : number of this start of the job.
    first_batch, first_commit : numbers of the first ones.
    committed : the servers' folders at the last commit; None: there was none.

    Raises
    ------
    EmbeddingError : a server serves another job.
    CommunicationError : a server failed; names it.
    """
    with _Servers(addresses, role, secret, deadline_s) as servers:
        head = {
            "description": description.to_fields(),
            "trainers": trainers,
            "start": start,
            "first_batch": first_batch,
            "first_commit": first_commit,
            "committed": None if committed is None else [asdict(folder) for folder in committed],
        }
        places = [
            {**head, "server": server, "servers": servers.count} for server in range(servers.count)
        ]
        servers.call(
            "start", [(server, RpcMessage(head=place)) for server, place in enumerate(places)]
        )


def mark_servers(
    addresses: Sequence[str], commit: int, *, role: str, secret: str, deadline_s: float = 60.0
) -> None:
    """Tell all servers that all of them have made a commit.

    Raises
    ------
    CommunicationError : a server failed; names it.
    """
    with _Servers(addresses, role, secret, deadline_s) as servers:
        servers.call_all("marked", RpcMessage(head={"commit": commit}))


class ServerConnections:
    """One trainer's connections to all servers.

    Fetches, write-backs, commits, and all other calls may be in one thread each. Every one of them
    raises CommunicationError, naming the server, where it fails or the deadline passes.

    Parameters
    ----------
    addresses : of all servers, in their order.
    deadline_s : of every call: the time that a fetch may wait for other trainers is within it.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        description: JobDescription,
        trainer: int,
        *,
        secret: str,
        deadline_s: float = 60.0,
    ) -> None:
        self._description = description
        self._trainer = trainer
        role = f"trainer {trainer}"
        self._fetches, self._writes, self._commits, self._others = (
            _Servers(addresses, role, secret, deadline_s) for _ in range(4)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fetch(self, batch: int, group: int, after: int, rows: SlottedRows) -> RowValues:
        """Return the rows that a batch fetches, in their order.

        The servers answer when all trainers' evictions after batch `after` are written.
        """
        head = {"trainer": self._trainer, "batch": batch, "group": group, "after": after}
        return self._rows(self._fetches, "fetch", head, rows.ids, rows.ends)

    def write_back(
        self, batch: int, group: int, rows: SlottedRows, values: RowValues, *, commit: int = 0
    ) -> None:
        """Write the rows that this trainer evicts after a batch; of every batch, in their order.

        It is called with no rows, too: servers count the batches.

        Parameters
        ----------
        commit : number of the commit that the rows belong to.
        """
        head = {"trainer": self._trainer, "batch": batch, "group": group, "commit": commit}
        servers = self._writes
        tables = self._description.groups[group].tables
        self._check(tables, rows.ids, rows.ends)
        most = _most_rows(len(rows.ids), self._description.groups[group])
        calls: list[tuple[int, RpcMessage]] = []
        for of_server in by_server(rows.ids, rows.ends, servers.count):
            parts = [*of_server.parts(most)]
            for part in parts:
                columns = {"values": part.gathered(values)}
                calls.append(
                    (part.server, _message({**head, "calls": len(parts)}, part, **columns))
                )
        servers.call("write_back", calls)

    def commit(self, commit: int, dirty: Sequence[DirtyRows]) -> Mapping[str, Any]:
        """Return, when all servers have logged a commit, what they need to begin from it.

        The servers wait for the commits of all trainers. Rows that are written back later belong to
        a later commit, and may be on their way meanwhile.

        Parameters
        ----------
        dirty : of every group.

        Returns
        -------
        committed : `groups` of every server, in their order, as `ServerFolder` has them.
        """
        servers = self._commits
        for group, part_of_group in enumerate(dirty):
            head = {"group": group, "commit": commit}
            rows, values = part_of_group.rows, part_of_group.values
            servers.call(
                "write_dirty",
                [
                    (part.server, _message(head, part, values=part.gathered(values)))
                    for part in by_server(rows.ids, rows.ends, servers.count)
                    if len(part.ids)
                ],
            )
        replies = servers.call_all(
            "commit", RpcMessage(head={"trainer": self._trainer, "commit": commit})
        )
        return {"groups": [reply.head["groups"] for reply in replies]}

    def read(self, group: int, ids: Ids, ends: Ids) -> RowValues:
        """Return rows of a group, in their order; none is created.

        Those that do not exist have their initial values.

        Parameters
        ----------
        ends : [tables of the group]: where the ids of each table end.

        Raises
        ------
        EmbeddingError : an id is outside its table.
        CommunicationError : a server failed; names it.
        """
        return self._rows(self._others, "read", {"group": group}, ids, ends)

    def load(self, table: int, ids: Ids, values: RowValues) -> None:
        """Write rows of a table.

        Parameters
        ----------
        values : [rows, dim], whose optimizer's state is the initial one then, or
            [rows, dim + state].

        Raises
        ------
        EmbeddingError : an id is outside the table, or the values have another type or width.
        CommunicationError : a server failed; names it.
        """
        ends = np.array([len(ids)])
        self._check((table,), ids, ends)
        self._others.call(
            "load",
            [
                (
                    part.server,
                    RpcMessage(
                        head={"table": table},
                        columns={"ids": part.ids, "values": part.gathered(values)},
                    ),
                )
                for part in by_server(ids, ends, self._others.count)
            ],
        )

    def export(self, table: int, after: int, limit: int) -> tuple[Ids, RowValues]:
        """Return the first `limit` rows of a table whose ids are above `after`, rising.

        Fewer are the last ones. The limit is 1 or more.

        Raises
        ------
        CommunicationError : a server failed; names it.
        """
        pages: list[tuple[Ids, RowValues]] = []
        left, complete = limit, False
        while left > 0 and not complete:
            ids, values, complete = self._page(table, after, left)
            pages.append((ids, values))
            left -= len(ids)
            after = int(ids[-1]) if len(ids) else after
        if len(pages) == 1:
            return pages[0]
        return (
            np.concatenate([ids for ids, _ in pages]),
            np.concatenate([values for _, values in pages]),
        )

    def _page(self, table: int, after: int, limit: int) -> tuple[Ids, RowValues, bool]:
        """Return up to `limit` rows as `export`, and whether no others have ids above `after`.

        Each server is asked for its share of the ids; where one has more, its last id is the end.
        """
        servers = self._others
        share = min(limit, -(-limit // servers.count) + _EXPORT_MARGIN)
        head = {"table": table, "after": after, "limit": share}
        columns = [reply.columns for reply in servers.call_all("rows", RpcMessage(head=head))]
        ends = [own["ids"][-1] for own in columns if len(own["ids"]) == share]
        ids = np.concatenate([own["ids"] for own in columns])
        values = np.concatenate([own["values"] for own in columns])
        if servers.count > 1:
            order = np.argsort(ids)
            most = np.searchsorted(ids[order], min(ends), "right") if ends else len(ids)
            order = order[: min(limit, int(most))]
            ids, values = ids[order], values[order]
        return ids, values, not ends

    def status(self) -> tuple[Mapping[str, Any], ...]:
        """Return each server's figures: its rows and bytes, and those of every table."""
        replies = self._others.call_all("status", RpcMessage(head={}))
        return tuple(reply.head for reply in replies)

    def close(self) -> None:
        """Close the connections, which ends calls of other threads."""
        for servers in (self._fetches, self._writes, self._commits, self._others):
            servers.close()

    def _check(self, tables: Sequence[int], ids: Ids, ends: Ids) -> None:
        """Raise EmbeddingError for ids outside their table, before any server writes rows."""
        for number, own in zip(tables, np.split(ids, ends[:-1]), strict=True):
            table = self._description.tables[number]
            most = table.most_id
            if len(own) and not 0 <= int(own.min()) <= int(own.max()) <= most:
                wrong = own[(own < 0) | (own > most)][0]
                raise EmbeddingError(f"table {table.name}: id is {wrong}, needs 0 to {most}")

    def _rows(
        self, servers: "_Servers", method: str, head: Mapping[str, Any], ids: Ids, ends: Ids
    ) -> RowValues:
        group = self._description.groups[head["group"]]
        values = np.empty((len(ids), group.width), group.dtype)
        most = _most_rows(len(ids), group)
        parts = [
            part
            for rows in by_server(ids, ends, servers.count)
            for part in rows.parts(most)
            if len(part.ids) or len(ids) == 0
        ]

        def join(call: int, reply: RpcMessage) -> None:
            part = parts[call]
            part.scatter(_values(reply, part, group), values)

        servers.call(method, [(part.server, _message(head, part)) for part in parts], join)
        return values


def _most_rows(rows: int, group: TableGroup) -> int:
    """Return the rows of each call of several with so many rows in all."""
    return max(1, _LEAST_BYTES // group.row_bytes, -(-rows // _PARTS))


def _message(head: Mapping[str, Any], part: ServerRows, **columns: NDArray[Any]) -> RpcMessage:
    return RpcMessage(head=head, columns={"ids": part.ids, "ends": part.ends, **columns})


def _values(reply: RpcMessage, part: ServerRows, group: TableGroup) -> RowValues:
    values = reply.columns.get("values")
    shape = len(part.ids), group.width
    if values is None or values.shape != shape or values.dtype != group.dtype:
        raise CommunicationError(f"server {part.server} answered with rows of another shape")
    return values


class _Servers:
    """Clients of all servers, which are called at the same time; by one thread."""

    def __init__(self, addresses: Sequence[str], role: str, secret: str, deadline_s: float) -> None:
        self.count = len(addresses)
        self._clients = [
            RpcClient(
                address, peer_role=f"server {server}", role=role, secret=secret,
                deadline_s=deadline_s,
            )
            for server, address in enumerate(addresses)
        ]  # fmt: skip
        self._threads = ThreadPoolExecutor(
            self.count + _PARTS, thread_name_prefix="calls of servers"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        calls: Sequence[tuple[int, RpcMessage]],
        on_reply: Callable[[int, RpcMessage], None] = lambda _call, _reply: None,
    ) -> list[RpcMessage]:
        """Make calls of servers at the same time; the first failure is raised at once.

        Parameters
        ----------
        calls : numbers of servers, and requests.
        on_reply : called with every call's number and its reply as it arrives, by some thread.

        Returns
        -------
        The replies, in the order of the calls.
        """

        def exchange(call: int) -> RpcMessage:
            server, message = calls[call]
            reply = self._clients[server].call(method, message)
            on_reply(call, reply)
            return reply

        if len(calls) == 1:
            return [exchange(0)]
        try:
            replies = [self._threads.submit(exchange, call) for call in range(len(calls))]
        except RuntimeError as error:  # another thread closed this meanwhile
            raise CommunicationError(f"servers, {method}: the connection was closed") from error
        ended, _ = wait(replies, return_when=FIRST_EXCEPTION)
        for reply in ended:
            reply.result()
        return [reply.result() for reply in replies]

    def call_all(self, method: str, message: RpcMessage) -> list[RpcMessage]:
        """Make one call of all servers, and return the replies in their order."""
        return self.call(method, [(server, message) for server in range(self.count)])

    def close(self) -> None:
        """End calls."""
        for client in self._clients:
            client.close()
        self._threads.shutdown(wait=False)
