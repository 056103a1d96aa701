"""A trainer's embedding rows: fetched before a batch, read by its model, updated after it.

Three threads: one prepares coming batches and fetches their rows, the training thread computes and
does the critical exchange, one does the delayed exchange and evictions.
"""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.handoff import Handoff
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.run.step_times import Laps, TrainerTimes
from headrace.embeddings.run.trainers.cache import HostCopies, RowCache, indices
from headrace.embeddings.run.trainers.dense import NO_AVERAGE, DenseAverage
from headrace.embeddings.run.trainers.optimizers import RowOptimizer, RowUpdate
from headrace.embeddings.run.trainers.row_order import RowOrder
from headrace.embeddings.run.trainers.synchronise import (
    BatchExchange,
    RowCommit,
    RowSynchronisation,
    batch_exchange,
)
from headrace.embeddings.tables import TableGroup
from headrace.executor import DEFAULT_DEADLINE_S, Executor, receive

_ENDLESS_S = 1e9
_CHECK_S = 0.1
"""Seconds between looks at the other threads and trainers, while a batch does not arrive."""

_JOIN_S = 30.0
"""Seconds that a closed stream and closed servers have to end the fetching thread."""

Pooling = Literal["sum", "mean"]


class BatchStream(Protocol):
    """A trainer's parts of the batches, in their order."""

    def __next__(self) -> TrainerBatch:
        """Return the next; StopIteration after the last one.

        Raises
        ------
        CommunicationError : what makes them failed, or the deadline passed.
        """
        ...

    def note(self, times: TrainerTimes) -> None:
        """Note the times of a step, for what looks at the whole job."""
        ...

    def close(self) -> None:
        """End a `__next__` that waits in another thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TableLookup:
    """Rows of one table that this trainer uses in a batch.

    Attributes
    ----------
    leaf : [used rows, dim], a parameter of which the backward pass computes the gradient.
    ids : [ids of the trainer's examples]: the row of each, in `leaf`.
    lengths : [examples]: ids of each example; None: one each.
    padding : row in `leaf` that is never updated, and is no part of a sum or mean; None: none is.
    """

    leaf: nn.Parameter
    ids: Tensor
    lengths: Tensor | None
    padding: int | None = None

    def pooled(self, pooling: Pooling = "sum") -> Tensor:
        """Return each example's row, or the sum or mean of its rows: [examples, dim].

        Those of an example without ids are zeros.
        """
        if self.lengths is None:
            return functional.embedding(self.ids, self.leaf, padding_idx=self.padding)
        offsets = self.lengths.cumsum(0) - self.lengths
        return functional.embedding_bag(
            self.ids, self.leaf, offsets, mode=pooling, padding_idx=self.padding
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RowsOfBatch:
    """A trainer's part of a batch, with its rows.

    Attributes
    ----------
    tables : rows of every table of the job.
    """

    batch: TrainerBatch
    tables: tuple[TableLookup, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class _Prefetched:
    """A batch whose rows that it fetches are in the caches.

    Attributes
    ----------
    used_slots, ids : of every group.
    lengths : of every table.
    arrived_s : when the cacher's part of the batch was there, by `time.perf_counter`.
    times : of the fetch.
    """

    exchange: BatchExchange
    used_slots: tuple[Tensor, ...]
    ids: tuple[Tensor, ...]
    lengths: tuple[Tensor | None, ...]
    arrived_s: float
    times: TrainerTimes


class TrainerRows:
    """A trainer's batches with their embedding rows, for a training loop.

    ::

        with TrainerRows(...) as rows:
            for batch in rows:
                pooled = [table.pooled() for table in batch.tables]
                loss = ...  # the mean over the trainer's examples
                loss.backward()
                rows.step()

    Gradients are averaged over the examples of all trainers. Not tried on a GPU.

    Parameters
    ----------
    stream : of this trainer's parts of batches; closed at the end, as `servers` are.
    executor : of the trainers' group, connected; a trainer's number is its rank. Not closed.
    optimizers, slots : of every group of tables; the rows that the trainer's caches have room for.
    prefetch : batches that are fetched before their use.
    tag : first of the tags of messages, at most 4 for each group and one more are used.
    deadline_s : of each message between trainers.
    first_commit, steps : number of the first commit, and training steps before it.

    Attributes
    ----------
    steps : of training so far, by which some optimizers weigh rows' state.
    """

    def __init__(
        self,
        stream: BatchStream,
        servers: ServerConnections,
        executor: Executor,
        groups: Sequence[TableGroup],
        optimizers: Sequence[RowOptimizer],
        *,
        slots: Sequence[int],
        prefetch: int,
        device: torch.device | None = None,
        tag: int = 0,
        deadline_s: float = DEFAULT_DEADLINE_S,
        first_commit: int = 0,
        steps: int = 0,
    ) -> None:
        self._stream = stream
        self._servers = servers
        self._executor = executor
        self._groups = tuple(groups)
        self._optimizers = tuple(optimizers)
        self._device = device or torch.device("cpu")
        self._caches = tuple(
            RowCache(group, count, self._device) for group, count in zip(groups, slots, strict=True)
        )
        self._synchronisation = RowSynchronisation(
            executor,
            servers,
            self._caches,
            self._device,
            tag=tag + 1,
            deadline_s=deadline_s,
            first_commit=first_commit,
        )
        self._commit: RowCommit | None = None
        # No trainer sends it: it fails when the group does, also while nothing else is received.
        self._group_end = receive(executor, np.empty(0), -1, tag, deadline_s=_ENDLESS_S)
        self._order = RowOrder(slots) if executor.ranks == 1 else None
        self._prefetch_limit = prefetch
        self._prefetched = Handoff[_Prefetched](prefetch)
        self._current: tuple[_Prefetched, RowsOfBatch] | None = None
        self.steps = steps
        self._laps = Laps()
        self._commit_wait_s = 0.0
        self._delayed_times: TrainerTimes | None = None
        self._sums = TrainerTimes()
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """Fetch rows of the stream's batches from now on."""
        self._complete = False
        self._thread = threading.Thread(target=self._prefetch, name="fetched rows", daemon=True)
        self._thread.start()

    def restart(self, stream: BatchStream) -> None:
        """Go on with another stream, after the last batch: those of another epoch.

        Its batches' numbers go on from those before.
        """
        assert self._complete, "the last batch comes first"
        self._stream.close()
        self._thread.join(_JOIN_S)
        self._stream = stream
        self._prefetched = Handoff[_Prefetched](self._prefetch_limit)
        self._begin()

    @property
    def times(self) -> TrainerTimes:
        """Sums over the steps so far; those of the last one come with the next."""
        return replace(self._sums)

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> RowsOfBatch:
        """Return the next batch, when its rows are in the caches.

        Raises
        ------
        CommunicationError : a trainer, a server or what makes the batches failed.
        EmbeddingError : the batch before had no `step`.
        """
        if self._current is not None:
            raise EmbeddingError(
                f"batch {self._current[1].batch.batch} had no step: call it after backward(), and "
                "where a GradScaler skips steps, pass it as scaler="
            )
        if self._delayed_times is None:  # an epoch begins
            self._laps.lap()
        loop_s = self._laps.lap()
        began_s = self._laps.at_s
        prefetched = self._take()
        if prefetched is None:
            self._synchronisation.finish()
            self._complete_times(None)
            self._complete = True
            raise StopIteration
        times, wait_s = prefetched.times, self._laps.lap()
        times.batch_wait_s = min(max(0.0, prefetched.arrived_s - began_s), wait_s)
        times.fetch_wait_s = wait_s - times.batch_wait_s
        times.compute_s = loop_s
        times.ready_batches = len(self._prefetched)
        batch = self._rows(prefetched)
        self._prefetched.release()
        self._synchronisation.let_delayed()
        times.copy_s = self._laps.lap()
        self._current = prefetched, batch
        return batch

    def step(self, average: DenseAverage = NO_AVERAGE) -> None:
        """Update the rows of the batch by their gradients.

        The optimizers' options are those of now. Rows of a table without a gradient, and all rows
        of a share without examples, get one of zeros.

        Parameters
        ----------
        average : of the dense part's gradients in the backward pass, for the step's times.

        Raises
        ------
        CommunicationError : a trainer or server failed.
        EmbeddingError : there is no batch; an option of an optimizer is not served.
        """
        if self._current is None:
            raise EmbeddingError("there is no batch to step: take one from the iterator first")
        self._note_computation(average)
        updates = [optimizer.update() for optimizer in self._optimizers]
        gradients = [self._gradients(group, self._current[1]) for group in self._groups]
        self.steps += 1
        self._end_batch(gradients, updates)

    def skip(self, average: DenseAverage = NO_AVERAGE) -> None:
        """Leave the rows of the batch as they are, in place of `step`; at all trainers alike.

        Raises
        ------
        CommunicationError : a trainer or server failed.
        EmbeddingError : there is no batch.
        """
        if self._current is None:
            raise EmbeddingError("there is no batch to skip: take one from the iterator first")
        self._note_computation(average)
        batch = self._current[1]
        gradients = [_zeros(group, batch) for group in self._groups]
        self._end_batch(gradients, [_unchanged] * len(self._groups))

    @property
    def pending(self) -> RowsOfBatch | None:
        """The batch that had no `step` or `skip` yet; None: there is none."""
        return None if self._current is None else self._current[1]

    def _note_computation(self, average: DenseAverage) -> None:
        """Split the time since the batch was returned into computing and waiting."""
        assert self._current is not None
        times, seconds = self._current[0].times, self._laps.lap()
        times.dense_wait_s = min(average.wait_s, seconds)
        times.commit_wait_s, self._commit_wait_s = self._commit_wait_s, 0.0
        times.compute_s += seconds - times.dense_wait_s - times.commit_wait_s
        times.dense_bytes = average.sent_bytes

    def _end_batch(self, gradients: Sequence[Tensor], updates: Sequence[RowUpdate]) -> None:
        assert self._current is not None
        exchange, times = self._current[0].exchange, self._current[0].times
        times.update_s = self._laps.lap()  # what made the gradients
        commit = self._synchronisation.step(exchange, gradients, updates, self.steps, times)
        self._laps.lap()  # counted there
        self._complete_times(times)
        self._commit = commit or self._commit
        self._current = None

    def _complete_times(self, times: TrainerTimes | None) -> None:
        """Note the times of the step before, whose delayed exchange has ended, and hold others."""
        complete, self._delayed_times = self._delayed_times, times
        if complete is not None:
            self._sums.add(complete)
            self._stream.note(complete)

    @contextmanager
    def waiting_for_commit(self) -> Generator[None]:
        """Count the time of a block, before a batch's step, as a wait for the commit before."""
        laps = Laps()
        yield
        self._commit_wait_s += laps.lap()

    def commit(self, batch: int) -> RowCommit:
        """Begin a commit after the last batch of an epoch, of this number.

        Raises
        ------
        CommunicationError : a trainer or server failed.
        """
        return self._synchronisation.commit(batch)

    def take_commit(self) -> RowCommit | None:
        """Return the commit that began with the batch before, once; None: none did."""
        commit, self._commit = self._commit, None
        return commit

    def close(self, reason: str | None = None) -> None:
        """End all threads and connections; before the last batch, the other trainers too.

        Parameters
        ----------
        reason : which other trainers get.
        """
        if self._closed:
            return
        self._closed = True
        if not self._complete:
            rank = self._executor.rank
            self._executor.abort(reason or f"trainer {rank} was closed before its last batch")
        self._prefetched.close()
        self._stream.close()
        self._servers.close()
        self._synchronisation.close()
        self._thread.join(_JOIN_S)

    def close_after(self, error: BaseException | None) -> None:
        """Close; the other trainers get the error, if there is one."""
        reason = f"trainer {self._executor.rank} failed: {type(error).__name__}: {error}"
        self.close(None if error is None else reason)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, *_others: object
    ) -> None:
        """Close; the other trainers get the error."""
        self.close_after(error)

    def _take(self) -> _Prefetched | None:
        """Return the next batch; the wait ends with a failure of any thread or trainer.

        Without one it ends with the deadlines of the stream and of the servers.
        """
        prefetched, timeout_s = self._prefetched, 0.0
        while True:
            self._synchronisation.check()
            if self._group_end.done():
                self._group_end.wait()
            with prefetched.changed:
                if prefetched.changed.wait_for(prefetched.ready, timeout_s):
                    return prefetched.take(release=False)
            # its rows may be those that are evicted behind the delayed exchange
            self._synchronisation.let_delayed()
            timeout_s = _CHECK_S

    def _prefetch(self) -> None:
        """Prepare batches and fetch their rows, until the last one or a failure."""
        copies = HostCopies(self._device, own_stream=True)
        try:
            while (batch := next(self._stream, None)) is not None:
                laps = Laps()
                with copies.beside():
                    prefetched = self._fetch(batch, copies, laps.at_s)
                prefetched.times.fetch_s = laps.lap()
                self._prefetched.set_room(batch.prefetch)
                if not self._prefetched.put(prefetched):
                    return
        except BaseException as error:
            self._prefetched.fail(error)
        else:
            self._prefetched.end()

    def _fetch(self, batch: TrainerBatch, copies: HostCopies, arrived_s: float) -> _Prefetched:
        executor, device = self._executor, self._device
        times = TrainerTimes(batches=1)
        if self._order is not None:
            batch = self._order.by_id(batch)
        exchange = batch_exchange(batch, executor.rank, executor.ranks, device)
        for number, (part, cache) in enumerate(zip(batch.groups, self._caches, strict=True)):
            if len(part.fetched.slots) > 0:
                rows = self._servers.fetch(batch.batch, number, part.after, part.fetched)
                cache.write(indices(part.fetched.slots, device), copies.from_host(rows))
                times.fetched_rows += len(rows)
                times.fetched_bytes += rows.nbytes
        return _Prefetched(
            exchange=exchange,
            used_slots=tuple(indices(part.slots[: part.used], device) for part in batch.groups),
            ids=tuple(indices(part.rows_of_ids, device) for part in batch.groups),
            lengths=tuple(
                None if lengths is None else indices(lengths, device) for lengths in batch.lengths
            ),
            arrived_s=arrived_s,
            times=times,
        )

    def _rows(self, prefetched: _Prefetched) -> RowsOfBatch:
        """Return a batch with its rows gathered from the caches."""
        batch = prefetched.exchange.batch
        tables: dict[int, TableLookup] = {}
        columns = zip(
            self._groups,
            self._caches,
            batch.groups,
            prefetched.used_slots,
            prefetched.ids,
            strict=True,
        )
        for group, cache, part, slots, ids in columns:
            leaves = cache.numbers(slots).tensor_split(part.used_ends[:-1].tolist())
            ids_of_tables = ids.tensor_split(part.id_ends[:-1].tolist())
            rows_of_tables = np.split(part.rows_of_ids, part.id_ends[:-1])
            for table, leaf, table_ids, table_rows in zip(
                group.tables, leaves, ids_of_tables, rows_of_tables, strict=True
            ):
                tables[table] = TableLookup(
                    leaf=nn.Parameter(leaf),
                    ids=table_ids,
                    lengths=prefetched.lengths[table],
                    padding=_padding(batch, table, table_rows),
                )
        return RowsOfBatch(batch=batch, tables=tuple(tables[table] for table in sorted(tables)))

    def _gradients(self, group: TableGroup, rows: RowsOfBatch) -> Tensor:
        """Return the gradients of a group's rows, weighted by this trainer's examples."""
        batch = rows.batch
        if batch.examples == 0:
            return _zeros(group, rows)
        leaves = [rows.tables[table].leaf for table in group.tables]
        gradients = torch.cat(
            [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        ).detach()
        if batch.examples != batch.examples_in_all:
            gradients.mul_(batch.examples / batch.examples_in_all)
        return gradients


def _padding(batch: TrainerBatch, table: int, rows_of_ids: NDArray[np.uint32]) -> int | None:
    """Return the row of a table's padding among its used rows; None: the batch has none."""
    if not batch.padding or batch.padding[table] < 0:
        return None
    return int(rows_of_ids[batch.padding[table]])


def _zeros(group: TableGroup, rows: RowsOfBatch) -> Tensor:
    """Return gradients of zeros of a group's rows."""
    return torch.cat([torch.zeros_like(rows.tables[table].leaf) for table in group.tables]).detach()


def _unchanged(rows: Tensor, gradients: Tensor, step: int) -> None:
    """Update no row."""
    del rows, gradients, step
