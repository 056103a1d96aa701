"""A trainer's connections to the stand-ins."""

import queue
import threading
from contextlib import suppress

from benchmarks.embeddings.stand_in import SECRET
from headrace.embeddings.run.batch_messages import decode_batch
from headrace.embeddings.run.batches import SlottedRows, TrainerBatch
from headrace.embeddings.run.rpc import Message, RpcClient
from headrace.embeddings.run.servers import RowValues


class Stream:
    """Parts of batches, one asked for ahead."""

    def __init__(self, address: str, trainer: int) -> None:
        self._client = RpcClient(
            address, peer_role="cacher", role=f"trainer {trainer}", secret=SECRET
        )
        self._trainer = trainer
        self._ahead: queue.Queue[TrainerBatch | Exception] = queue.Queue(1)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with suppress(Exception):
            while True:
                answer = self._client.call("next", Message(head={"trainer": self._trainer}))
                self._ahead.put(decode_batch(answer))

    def __next__(self) -> TrainerBatch:
        batch = self._ahead.get()
        if isinstance(batch, Exception):
            raise batch
        return batch

    def close(self) -> None:
        self._ahead.put(StopIteration())
        self._client.close()


class Servers:
    """Rows; fetches and write-backs have a connection each."""

    def __init__(self, address: str, trainer: int) -> None:
        self._trainer = trainer
        self._fetch, self._write = (
            RpcClient(address, peer_role="server 0", role=f"trainer {trainer}", secret=SECRET)
            for _ in range(2)
        )

    def fetch(self, batch: int, group: int, after: int, rows: SlottedRows) -> RowValues:
        head = {"trainer": self._trainer, "batch": batch, "group": group, "after": after}
        columns = {"ids": rows.ids, "ends": rows.ends}
        return self._fetch.call("fetch", Message(head=head, columns=columns)).columns["values"]

    def write_back(self, batch: int, group: int, rows: SlottedRows, values: RowValues) -> None:
        head = {"trainer": self._trainer, "batch": batch, "group": group}
        columns = {"ids": rows.ids, "ends": rows.ends, "values": values}
        self._write.call("write_back", Message(head=head, columns=columns))

    def close(self) -> None:
        self._fetch.close()
        self._write.close()
