"""Stand-ins of a job's cacher and server, for timing: drawn batches, and rows in one array.

    python -m benchmarks.embeddings.stand_in

The first message is {"kind", "listen", "trainers", ...}; the answer is {"address"}.
"""

import threading
from collections import deque
from typing import Any

import numpy as np

from benchmarks.embeddings.drawn import drawn_batches
from headrace.embeddings import EmbeddingTable, InitialValues, Synchronisation
from headrace.embeddings.data.generate import KAGGLE_ROWS
from headrace.embeddings.run.batch_messages import encode_batch
from headrace.embeddings.run.cacher import CacherOptions, dispatched, id_batch
from headrace.embeddings.run.rpc import Call, Message, RpcServer
from headrace.embeddings.tables import table_groups
from headrace.launch.worker import Receive, Send, run_worker

SECRET = "benchmark"
ROWS = 3_000_000
BUFFERED = 6


def tables(dim: int) -> tuple[EmbeddingTable, ...]:
    return tuple(
        EmbeddingTable(name=f"table{number}", rows=rows, dim=dim, initial=InitialValues(scale=0.01))
        for number, rows in enumerate(KAGGLE_ROWS)
    )


class Feeder:
    """Batches of all trainers, decided ahead."""

    def __init__(self, task: dict[str, Any]) -> None:
        kaggle = tables(task["dim"])
        self._options = CacherOptions(
            tables=kaggle,
            groups=table_groups(kaggle),
            slots=(task["slots"],),
            trainers=task["trainers"],
            lookahead=task["lookahead"],
            prefetch=task["prefetch"],
            synchronisation=Synchronisation(task["synchronisation"]),
        )
        self._ready: dict[int, deque[Message]] = {t: deque() for t in range(task["trainers"])}
        self._changed = threading.Condition()
        threading.Thread(target=self._decide, daemon=True).start()

    def _decide(self) -> None:
        drawn = drawn_batches(KAGGLE_ROWS)
        for parts in dispatched(map(id_batch, drawn), self._options):
            messages = [encode_batch(part) for part in parts]
            with self._changed:
                self._changed.wait_for(lambda: min(map(len, self._ready.values())) < BUFFERED)
                for trainer, message in enumerate(messages):
                    self._ready[trainer].append(message)
                self._changed.notify_all()

    def next(self, call: Call) -> Message:
        trainer = call.message.head["trainer"]
        with self._changed:
            call.wait(self._changed, lambda: len(self._ready[trainer]) > 0)
            message = self._ready[trainer].popleft()
            self._changed.notify_all()
        return message


class Store:
    """Rows in one array, several of which share memory."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._rows = np.zeros((ROWS, task["dim"]), np.float32)
        self._written = np.full(task["trainers"], -1)
        self._changed = threading.Condition()

    def _numbers(self, message: Message) -> np.ndarray:
        ids, ends = message.columns["ids"], message.columns["ends"]
        return (ids + np.repeat(np.arange(len(ends)) * 7919, np.diff(ends, prepend=0))) % ROWS

    def fetch(self, call: Call) -> Message:
        after = call.message.head["after"]
        with self._changed:
            call.wait(self._changed, lambda: bool(self._written.min() >= after))
        rows = self._rows.take(self._numbers(call.message), axis=0)
        return Message(head={}, columns={"values": rows})

    def write_back(self, call: Call) -> Message:
        self._rows[self._numbers(call.message)] = call.message.columns["values"]
        with self._changed:
            self._written[call.message.head["trainer"]] = call.message.head["batch"]
            self._changed.notify_all()
        return Message(head={})


def work(receive: Receive, send: Send) -> None:
    task = receive()
    if task["kind"] == "cacher":
        feeder = Feeder(task)
        methods = {"next": feeder.next}
    else:
        store = Store(task)
        methods = {"fetch": store.fetch, "write_back": store.write_back}
    with RpcServer(task["kind"], methods, secret=SECRET, host=task["listen"]) as server:
        send(address=server.address)
        receive()


if __name__ == "__main__":
    run_worker(work)
