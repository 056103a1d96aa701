"""Failures of a trainer, of a server and of a stream end all trainers, each with the cause."""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import nn

from headrace.embeddings import EmbeddingError
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.trainers.optimizers import RowOptimizer
from headrace.embeddings.run.trainers.trainer import TrainerRows
from headrace.embeddings.tables import TableGroup
from headrace.errors import CommunicationError
from headrace.executor import Executor
from tests.conformance.groups import each, group
from tests.embeddings.run.memory_servers import MemoryServers
from tests.embeddings.run.reference import (
    POOLINGS,
    Window,
    groups_of,
    losses,
    shares,
    trainer_batches,
)
from tests.embeddings.run.trainers.test_trainer import ListStream
from tests.waiting import ENDLESS_S, HANG_S, no_hang

TRAINERS = 3
FAILS_AT = 4

Connected = Callable[[int], TrainerRows]


class Job:
    """Trainers of one job, of which a test makes some fail."""

    def __init__(self, executors: Sequence[Executor]) -> None:
        torch_optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        self.optimizer = RowOptimizer(torch_optimizer)
        self.executors = executors
        self.groups: tuple[TableGroup, ...] = groups_of(self.optimizer, torch.float64)
        self.batches, self.slots = trainer_batches(
            shares(1, 10, TRAINERS), self.groups, Window(lookahead=2, prefetch=1, room=0)
        )
        self.servers = MemoryServers(self.groups, TRAINERS)

    def rows(self, trainer: int, stream: ListStream | None = None) -> TrainerRows:
        return TrainerRows(
            stream or ListStream(self.batches[trainer]),
            self.servers.connection(trainer),
            self.executors[trainer],
            self.groups,
            [self.optimizer] * len(self.groups),
            slots=self.slots,
            prefetch=1,
            deadline_s=ENDLESS_S,
        )


def train(rows: TrainerRows, before_step: Callable[[TrainerBatch], None]) -> None:
    for batch in rows:
        columns = zip(batch.tables, POOLINGS, strict=True)
        pooled = [table.pooled(pooling) for table, pooling in columns]
        losses(pooled, batch.batch.fields["label"]).mean().backward()
        before_step(batch.batch)
        rows.step()


def no_action(batch: TrainerBatch) -> None:
    del batch


def train_until_it_leaves(job: Job, leave: Callable[[TrainerBatch], None]) -> None:
    """Let trainer 1 close its connections before a step: the others get an error that names it."""

    def act(executor: Executor) -> None:
        rank = executor.rank
        message = "closed" if rank == 1 else "rank 1"
        with pytest.raises(CommunicationError, match=message), job.rows(rank) as rows:
            train(rows, leave if rank == 1 else no_action)

    with no_hang():
        each(list(job.executors), act)


@pytest.fixture
def job() -> Iterator[Job]:
    with group(TRAINERS) as executors:
        yield Job(executors)


def test_the_others_get_the_error_of_a_trainer(job: Job) -> None:
    def fail(batch: TrainerBatch) -> None:
        if batch.batch == FAILS_AT:
            raise ValueError("a loss is NaN")

    def act(executor: Executor) -> None:
        rank = executor.rank
        cause = ValueError if rank == 1 else CommunicationError
        message = "a loss is NaN" if rank == 1 else "trainer 1 failed: ValueError: a loss is NaN"
        with pytest.raises(cause, match=message), job.rows(rank) as rows:
            train(rows, fail if rank == 1 else no_action)

    with no_hang():
        each(list(job.executors), act)


def test_a_trainer_whose_connections_end_is_named(job: Job) -> None:
    def leave(batch: TrainerBatch) -> None:
        if batch.batch == FAILS_AT:
            job.executors[1].close()

    train_until_it_leaves(job, leave)


def test_a_trainer_that_waits_for_rows_learns_of_another_s_end(job: Job) -> None:
    """A server would answer only when the trainer that has ended had written its rows back."""
    fetching = threading.Event()

    def before_fetch(trainer: int, batch: int) -> None:
        if trainer == 0 and batch == FAILS_AT:
            fetching.set()
            closed = job.servers.closed
            with job.servers.changed:
                job.servers.changed.wait_for(lambda: closed[0], ENDLESS_S)

    job.servers.before_fetch = before_fetch

    def leave(batch: TrainerBatch) -> None:
        if batch.batch == FAILS_AT:
            assert fetching.wait(HANG_S)
            job.executors[1].close()

    train_until_it_leaves(job, leave)


def test_a_server_s_error_is_the_training_thread_s(job: Job) -> None:
    def before_fetch(trainer: int, batch: int) -> None:
        if trainer == 2 and batch >= FAILS_AT:
            raise CommunicationError("server 0 is out of memory")

    job.servers.before_fetch = before_fetch

    def act(executor: Executor) -> None:
        rank = executor.rank
        with (
            pytest.raises(CommunicationError, match="server 0 is out of memory"),
            job.rows(rank) as rows,
        ):
            train(rows, no_action)

    with no_hang():
        each(list(job.executors), act)


def test_a_batch_needs_one_step(job: Job) -> None:
    checked = threading.Barrier(TRAINERS, timeout=HANG_S)  # closing one ends the others

    def act(executor: Executor) -> None:
        with job.rows(executor.rank) as rows:
            with pytest.raises(EmbeddingError, match="there is no batch to step"):
                rows.step()
            next(rows)
            with pytest.raises(EmbeddingError, match="batch 0 had no step"):
                next(rows)
            checked.wait()
            rows.close()

    with no_hang():
        each(list(job.executors), act)
    assert np.all(job.servers.closed)
