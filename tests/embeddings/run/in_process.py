"""A job in this process: its cacher and servers, and data in memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.embeddings import EmbeddingError, Examples, Rejects
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.cacher.cacher import CacherOptions, dispatched, table_batch
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.embeddings.run.trainers.connections import JobCommits, TrainerConnections
from headrace.executor import Executor
from tests.embeddings.run.memory_servers import MemoryServers
from tests.waiting import HANG_S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListData:
    """Batches in memory."""

    batches: Sequence[Examples]

    @property
    def batch(self) -> int:
        return len(self.batches[0])

    @property
    def columns(self) -> int:
        return len(self.batches[0].ids)

    def read(self, rejects: Rejects | None = None) -> Iterator[Examples]:
        return iter(self.batches)

    def first(self, examples: int) -> Examples:
        return self.batches[0][:examples]

    def to_fields(self) -> dict[str, Any]:
        return {"format": "list", "batch": self.batch}


def clicks(
    rows: Sequence[int], batches: Sequence[int], *, dense: int = 3, seed: int = 0
) -> ListData:
    """Return random examples in batches of these sizes, whose columns have so many ids each."""
    random = np.random.default_rng(seed)

    def examples(size: int) -> Examples:
        return Examples(
            labels=random.integers(0, 2, size).astype(np.float32),
            dense=random.standard_normal((size, dense)).astype(np.float32),
            ids=tuple((count * random.random(size) ** 2).astype(np.int64) for count in rows),
            lengths=(None,) * len(rows),
        )

    return ListData(batches=[examples(size) for size in batches])


def with_bags(data: ListData, columns: Sequence[int], seed: int = 0) -> ListData:
    """Return examples whose ids of some columns are bags, of 0 to 3 ids."""
    random = np.random.default_rng(seed)

    def bags(examples: Examples) -> Examples:
        ids, lengths = list(examples.ids), list(examples.lengths)
        for column in columns:
            counts = random.integers(0, 4, len(examples))
            ids[column] = random.choice(examples.ids[column], counts.sum())
            lengths[column] = counts
        return replace(examples, ids=tuple(ids), lengths=tuple(lengths))

    return ListData(batches=[bags(examples) for examples in data.batches])


class ListStream:
    def __init__(self, batches: Sequence[TrainerBatch]) -> None:
        self.batches = iter(batches)
        self.noted: list[TrainerTimes] = []

    def __next__(self) -> TrainerBatch:
        return next(self.batches)

    def note(self, times: TrainerTimes) -> None:
        self.noted.append(times)

    def close(self) -> None:
        pass


class InProcessJob:
    """Servers and cacher of some trainers that are threads of this process."""

    def __init__(
        self,
        data: ListData,
        *,
        lookahead: int = 4,
        prefetch: int = 2,
        commit_every: int = 0,
        commits: JobCommits | None = None,
    ) -> None:
        self.data = data
        self.commit_every = commit_every
        self.commits = commits
        self.lookahead = lookahead
        self.prefetch = prefetch
        self.description: JobDescription | None = None
        self.servers: MemoryServers | None = None
        self.epochs: list[list[tuple[TrainerBatch, ...]]] = []
        self.lock = threading.Lock()
        self.closed = 0

    def connect(self, executor: Executor) -> Callable[[JobDescription], TrainerConnections]:
        def join(description: JobDescription) -> TrainerConnections:
            with self.lock:
                if self.servers is None:
                    self.description = description
                    self.servers = MemoryServers(description.groups, executor.ranks)
            if self.description is not None and self.description.difference(description):
                raise EmbeddingError("descriptions differ")
            return TrainerConnections(
                executor=executor,
                servers=self.servers.connection(executor.rank),
                epoch=lambda epoch: ListStream(
                    [parts[executor.rank] for parts in self.parts(epoch, executor.ranks)]
                ),
                prefetch=self.prefetch,
                deadline_s=HANG_S,
                close=self.close,
                commits=self.commits,
            )

        return join

    def parts(self, epoch: int, trainers: int) -> list[tuple[TrainerBatch, ...]]:
        with self.lock:
            description = self.description
            assert description is not None
            options = CacherOptions(
                tables=description.tables,
                groups=description.groups,
                slots=description.slots,
                trainers=trainers,
                lookahead=self.lookahead,
                prefetch=self.prefetch,
                commit_every=self.commit_every,
            )
            while len(self.epochs) <= epoch:
                batches = [
                    table_batch(examples, description.columns) for examples in self.data.read()
                ]
                first_batch = sum(map(len, self.epochs))
                self.epochs.append([*dispatched(batches, options, first_batch=first_batch)])
            return self.epochs[epoch]

    def close(self) -> None:
        self.closed += 1
