"""A server of rows (rank 1), and a trainer that times calls of it (rank 0)."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings import EmbeddingTable, InitialValues
from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.rpc.calls import EMPTY, RpcClient, RpcServer
from headrace.embeddings.run.rpc.messages import RpcMessage
from headrace.embeddings.run.servers.row_client import ServerConnections, start_servers
from headrace.embeddings.run.servers.row_server import RowService
from headrace.embeddings.tables import table_groups
from headrace.launch.worker import Receive, Send, run_worker

TABLES = 26
_SECRET = "of the benchmark"
_CREATED = 2_500
"""Rows of every table in a call that creates them."""


def main(receive: Receive, send: Send) -> None:
    """Serve, or time calls, by the task that the parent sends."""
    task = receive()
    if task["rank"] == 1:
        host, _, port = str(task["address"]).rpartition(":")
        block = np.zeros((task["fetched"], task["dim"]), np.float32)
        methods = {
            **RowService(0, 1).methods,
            "block": lambda _: RpcMessage(head={}, columns={"values": block}),
            "take": lambda _: EMPTY,
        }
        with RpcServer("server 0", methods, secret=_SECRET, host=host, port=int(port)):
            send(ready=True)
            receive()
    else:
        receive()  # the server is ready
        trainer = Trainer(task)
        send(ready=True)
        while rounds := receive().get("rounds"):
            send(seconds=trainer.seconds(rounds))


class Trainer:
    """Rows of a server, and the times of calls on some of them.

    The task's "rows" exist, of which "fetched" are fetched at a time; in "hashed" tables or others.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self._random = np.random.default_rng(0)
        rows = task["rows"] // TABLES
        self._count = task["fetched"] // TABLES
        self._ids = [
            self._random.integers(0, 1 << 62, rows)
            if task["hashed"]
            else self._random.permutation(rows)
            for _ in range(TABLES)
        ]
        initial = InitialValues(scale=0.1)
        size = 0 if task["hashed"] else rows
        tables = tuple(
            EmbeddingTable(name=str(number), rows=size, dim=task["dim"], initial=initial)
            for number in range(TABLES)
        )
        description = JobDescription(
            tables=tables,
            columns=tuple((number,) for number in range(TABLES)),
            groups=table_groups(tables),
            slots=(1,),
            seed=1,
            data={},
        )
        addresses = [task["address"]]
        start_servers(addresses, description, 1, role="cacher", secret=_SECRET)
        self._servers = ServerConnections(addresses, description, 0, secret=_SECRET)
        self._transport = RpcClient(
            task["address"], peer_role="server 0", role="trainer 0", secret=_SECRET
        )
        self._batch = 0
        for start in range(0, rows, _CREATED):
            ids = [own[start : start + _CREATED] for own in self._ids]
            self._servers.fetch(0, 0, -1, slotted(ids))

    def seconds(self, rounds: int) -> dict[str, list[float]]:
        """Return the seconds of rounds: rows, and one block of the same bytes, both ways."""
        seconds: dict[str, list[float]] = {}

        def timed(name: str, call: Callable[[], Any]) -> Any:
            began = time.perf_counter()
            result = call()
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            return result

        for _ in range(rounds):
            choices = [self._random.integers(0, len(own), self._count) for own in self._ids]
            rows = slotted([own[places] for own, places in zip(self._ids, choices, strict=True)])
            block = timed("block", lambda: self._transport.call("block").columns["values"])
            values = timed("fetch", lambda rows=rows: self._servers.fetch(0, 0, -1, rows))
            if values.shape != block.shape:
                raise ArithmeticError(f"{values.shape} rows instead of {block.shape}")
            changed = values + np.float32(1)
            message = RpcMessage(head={}, columns={"values": changed})
            timed("block written", lambda message=message: self._transport.call("take", message))
            timed("write back", lambda rows=rows, changed=changed: self._write(rows, changed))
            if not np.array_equal(self._servers.read(0, rows.ids, rows.ends), changed):
                raise ArithmeticError("rows are not as they were written")
        return seconds

    def _write(self, rows: SlottedRows, values: NDArray[np.float32]) -> None:
        self._servers.write_back(self._batch, 0, rows, values)
        self._batch += 1


def slotted(ids: Sequence[NDArray[np.int64]]) -> SlottedRows:
    """Return rows by their ids in each table."""
    return SlottedRows(
        ends=np.cumsum([len(own) for own in ids]),
        ids=np.concatenate(ids),
        slots=np.empty(0, np.uint32),
    )


if __name__ == "__main__":
    run_worker(main)
