"""One trainer of the timed jobs, on an emulated device: it sleeps for what a device would compute.

Answers, until the parent is gone,

- {"connect": design, "workload", ...}: {"connected"}: takes its batches and rows from now on
- {"variant", "backend", "compute_s", "dense", "steps", "settle_s"}: {"seconds": [of each step],
  "counts": sums, "wire_bytes", "received_bytes": that the host sent and received}

The variants are "ideal", without rows; "exchange", the rows of the pooled rival alone; the rivals
"pooled" and "distinct"; and the designs of caches. "dense" is the number of parameters.

A step's forward pass sleeps a third of `compute_s` and its backward pass two; when half of the
latter is over, the dense part's gradients are averaged. Rows move for real.
"""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import headrace.torch
from benchmarks.embeddings.designs import DEADLINE_S, NOT_DELAYED
from benchmarks.embeddings.drawn import drawn_batches
from benchmarks.embeddings.rivals import DistinctRows, PooledRows
from benchmarks.embeddings.timing import DENSE
from benchmarks.embeddings.workload import Workload
from headrace.embeddings.data.skew import parse_skew
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.embeddings.run.trainers.cacher_client import CacherClient
from headrace.embeddings.run.trainers.committer import Committer, Position
from headrace.embeddings.run.trainers.connections import JobCommits
from headrace.embeddings.run.trainers.optimizers import RowOptimizer
from headrace.embeddings.run.trainers.trainer import BatchStream, TrainerRows
from headrace.embeddings.run.trainers.trainer_state import TrainerState
from headrace.executor import Executor
from headrace.launch.worker import Receive, Send, run_worker

RATE = 0.01
_BATCHES = 4
_QUIET_BYTES = 10_000
"""On a link that carries no rows, but signs of life."""

_STORED = 1_000_000
"""Rows of the distinct rival: others share their memory."""


class Device:
    """Computes by sleeping, and averages the dense part's gradients.

    Attributes
    ----------
    groups : for rows, by backend; those of gradients are others, as both move at once.
    """

    def __init__(self) -> None:
        self._dense: dict[int, Tensor] = {}
        self.groups: dict[str, Any] = {
            name: dist.new_group(backend=name) for name in ("gloo", "headrace")
        }
        self._averages: dict[str, Any] = {
            name: dist.new_group(backend=name) for name in ("gloo", "headrace")
        }

    def compute(self, backend: str, compute_s: float, dense: int) -> Any:
        """Do the forward and backward pass; returns the average under way, if there is one."""
        if dense == 0:
            time.sleep(compute_s)
            return None
        time.sleep(2 * compute_s / 3)
        gradients = self._dense.setdefault(dense, torch.zeros(dense))
        average = dist.all_reduce(gradients, group=self._averages[backend], async_op=True)
        time.sleep(compute_s / 3)
        return average


class Undelayed:
    """A stream of batches all of whose rows are exchanged before the next batch."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __next__(self) -> TrainerBatch:
        """Return the next batch; see `BatchStream`."""
        batch = next(self._stream)
        groups = [replace(group, critical=np.ones_like(group.critical)) for group in batch.groups]
        return replace(batch, groups=tuple(groups))

    def note(self, times: TrainerTimes) -> None:
        """Note the times of a step."""
        self._stream.note(times)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


class Trainer:
    """The rivals and designs of one trainer."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._rank, self._ranks = task["rank"], task["ranks"]
        self._listen = task["listen"]
        self._workload = Workload.from_fields(task["workload"])
        self._device = Device()
        self._optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
        batches = drawn_batches(
            self._workload.rows, self._workload.batch, skew=parse_skew(self._workload.skew)
        )
        self._drawn = list(islice(batches, _BATCHES))
        self._rows: dict[str, TrainerRows] = {}
        self._committers: dict[str, Committer] = {}
        self._rival: tuple[DistinctRows, Iterator[Any]] | None = None
        most_used = -(-self._workload.batch // self._ranks) * len(self._workload.rows)
        self._gradients = {
            dim: torch.full((most_used, dim), 1e-3)
            for dim in (*self._workload.dims, self._pooled_dim)
        }

    @property
    def _pooled_dim(self) -> int:
        """Numbers of the rows that an example looks up in a column: rivals move them as one."""
        return sum(self._workload.dims)

    def connect(self, task: dict[str, Any]) -> None:
        """Join a design's job, and connect to the other trainers."""
        job = Workload.from_fields(task["workload"]).description()
        cacher = CacherClient(
            task["cacher"],
            trainer=self._rank,
            trainers=self._ranks,
            secret=task["secret"],
            deadline_s=DEADLINE_S,
        )
        joined = cacher.join(job)
        executor = Executor(
            self._rank, self._ranks, host=self._listen, secret=task["secret"], shared_memory=False
        )
        addresses: list[Any] = [None] * self._ranks
        dist.all_gather_object(addresses, executor.address)
        executor.connect(addresses)
        stream = cacher.epoch(0)
        self._rows[task["connect"]] = TrainerRows(
            Undelayed(stream) if task["connect"].endswith(NOT_DELAYED) else stream,
            ServerConnections(
                joined.servers, job, self._rank, secret=task["secret"], deadline_s=DEADLINE_S
            ),
            executor,
            job.groups,
            [RowOptimizer(self._optimizer) for _ in job.groups],
            slots=job.slots,
            prefetch=joined.prefetch,
            deadline_s=DEADLINE_S,
        )
        if joined.folder is not None:
            commits = JobCommits(
                folder=joined.folder, start=joined.start, mark=joined.mark, report=cacher.commit
            )
            model = nn.Linear(DENSE["DLRM"], 1, bias=False)
            state = TrainerState(model, [torch.optim.SGD(model.parameters(), lr=RATE)], {})
            self._committers[task["connect"]] = Committer(commits, state, self._rank)

    def step_of(self, task: dict[str, Any]) -> Callable[[], None]:
        """Return the step of a variant."""
        variant, backend = task["variant"], task["backend"]
        group = self._device.groups[backend]

        def compute() -> Any:
            return self._device.compute(backend, task["compute_s"], task["dense"])

        if variant == "ideal":
            return lambda: wait(compute())
        if variant in ("pooled", "exchange"):
            return self._pooled(group, compute)
        if variant == "distinct":
            return self._distinct(group, compute)
        return lambda: self._design(variant, compute)

    def _pooled(self, group: Any, compute: Callable[[], Any]) -> Callable[[], None]:
        """Return a step whose rows the device looks up and updates: only moving is real."""
        dim = self._pooled_dim
        rival = PooledRows(
            group, (1,) * len(self._workload.rows), lambda _: torch.zeros(1, dim), sgd
        )
        ids = rival.prepare(self._drawn[0])
        rows = torch.zeros(sum(ids.sent), dim)
        gradients = torch.zeros(sum(ids.received), dim)

        def step() -> None:
            rival.receive_rows(ids, rows)
            average = compute()
            rival.receive_gradients(ids, gradients)
            wait(average)

        return step

    def _distinct(self, group: Any, compute: Callable[[], Any]) -> Callable[[], None]:
        if not self._rival:
            rows = DistinctRows(
                group,
                self._workload.rows,
                lambda _, numbers: torch.zeros(len(numbers), self._pooled_dim),
                sgd,
                stored=_STORED,
            )
            self._rival = rows, cycle([rows.prepare(batch) for batch in self._drawn])
        rival, batches = self._rival
        rival.group = group

        def step() -> None:
            ids = next(batches)
            rows = rival.fetch(ids)
            average = compute()
            rival.write_back(ids, self._gradients[self._pooled_dim][: len(rows)])
            wait(average)

        return step

    def _design(self, design: str, compute: Callable[[], Any]) -> None:
        rows = self._rows[design]
        batch = next(rows)
        average = compute()
        starts = dict.fromkeys(self._workload.dims, 0)
        for table in batch.tables:
            used, dim = table.leaf.shape
            table.leaf.grad = self._gradients[dim][starts[dim] : starts[dim] + used]
            starts[dim] += used
        wait(average)
        rows.step()
        commit = rows.take_commit()
        if commit is not None:
            position = Position(epoch=0, epoch_began=0, batch=commit.batch + 1, steps=rows.steps)
            self._committers[design].begin(commit, position)

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Do some steps together with the other trainers."""
        step = self.step_of(task)
        before, (sent, received) = self._counts(task["variant"]), link_bytes(task["settle_s"])
        seconds: list[float] = []
        dist.barrier()
        for _ in range(task["steps"]):
            began = time.perf_counter()
            step()
            headrace.torch.step()
            seconds.append(time.perf_counter() - began)
        after = self._counts(task["variant"])
        sent_after, received_after = link_bytes(task["settle_s"])
        return {
            "seconds": seconds,
            "counts": {name: number - before[name] for name, number in after.items()},
            "wire_bytes": sent_after - sent,
            "received_bytes": received_after - received,
        }

    def _counts(self, variant: str) -> dict[str, float]:
        if variant not in self._rows:
            return {}
        return self._rows[variant].times.to_fields()


def sgd(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer of rows."""
    return torch.optim.SGD(parameters, lr=RATE)


def link_bytes(settle_s: float) -> tuple[int, int]:
    """Return the bytes that this host has sent and received, on all links but loopback.

    Parameters
    ----------
    settle_s : wait until neither has grown by much for as long; 0: count at once.
    """
    while True:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
        links = dict(line.split(":") for line in lines)
        columns = [text.split() for name, text in links.items() if name.strip() != "lo"]
        counts = sum(int(column[8]) for column in columns), sum(int(own[0]) for own in columns)
        if settle_s == 0:
            return counts
        time.sleep(settle_s)
        later = link_bytes(0)
        if sum(later) - sum(counts) < _QUIET_BYTES:
            return later


def wait(average: Any) -> None:
    """Wait for the dense part's average, if there is one."""
    if average is not None:
        average.wait()


def work(receive: Receive, send: Send) -> None:
    """Answer until the parent is gone."""
    torch.set_num_threads(1)
    task = receive()
    dist.init_process_group("gloo", rank=task["rank"], world_size=task["ranks"])
    trainer = Trainer(task)
    send(ready=socket.gethostname())
    while True:
        task = receive()
        if "connect" in task:
            trainer.connect(task)
            send(connected=task["connect"])
        else:
            send(**trainer.run(task))


if __name__ == "__main__":
    run_worker(work)
