"""Batches of evaluation data with their rows, which are read from the servers."""

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.embeddings.data.examples import Examples, share_ends
from headrace.embeddings.data.files import ExampleData, by_table, shared_lengths
from headrace.embeddings.data.origins import first_outside, origin_in_order
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.handoff import Handoff
from headrace.embeddings.run.model.leaves import ModuleRows
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.run.trainers.cache import HostCopies
from headrace.embeddings.tables import EmbeddingTable
from headrace.forks import ForkMark


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EvaluationRows:
    """One trainer's share of a batch of evaluation data.

    Attributes
    ----------
    examples : the share.
    tables : rows of every table that it uses.
    shared_lengths : see `Leaves.set`.
    """

    examples: Examples
    tables: tuple[ModuleRows, ...]
    shared_lengths: Mapping[int, torch.Tensor]


def evaluation_rows(
    data: ExampleData,
    description: JobDescription,
    servers: ServerConnections,
    trainer: int,
    trainers: int,
    device: torch.device,
) -> Generator[EvaluationRows]:
    """Yield a trainer's share of every batch of data, with the rows as they are at the servers.

    Raises
    ------
    EmbeddingError : an id is outside its table; names the example's file and line.
    CommunicationError : a server failed.
    """
    copies = HostCopies(device, own_stream=False)
    before = 0
    for examples in data.read():
        ends = [0, *share_ends(len(examples), trainers).tolist()]
        share = examples[ends[trainer] : ends[trainer + 1]]
        of_tables = by_table(share, description.columns)
        distinct: list[NDArray[np.int64]] = []
        numbers: list[NDArray[np.int64]] = []
        outside = first_outside(of_tables.ids, of_tables.lengths, description.tables)
        if outside is not None:
            place = origin_in_order(data, before + ends[trainer] + outside.example)
            raise outside.error(f"evaluation: {place}")
        for ids in of_tables.ids:
            own, inverse = np.unique(ids, return_inverse=True)
            distinct.append(own)
            numbers.append(inverse.astype(np.int64))
        before += len(examples)
        rows = _read(description, servers, distinct)
        yield EvaluationRows(
            examples=share,
            shared_lengths={
                column: copies.from_host(lengths)
                for column, lengths in shared_lengths(share, description.columns).items()
            },
            tables=tuple(
                ModuleRows(
                    rows=copies.from_host(values),
                    ids=copies.from_host(inverse),
                    lengths=None if lengths is None else copies.from_host(lengths),
                    padding=_padding(own, table),
                )
                for table, values, own, inverse, lengths in zip(
                    description.tables, rows, distinct, numbers, of_tables.lengths, strict=True
                )
            ),
        )


def ahead(rows: Generator[EvaluationRows]) -> Generator[EvaluationRows]:
    """Yield the same; a thread reads the next while a batch is evaluated.

    It is none of an executor's: workers of a DataLoader that were forked there end with an error.
    """
    coming: Handoff[EvaluationRows] = Handoff(1)

    def read() -> None:
        try:
            with closing(rows):
                for batch in rows:
                    if not coming.put(batch):
                        return
        except BaseException as error:  # of any kind: `take` raises it
            coming.end(error)
        else:
            coming.end()

    mark = ForkMark()
    thread = threading.Thread(target=read, daemon=True, name="evaluation rows")
    thread.start()
    try:
        while True:
            with coming.changed:
                coming.changed.wait_for(coming.ready)  # calls of the thread have deadlines
                batch = coming.take()
            if batch is None:
                return
            yield batch
    finally:
        if not mark.forked:  # a child has no such thread
            coming.close()
            thread.join()


def _read(
    description: JobDescription, servers: ServerConnections, ids: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.generic]]:
    """Return the numbers of rows that the model reads: of every table, [rows, dim]."""
    rows: dict[int, NDArray[np.generic]] = {}
    for number, group in enumerate(description.groups):
        own = [ids[table] for table in group.tables]
        ends = np.cumsum([len(column) for column in own])
        values = servers.read(number, np.concatenate(own), ends)[:, : group.dim]
        for table, part in zip(group.tables, np.split(values, ends[:-1]), strict=True):
            rows[table] = np.ascontiguousarray(part)
    return [rows[table] for table in range(len(ids))]


def _padding(ids: NDArray[np.int64], table: EmbeddingTable) -> int | None:
    """Return the number of a table's padding among rising ids; None: it is not among them."""
    if table.padding is None:
        return None
    number = int(np.searchsorted(ids, table.padding))
    return number if number < len(ids) and ids[number] == table.padding else None
