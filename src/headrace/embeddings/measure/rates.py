"""Processor time that the processes of a job take on this machine, by short runs of their code."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.embeddings.data.examples import Examples
from headrace.embeddings.profile import ProcessorSeconds
from headrace.embeddings.run.batch_messages import decode_ids, encode_batch, encode_ids
from headrace.embeddings.run.batches import SlottedRows
from headrace.embeddings.run.cacher.cacher import CacherOptions, dispatched, id_batch
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.rpc.calls import RpcServer
from headrace.embeddings.run.servers.row_client import ServerConnections, start_servers
from headrace.embeddings.run.servers.row_server import RowService
from headrace.embeddings.run.trainers.cache import RowCache
from headrace.embeddings.run.trainers.optimizers import SGDUpdate
from headrace.embeddings.run.trainers.updated_rows import UpdatedRows
from headrace.embeddings.tables import EmbeddingTable, InitialValues, TableGroup, table_groups
from headrace.executor import Executor, receive, send

_SAMPLE = 8
"""Batches that are kept for the cacher, the server and the trainer."""

_ROUNDS = 5
_PREFETCH = 2


class MeasuredBatches:
    """Batches that another iterator reads, and the processor time of reading them.

    Attributes
    ----------
    sample : the first batches that have ids: bags can all be empty.
    """

    def __init__(self, batches: Iterator[Examples]) -> None:
        self._batches = batches
        self._seconds = 0.0
        self._examples = 0
        self.sample: list[Examples] = []

    def __iter__(self) -> Iterator[Examples]:
        """Yield the batches."""
        while True:
            began = time.process_time()
            examples = next(self._batches, None)
            self._seconds += time.process_time() - began
            if examples is None:
                return
            self._examples += len(examples)
            if len(self.sample) < _SAMPLE and any(map(len, examples.ids)):
                self.sample.append(examples)
            yield examples

    def processor_seconds(self, trainers: int, dim: int) -> ProcessorSeconds:
        """Return the processor time of all processes of a job on these examples.

        Parameters
        ----------
        dim : numbers of a row, without a state beside them.
        """
        # the last batch of the data may be shorter
        sample = [batch for batch in self.sample if len(batch) == len(self.sample[0])]
        tables = tuple(
            EmbeddingTable(name=str(number), rows=0, dim=dim, initial=InitialValues(scale=1.0))
            for number in range(len(sample[0].ids))
        )
        groups = table_groups(tables)
        rows = _distinct_rows(max(sample, key=lambda batch: sum(map(len, batch.ids))))
        train, exchange = _training_s(rows, groups[0])
        return ProcessorSeconds(
            read=self._seconds / self._examples,
            decide=_deciding_s(sample, tables, groups, trainers),
            serve=_serving_s(rows, tables, groups),
            train=train,
            exchange=exchange,
        )


def _distinct_rows(examples: Examples) -> SlottedRows:
    ids = [np.unique(column) for column in examples.ids]
    return SlottedRows(
        ends=np.cumsum([len(column) for column in ids]),
        ids=np.concatenate(ids),
        slots=np.empty(0, np.uint32),
    )


def _deciding_s(
    sample: Sequence[Examples],
    tables: tuple[EmbeddingTable, ...],
    groups: tuple[TableGroup, ...],
    trainers: int,
) -> float:
    """Return the seconds of the cacher for an example."""
    messages = [encode_ids(id_batch(examples)) for examples in sample]
    options = CacherOptions(
        tables=tables,
        groups=groups,
        slots=(sum(map(len, (ids for examples in sample for ids in examples.ids))),) * len(groups),
        trainers=trainers,
        lookahead=max(_PREFETCH, len(sample) // 2),
        prefetch=_PREFETCH,
    )
    began = time.process_time()
    for parts in dispatched(map(decode_ids, messages), options):
        for part in parts:
            encode_batch(part)
    return (time.process_time() - began) / sum(map(len, sample))


def _serving_s(
    rows: SlottedRows, tables: tuple[EmbeddingTable, ...], groups: tuple[TableGroup, ...]
) -> float:
    """Return the seconds of a server for a row, given or taken: the caller takes as long."""
    description = JobDescription(
        tables=tables,
        columns=tuple((number,) for number in range(len(tables))),
        groups=groups,
        slots=(1,),
        seed=0,
        data={},
    )
    secret = secrets.token_hex()
    with RpcServer("server 0", RowService(0, 1).methods, secret=secret) as server:
        addresses = [server.address]
        start_servers(addresses, description, 1, role="cacher", secret=secret)
        with ServerConnections(addresses, description, 0, secret=secret) as servers:
            values = servers.fetch(0, 0, -1, rows)  # creates them
            batches = iter(range(_ROUNDS))

            def there_and_back() -> None:
                servers.fetch(0, 0, -1, rows)
                servers.write_back(next(batches), 0, rows, values)

            return _processor_s(there_and_back) / (2 * 2 * len(rows.ids))


def _training_s(rows: SlottedRows, group: TableGroup) -> tuple[float, float]:
    """Return the seconds of a trainer for a row that it uses, and for one that it exchanges.

    Half of the rows are updated by the gradients of another trainer, too, and go to it; its rows
    come for the other half.
    """
    count = len(rows.ids)
    cache = RowCache(group, count, torch.device("cpu"))
    slots, half = torch.randperm(count), torch.arange(count // 2)
    update = SGDUpdate(learning_rate=0.0)
    gradients = torch.zeros(count, group.dim)

    def use() -> None:
        cache.numbers(slots)
        UpdatedRows(cache, gradients, torch.arange(count), slots, count).update_alone(update, 1)

    def exchange() -> None:
        sent = gradients.index_select(0, half + count // 2)
        updated = UpdatedRows(cache, gradients, half, slots[: count // 2], 0)
        updated.update_shared(sent, half, (0, len(half)), 0, update, 1)
        returned = updated.rows.index_select(0, half)
        updated.write_shared()
        cache.write(slots[len(half) : 2 * len(half)], returned)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # gradients there, and rows back
        exchange_s = _processor_s(exchange) / max(1, 2 * len(half))
        return _processor_s(use) / count, exchange_s + _sending_s(gradients.numpy())
    finally:
        torch.set_num_threads(threads)


def _sending_s(rows: NDArray[np.float32]) -> float:
    """Return the seconds of a trainer for a row that it sends and one that it receives."""
    secret = secrets.token_hex()
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        trainers = [
            Executor(rank, 2, host="127.0.0.1", secret=secret, shared_memory=False)
            for rank in range(2)
        ]
        for trainer in trainers:
            stack.callback(trainer.close)
        addresses = [trainer.address for trainer in trainers]
        for connected in [threads.submit(trainer.connect, addresses) for trainer in trainers]:
            connected.result()
        received = [np.empty_like(rows) for _ in trainers]

        def exchange() -> None:
            under_way = [
                receive(trainer, array, 1 - rank, 0)
                for rank, (trainer, array) in enumerate(zip(trainers, received, strict=True))
            ]
            under_way += [send(trainer, rows, 1 - rank, 0) for rank, trainer in enumerate(trainers)]
            for message in under_way:
                message.wait()

        return _processor_s(exchange) / (len(trainers) * len(rows))


def _processor_s(work: Callable[[], None]) -> float:
    """Return the median processor time of some rounds of work."""
    seconds: list[float] = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return sorted(seconds)[_ROUNDS // 2]
