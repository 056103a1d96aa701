"""Exchange of gradients and rows between trainers after a batch, and the rows that leave.

The critical exchange is the training thread's. The delayed one is a background thread's while the
next batch computes; it ends before the next critical exchange begins, and the rows that leave the
caches are then written back to the servers. It is not tried on a GPU.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.servers.row_client import DirtyRows, ServerConnections
from headrace.embeddings.run.step_times import Laps, TrainerTimes
from headrace.embeddings.run.trainers.cache import HostCopies, RowCache, indices
from headrace.embeddings.run.trainers.exchange_lists import ExchangeLists, PeerRows, exchange_lists
from headrace.embeddings.run.trainers.optimizers import RowUpdate
from headrace.embeddings.run.trainers.updated_rows import UpdatedRows, update_order
from headrace.errors import CommunicationError
from headrace.executor import Exchange, Executor, Priority, all_to_all

_TAGS_OF_GROUP = 4
"""Gradients and rows, each critical and delayed."""

_MOST_DELAY_S = 0.1
"""For the training thread to gather its next rows before the delayed exchange begins."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PeerIndices:
    """`PeerRows` on the device of the caches."""

    rows: Tensor
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupExchange:
    """`ExchangeLists` on the device of the caches.

    Attributes
    ----------
    updated, alone, gradients_received, rows_sent : see `UpdateOrder`.
    updated_slots, slots_received : where the rows lie that this trainer updates or receives.
    """

    updated: Tensor
    alone: int
    updated_slots: Tensor
    gradients_sent: PeerIndices
    gradients_received: PeerIndices
    rows_sent: PeerIndices
    slots_received: PeerIndices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BatchExchange:
    """Exchanges after a batch, one for each group of tables.

    Attributes
    ----------
    evicted_slots, dirty_slots : of every group, of the rows that this trainer writes back, and of
        those that it writes at a commit.
    """

    batch: TrainerBatch
    critical: tuple[GroupExchange, ...]
    delayed: tuple[GroupExchange, ...]
    evicted_slots: tuple[Tensor, ...]
    dirty_slots: tuple[Tensor, ...]


def _on_device(peers: PeerRows, device: torch.device) -> PeerIndices:
    return PeerIndices(rows=indices(peers.rows, device), ends=peers.ends)


def _group_exchange(
    lists: ExchangeLists, slots: NDArray[np.uint32], device: torch.device
) -> GroupExchange:
    received, order = lists.rows_received, update_order(lists)
    return GroupExchange(
        updated=indices(order.updated, device),
        alone=order.alone,
        updated_slots=indices(slots[order.updated], device),
        gradients_sent=_on_device(lists.gradients_sent, device),
        gradients_received=_on_device(order.gradients_received, device),
        rows_sent=_on_device(order.rows_sent, device),
        slots_received=PeerIndices(rows=indices(slots[received.rows], device), ends=received.ends),
    )


def batch_exchange(
    batch: TrainerBatch, trainer: int, trainers: int, device: torch.device
) -> BatchExchange:
    """Return a trainer's exchanges after a batch."""
    critical: list[GroupExchange] = []
    delayed: list[GroupExchange] = []
    for group in batch.groups:
        lists = exchange_lists(group, trainer, trainers)
        critical.append(_group_exchange(lists[0], group.slots, device))
        delayed.append(_group_exchange(lists[1], group.slots, device))
    return BatchExchange(
        batch=batch,
        critical=tuple(critical),
        delayed=tuple(delayed),
        evicted_slots=tuple(indices(group.evicted.slots, device) for group in batch.groups),
        dirty_slots=tuple(indices(group.dirty.slots, device) for group in batch.groups),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RowCommit:
    """A commit of rows that is under way.

    Attributes
    ----------
    number : among the job's commits.
    batch : the last one whose updates it has.
    servers : what the servers need to begin from it, once they have logged it.
    """

    number: int
    batch: int
    servers: Future[Mapping[str, Any]]


class RowSynchronisation:
    """One trainer's exchanges and evictions, one batch after the other.

    Gradients are summed in the order of trainers, so that results do not depend on arrivals.

    Parameters
    ----------
    executor : of the trainers' group, connected; a trainer's number is its rank.
    caches : of every group of tables.
    tag : first of the tags of messages, four for each group; the same at all trainers.
    deadline_s : of each message.
    first_commit : number of the first commit.
    """

    def __init__(
        self,
        executor: Executor,
        servers: ServerConnections,
        caches: Sequence[RowCache],
        device: torch.device,
        *,
        tag: int,
        deadline_s: float,
        first_commit: int = 0,
    ) -> None:
        self._executor = executor
        self._servers = servers
        self._caches = tuple(caches)
        self._tag = tag
        self._deadline_s = deadline_s
        self._copies = HostCopies(device, own_stream=False)
        self._delayed_copies = HostCopies(device, own_stream=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="delayed rows")
        self._delayed: Future[None] | None = None
        self._gathered = threading.Event()
        self._commit_thread = ThreadPoolExecutor(1, thread_name_prefix="committed rows")
        self._next_commit = first_commit
        self._commits: list[RowCommit] = []

    def step(
        self,
        exchange: BatchExchange,
        gradients: Sequence[Tensor],
        updates: Sequence[RowUpdate],
        step: int,
        times: TrainerTimes,
    ) -> RowCommit | None:
        """Update the rows of a batch: critical ones now, the others in the background.

        Return the commit that begins with the batch, if one does. When it returns, the times of the
        batch before are complete.

        Parameters
        ----------
        gradients : of every group, [used rows, dim], weighted so that those of all trainers add up
            to the batch's.
        updates : of every group.
        step : number of the training step, from 1 on.
        times : of the batch, to which those of its exchanges are added.

        Raises
        ------
        CommunicationError : a trainer or server failed, in this exchange or the one before it.
        """
        laps = Laps()
        self.finish()
        times.delayed_wait_s += laps.lap()
        with self._copies.beside():
            messages = self._exchange(exchange.critical, gradients, updates, step, Priority.normal)
        times.exchange_wait_s += messages.wait_s
        times.update_s += laps.lap() - messages.wait_s
        times.critical_rows += messages.rows
        times.critical_bytes += messages.sent_bytes
        self._gathered.clear()
        number = self._next_commit
        commit = self._begin_commit(exchange.batch.batch) if exchange.batch.commit else None
        self._delayed = self._thread.submit(
            self._delay, exchange, gradients, updates, step, times, number, commit
        )
        return commit

    def let_delayed(self) -> None:
        """Let the delayed exchange begin: the training thread has gathered its next rows.

        It would contend for processors and memory with what the training thread waits for.
        """
        self._gathered.set()

    def check(self) -> None:
        """Raise the error of the delayed exchange if it failed."""
        if self._delayed is not None and self._delayed.done():
            self._delayed.result()

    def finish(self) -> None:
        """Wait for the delayed exchange and evictions of the batch before.

        Raises
        ------
        CommunicationError : they failed.
        """
        if self._delayed is None:
            return
        self._gathered.set()
        self._delayed.result()  # each wait in it has a deadline

    def commit(self, batch: int) -> RowCommit:
        """Begin a commit after a batch after which no row stays in the caches.

        Raises
        ------
        CommunicationError : the delayed exchange failed.
        """
        self.finish()
        commit = self._begin_commit(batch)
        self._commit_thread.submit(self._log, commit, [])
        return commit

    def close(self) -> None:
        """Wait for the background threads: the owner ends the executor and servers before."""
        self._gathered.set()
        self._thread.shutdown(cancel_futures=True)
        self._commit_thread.shutdown(cancel_futures=True)
        for commit in self._commits:
            _fail(commit, CommunicationError("the trainer's rows were closed"))

    def _delay(
        self,
        exchange: BatchExchange,
        gradients: Sequence[Tensor],
        updates: Sequence[RowUpdate],
        step: int,
        times: TrainerTimes,
        commit_number: int,
        commit: RowCommit | None,
    ) -> None:
        try:
            self._gathered.wait(_MOST_DELAY_S)
            with self._delayed_copies.beside():
                self._exchange_delayed(exchange, gradients, updates, step, times)
                self._write_back(exchange, times, commit_number)
                dirty = self._dirty_rows(exchange, times)
        except BaseException as error:
            if commit is not None:
                _fail(commit, error)
            raise
        if commit is not None:
            self._commit_thread.submit(self._log, commit, dirty)

    def _exchange_delayed(
        self,
        exchange: BatchExchange,
        gradients: Sequence[Tensor],
        updates: Sequence[RowUpdate],
        step: int,
        times: TrainerTimes,
    ) -> None:
        laps = Laps()
        messages = self._exchange(exchange.delayed, gradients, updates, step, Priority.background)
        times.delayed_s += laps.lap()
        times.delayed_rows += messages.rows
        times.delayed_bytes += messages.sent_bytes

    def _write_back(self, exchange: BatchExchange, times: TrainerTimes, commit: int) -> None:
        """Write rows that leave the cache back, as part of a commit."""
        laps = Laps()
        groups = zip(exchange.batch.groups, self._caches, exchange.evicted_slots, strict=True)
        for group, (part, cache, slots) in enumerate(groups):
            evicted = self._delayed_copies.to_host(cache.read(slots))
            self._servers.write_back(
                exchange.batch.batch, group, part.evicted, evicted, commit=commit
            )
            times.evicted_rows += len(slots)
            times.evicted_bytes += evicted.nbytes
        times.write_back_s += laps.lap()

    def _dirty_rows(self, exchange: BatchExchange, times: TrainerTimes) -> list[DirtyRows]:
        """Return copies: the next batch's exchanges update the rows while these are sent."""
        groups = zip(exchange.batch.groups, self._caches, exchange.dirty_slots, strict=True)
        dirty = [
            DirtyRows(rows=part.dirty, values=self._delayed_copies.to_host(cache.read(slots)))
            for part, cache, slots in groups
        ]
        times.dirty_rows += sum(len(rows.values) for rows in dirty)
        times.dirty_bytes += sum(rows.values.nbytes for rows in dirty)
        return dirty

    def _begin_commit(self, batch: int) -> RowCommit:
        commit = RowCommit(number=self._next_commit, batch=batch, servers=Future())
        self._next_commit += 1
        self._commits = [*(commit for commit in self._commits if not commit.servers.done()), commit]
        return commit

    def _log(self, commit: RowCommit, dirty: Sequence[DirtyRows]) -> None:
        try:
            commit.servers.set_result(self._servers.commit(commit.number, dirty))
        except BaseException as error:
            _fail(commit, error)

    def _exchange(
        self,
        exchanges: Sequence[GroupExchange],
        gradients: Sequence[Tensor],
        updates: Sequence[RowUpdate],
        step: int,
        priority: Priority,
    ) -> "_Messages":
        """Exchange gradients, update rows and exchange these; return the messages, which ended.

        The messages of all groups are under way together.
        """
        background = priority == Priority.background
        copies = self._delayed_copies if background else self._copies
        first = self._tag + 2 * background
        columns = list(zip(exchanges, gradients, self._caches, updates, strict=True))
        messages = _Messages(self._executor, copies, priority, self._deadline_s)
        arriving: list[_Arriving] = []
        for group, (exchange, gradient, _, _) in enumerate(columns):
            arriving.append(
                messages.begin(
                    gradient.index_select(0, exchange.gradients_sent.rows),
                    exchange.gradients_sent.ends,
                    exchange.gradients_received.ends,
                    first + _TAGS_OF_GROUP * group,
                )
            )
        parts: list[UpdatedRows] = []
        for exchange, gradient, cache, update in columns:
            part = UpdatedRows(
                cache, gradient, exchange.updated, exchange.updated_slots, exchange.alone
            )
            part.update_alone(update, step)  # while gradients are under way
            parts.append(part)
        returning: list[_Arriving] = []
        for group, (exchange, _, _, update) in enumerate(columns):
            received = exchange.gradients_received
            parts[group].update_shared(
                messages.wait(arriving[group]),
                received.rows,
                received.ends,
                self._executor.rank,
                update,
                step,
            )
            returning.append(
                messages.begin(
                    parts[group].rows.index_select(0, exchange.rows_sent.rows),
                    exchange.rows_sent.ends,
                    exchange.slots_received.ends,
                    first + _TAGS_OF_GROUP * group + 1,
                )
            )
        for part in parts:
            part.write_shared()  # while rows are under way
        for (exchange, _, cache, _), rows in zip(columns, returning, strict=True):
            cache.write(exchange.slots_received.rows, messages.wait(rows))
        return messages


def _fail(commit: RowCommit, error: BaseException) -> None:
    with suppress(InvalidStateError):  # it has ended
        commit.servers.set_exception(error)


class _Messages:
    """Exchanges of one priority, and what this trainer sends in them.

    Attributes
    ----------
    rows, sent_bytes : sent so far.
    wait_s : in which messages of others were awaited.
    """

    def __init__(
        self, executor: Executor, copies: HostCopies, priority: Priority, deadline_s: float
    ) -> None:
        self._executor = executor
        self._copies = copies
        self._priority = priority
        self._deadline_s = deadline_s
        self.rows = 0
        self.sent_bytes = 0
        self.wait_s = 0.0

    def begin(
        self,
        sent: Tensor,
        sent_ends: tuple[int, ...],
        received_ends: tuple[int, ...],
        tag: int,
    ) -> "_Arriving":
        """Begin to send rows to every trainer, and to receive them: their ends are by trainer."""
        received = self._copies.room(received_ends[-1], sent.shape[1], sent.dtype)
        exchange = None
        if self._executor.ranks > 1:
            exchange = all_to_all(
                self._executor,
                np.split(self._copies.to_host(sent), sent_ends[:-1]),
                np.split(received.numpy(), received_ends[:-1]),
                tag,
                priority=self._priority,
                deadline_s=self._deadline_s,
            )
        self.rows += len(sent)
        self.sent_bytes += sent.nbytes
        return _Arriving(exchange, received)

    def wait(self, arriving: "_Arriving") -> Tensor:
        """Return rows that other trainers send, on the device."""
        if arriving.exchange is not None:
            laps = Laps()
            arriving.exchange.wait()
            self.wait_s += laps.lap()
        return self._copies.to_device(arriving.rows)


class _Arriving(NamedTuple):
    """Rows that other trainers send; without an exchange there are none."""

    exchange: Exchange | None
    rows: Tensor
