"""Seconds, rows and bytes of steps, by what they went for."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from headrace.embeddings.run.batches import SlottedRows, TrainerBatch
from headrace.embeddings.run.step_times import STALLS, TrainerTimes
from headrace.embeddings.run.trainers.dense import DenseAverage
from headrace.embeddings.run.trainers.optimizers import RowOptimizer
from headrace.embeddings.run.trainers.trainer import RowsOfBatch, TrainerRows
from headrace.executor import Executor
from tests.conformance.groups import each, group
from tests.embeddings.run.in_process import ListStream
from tests.embeddings.run.memory_servers import Connection, MemoryServers
from tests.embeddings.run.reference import (
    POOLINGS,
    Window,
    groups_of,
    losses,
    shares,
    trainer_batches,
)
from tests.waiting import HANG_S, with_longer_deadlines

DELAYS_S = (0.3, 3.0)
"""Of what is late; the longer one where a busy machine delays as much."""
LATE = 3
BATCHES = 6


class SlowStream(ListStream):
    delay_s = 0.0

    def __next__(self) -> TrainerBatch:
        batch = super().__next__()
        if batch.batch == LATE:
            time.sleep(self.delay_s)
        return batch


class SlowConnection(Connection):
    """A trainer's connection, some of whose calls are late; it counts what moves."""

    fetches = write_backs = 0.0
    fetched_bytes = evicted_rows = 0

    def fetch(self, batch: int, group: int, after: int, rows: SlottedRows) -> np.ndarray:
        if batch == LATE:
            time.sleep(self.fetches)
        values = super().fetch(batch, group, after, rows)
        self.fetched_bytes += values.nbytes
        return values

    def write_back(
        self, batch: int, group: int, rows: SlottedRows, values: np.ndarray, *, commit: int = 0
    ) -> None:
        if batch == LATE - 1:
            time.sleep(self.write_backs)
        self.evicted_rows += len(rows.ids)
        super().write_back(batch, group, rows, values, commit=commit)


class Training:
    """Steps of some trainers, the last of which is late for one reason.

    Attributes
    ----------
    noted : of every trainer, the times of its steps.
    seconds : of every trainer's loop.
    """

    def __init__(self, trainers: int, late: str, delay_s: float) -> None:
        self.late = late
        self.delay_s = delay_s
        self.trainers = trainers
        self.sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        self.groups = groups_of(RowOptimizer(self.sgd), torch.float32)
        window = Window(lookahead=3, prefetch=2, room=20)
        parts, self.slots = trainer_batches(shares(3, BATCHES, trainers), self.groups, window)
        servers = MemoryServers(self.groups, trainers)
        self.connections = [SlowConnection(servers, rank) for rank in range(trainers)]
        streams = [ListStream(own) for own in parts[:-1]]
        slow = SlowStream(parts[-1])
        slow.delay_s = delay_s * (late == "batch_wait_s")
        streams.append(slow)
        self.connections[-1].fetches = delay_s * (late == "fetch_wait_s")
        self.connections[-1].write_backs = delay_s * (late == "delayed_wait_s")
        self.streams = streams
        self.seconds = [0.0] * trainers
        with group(trainers) as executors:
            each(list(executors), self.train)
        self.noted = [stream.noted for stream in streams]

    def train(self, executor: Executor) -> None:
        rank = executor.rank
        with TrainerRows(
            self.streams[rank],
            self.connections[rank],
            executor,
            self.groups,
            [RowOptimizer(self.sgd)] * len(self.groups),
            slots=self.slots,
            prefetch=2,
            deadline_s=HANG_S,
        ) as rows:
            began = time.perf_counter()
            for batch in rows:
                self.step(rows, batch, last=rank == self.trainers - 1)
            self.seconds[rank] = time.perf_counter() - began
        total = TrainerTimes()
        for times in self.streams[rank].noted:
            total.add(times)
        assert rows.times == total

    def step(self, rows: TrainerRows, batch: RowsOfBatch, *, last: bool) -> None:
        late = last and batch.batch.batch == LATE
        if late and self.late == "commit_wait_s":
            with rows.waiting_for_commit():
                time.sleep(self.delay_s)
        pooled = [
            table.pooled(pooling) for table, pooling in zip(batch.tables, POOLINGS, strict=True)
        ]
        losses(pooled, batch.batch.fields["label"]).mean().backward()
        if late and self.late in ("compute_s", "dense_wait_s"):
            time.sleep(self.delay_s)
        rows.step(DenseAverage(self.delay_s if late and self.late == "dense_wait_s" else 0.0, 8))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "late", ["compute_s", *(name for name in STALLS if "exchange" not in name)]
)
def test_what_is_late_is_the_part_that_is_long(late: str) -> None:
    def check(delay_s: float) -> None:
        training = Training(1, late, delay_s)
        (noted,), (seconds,) = training.noted, training.seconds
        assert getattr(noted[LATE], late) >= delay_s / 3
        assert sum(getattr(times, late) for times in noted) >= delay_s / 3
        assert 0.5 * seconds < sum(times.step_s for times in noted) <= seconds
        assert all(times.batches == 1 for times in noted)

    with_longer_deadlines(check, DELAYS_S)


def test_another_trainer_is_waited_for_in_the_exchange() -> None:
    def check(delay_s: float) -> None:
        training = Training(2, "compute_s", delay_s)
        assert training.noted[0][LATE].exchange_wait_s >= delay_s / 3
        assert training.noted[1][LATE].exchange_wait_s < delay_s / 3
        assert sum(times.critical_bytes for times in training.noted[0]) > 0

    with_longer_deadlines(check, DELAYS_S)


def test_rows_and_bytes_are_those_that_moved() -> None:
    training = Training(2, "compute_s", 0.0)
    for noted, connection in zip(training.noted, training.connections, strict=True):
        assert sum(times.fetched_bytes for times in noted) == connection.fetched_bytes > 0
        assert sum(times.evicted_rows for times in noted) == connection.evicted_rows > 0
        assert sum(times.dense_bytes for times in noted) == 8 * len(noted) == 8 * BATCHES


def test_sums_since_others() -> None:
    before, after = TrainerTimes(batches=2, copy_s=1.0), TrainerTimes(batches=5, copy_s=1.5)
    assert after.since(before) == TrainerTimes(batches=3, copy_s=0.5)
    assert TrainerTimes.from_fields(after.to_fields()) == after


def test_metrics_have_every_part_and_what_moved() -> None:
    registry = pytest.importorskip("prometheus_client").CollectorRegistry()
    from headrace.embeddings import EmbeddingMetrics

    class Batches:
        times = TrainerTimes(batches=4, dense_wait_s=1.5, evicted_rows=7, dense_bytes=9)

    registry.register(EmbeddingMetrics(1, Batches()))
    rank = {"rank": "1"}
    seconds, rows, moved = (
        f"headrace_embeddings_{name}_total" for name in ("step_seconds", "rows", "bytes")
    )
    assert registry.get_sample_value("headrace_embeddings_batches_total", rank) == 4
    assert registry.get_sample_value(seconds, {**rank, "part": "dense_wait"}) == 1.5
    assert registry.get_sample_value(rows, {**rank, "kind": "evicted"}) == 7
    assert registry.get_sample_value(moved, {**rank, "kind": "dense"}) == 9
