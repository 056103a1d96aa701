"""Trainers with caches end with the tables of one process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headrace.embeddings import Synchronisation
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.embeddings.run.trainers.optimizers import RowOptimizer
from headrace.embeddings.run.trainers.trainer import TrainerRows
from headrace.executor import Executor
from tests.conformance.groups import each, group
from tests.embeddings.run.memory_servers import MemoryServers, initial_numbers
from tests.embeddings.run.reference import (
    IDS,
    OPTIMIZERS,
    POOLINGS,
    TABLES,
    Share,
    Window,
    groups_of,
    losses,
    reference_tables,
    shares,
    trainer_batches,
)
from tests.embeddings.run.row_servers import RunningServers
from tests.waiting import HANG_S


class ListStream:
    """A trainer's batches."""

    def __init__(self, batches: Sequence[TrainerBatch]) -> None:
        self.batches = iter(batches)

    def __next__(self) -> TrainerBatch:
        return next(self.batches)

    def note(self, times: TrainerTimes) -> None:
        pass

    def close(self) -> None:
        pass


def train(
    executors: Sequence[Executor],
    batches: Sequence[Sequence[Share]],
    window: Window,
    optimizer: str,
    decay: float,
    dtype: torch.dtype,
    synchronisation: Synchronisation = Synchronisation.TARGETED,
    servers: MemoryServers | RunningServers | None = None,
) -> tuple[list[Tensor], list[TrainerTimes]]:
    """Return the tables at the servers after training, and every trainer's times.

    Parameters
    ----------
    servers : None: new ones in memory.
    """
    row_optimizer = RowOptimizer(OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))]))
    groups = groups_of(row_optimizer, dtype)
    parts, slots = trainer_batches(batches, groups, window, synchronisation)
    servers = servers or MemoryServers(groups, len(executors))
    times: dict[int, TrainerTimes] = {}

    def act(executor: Executor) -> None:
        torch_optimizer = OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))])
        schedule = torch.optim.lr_scheduler.ExponentialLR(torch_optimizer, decay)
        with TrainerRows(
            ListStream(parts[executor.rank]),
            servers.connection(executor.rank),
            executor,
            groups,
            [RowOptimizer(torch_optimizer)] * len(groups),
            slots=slots,
            prefetch=window.prefetch,
            deadline_s=HANG_S,
        ) as rows:
            for number, batch in zip(count(), rows):
                assert batch.batch.batch == number
                pooled = [
                    table.pooled(pooling)
                    for table, pooling in zip(batch.tables, POOLINGS, strict=True)
                ]
                losses(pooled, batch.batch.fields["label"]).mean().backward()
                rows.step()
                torch_optimizer.step()
                schedule.step()
                commit = rows.take_commit()
                assert (commit is not None) == batch.batch.commit
                if commit is not None:
                    assert commit.batch == number
            rows.commit(len(batches) - 1).servers.result(HANG_S)
        times[executor.rank] = rows.times

    each(list(executors), act)
    return tables_of(servers.rows, dtype), [times[rank] for rank in range(len(executors))]


def tables_of(written: Mapping[tuple[int, int], np.ndarray], dtype: torch.dtype) -> list[Tensor]:
    """Return the tables with the rows that were written, the others with their initial values."""
    tables: list[Tensor] = []
    for table, shape in enumerate(TABLES):
        rows = np.stack([initial_numbers(table, row, shape.dim) for row in range(IDS)])
        for (number, row), values in written.items():
            if number == table:
                rows[row] = values[: shape.dim]
        tables.append(torch.from_numpy(rows).to(dtype))
    return tables


windows = st.integers(1, 5).flatmap(
    lambda lookahead: st.builds(
        Window,
        lookahead=st.just(lookahead),
        prefetch=st.integers(1, lookahead),
        room=st.integers(0, 12),
        changes=st.lists(
            st.integers(1, 5).flatmap(
                lambda longest: st.tuples(st.just(longest), st.integers(1, longest))
            ),
            max_size=4,
        ).map(tuple),
    )
)
seeds = st.integers(0, 1 << 30)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, in its Adagrad
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_trainer_has_the_reference_s_rows_bit_for_bit(
    optimizer: str, dtype: torch.dtype
) -> None:
    with group(1) as executors:

        @settings(max_examples=10, deadline=None)
        @given(window=windows, seed=seeds)
        def check(window: Window, seed: int) -> None:
            batches = shares(seed, 12, 1)
            tables, times = train(executors, batches, window, optimizer, 0.95, dtype)
            expected = reference_tables(batches, optimizer, 0.95, dtype)
            for table, reference in zip(tables, expected, strict=True):
                assert torch.equal(table, reference)
            assert times[0].critical_bytes == 0

        check()


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("trainers", [2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_several_trainers_have_the_reference_s_rows(optimizer: str, trainers: int) -> None:
    with group(trainers) as executors:

        @settings(max_examples=6, deadline=None)
        @given(window=windows, seed=seeds)
        def check(window: Window, seed: int) -> None:
            batches = shares(seed, 12, trainers)
            tables, _ = train(executors, batches, window, optimizer, 0.95, torch.float64)
            expected = reference_tables(batches, optimizer, 0.95, torch.float64)
            for table, reference in zip(tables, expected, strict=True):
                torch.testing.assert_close(table, reference, rtol=1e-9, atol=1e-9)

        check()


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", ["sgd", "sparse adam"])
@pytest.mark.parametrize("name", ["lrpp", "replicated", "distinct"])
def test_every_design_has_the_reference_s_rows(name: str, optimizer: str) -> None:
    with group(3) as executors:

        @settings(max_examples=6, deadline=None)
        @given(window=windows, seed=seeds)
        def check(window: Window, seed: int) -> None:
            batches = shares(seed, 12, 3)
            design = Synchronisation(name)
            tables, _ = train(executors, batches, window, optimizer, 0.95, torch.float64, design)
            expected = reference_tables(batches, optimizer, 0.95, torch.float64)
            for table, reference in zip(tables, expected, strict=True):
                torch.testing.assert_close(table, reference, rtol=1e-9, atol=1e-9)

        check()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("trainers", [1, 2])
def test_rows_at_real_servers_are_those_at_servers_in_memory(trainers: int) -> None:
    """Bit for bit, and with one trainer the reference's."""
    optimizer, dtype = "sparse adam", torch.float32
    groups = groups_of(RowOptimizer(OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))])), dtype)
    batches = shares(4, 12, trainers)
    window = Window(lookahead=3, prefetch=2, room=2)
    with (
        group(trainers) as executors,
        RunningServers(TABLES, groups, trainers, servers=2, loaded=IDS) as servers,
    ):
        tables, _ = train(executors, batches, window, optimizer, 0.95, dtype, servers=servers)
    with group(trainers) as executors:
        in_memory, _ = train(executors, batches, window, optimizer, 0.95, dtype)
    expected = in_memory
    if trainers == 1:
        expected = reference_tables(batches, optimizer, 0.95, dtype)
    for table, reference, of_memory in zip(tables, expected, in_memory, strict=True):
        assert torch.equal(table, of_memory)
        assert torch.equal(table, reference)


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("trainers", [1, 3])
@pytest.mark.parametrize("name", ["targeted", "lrpp", "replicated", "distinct"])
def test_a_commit_has_the_rows_as_they_were_after_its_batch(name: str, trainers: int) -> None:
    with group(trainers) as executors:

        @settings(max_examples=5, deadline=None)
        @given(window=windows, seed=seeds, commit_every=st.integers(1, 4))
        def check(window: Window, seed: int, commit_every: int) -> None:
            window = replace(window, commit_every=commit_every)
            batches = shares(seed, 11, trainers)
            optimizer = RowOptimizer(OPTIMIZERS["adagrad"]([nn.Parameter(torch.zeros(1))]))
            servers = MemoryServers(groups_of(optimizer, torch.float64), trainers)
            design = Synchronisation(name)
            train(executors, batches, window, "adagrad", 1.0, torch.float64, design, servers)
            ends = [*range(commit_every, len(batches) + 1, commit_every), len(batches)]
            assert len(servers.committed) == 1 + len(ends)
            for rows, end in zip(servers.committed[1:], ends, strict=True):
                expected = reference_tables(batches[:end], "adagrad", 1.0, torch.float64)
                for table, reference in zip(tables_of(rows, torch.float64), expected, strict=True):
                    torch.testing.assert_close(table, reference, rtol=1e-9, atol=1e-9)

        check()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_other_numbers_of_servers_begin_from_a_commit(tmp_path: Path) -> None:
    optimizer, dtype = "adagrad", torch.float64
    groups = groups_of(RowOptimizer(OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))])), dtype)
    batches = shares(4, 12, 2)
    window = Window(lookahead=3, prefetch=2, room=2, commit_every=5)
    with (
        group(2) as executors,
        RunningServers(TABLES, groups, 2, servers=3, loaded=IDS, folder=str(tmp_path)) as servers,
    ):
        train(executors, batches, window, optimizer, 1.0, dtype, servers=servers)
        committed = servers.committed
    assert sorted(committed) == [0, 1, 2]
    expected = reference_tables(batches[:10], optimizer, 1.0, dtype)
    folders, first_commit = committed[1], 2
    for start, number in enumerate((3, 2, 1), 1):
        begin = {
            "start": start,
            "committed": folders,
            "first_commit": first_commit,
            "first_batch": 10,
        }
        with RunningServers(
            TABLES, groups, 1, servers=number, begin=begin, folder=str(tmp_path)
        ) as servers:
            for table, reference in zip(tables_of(servers.rows, dtype), expected, strict=True):
                torch.testing.assert_close(table, reference, rtol=1e-9, atol=1e-9)
            servers.connection(0).commit(first_commit, [])
            folders, first_commit = servers.committed[first_commit], first_commit + 1


def test_replicated_caches_send_the_bytes_of_a_ring() -> None:
    """2 (n - 1) / n of all rows of the batch from each trainer."""
    batches = shares(5, 8, 3)
    window = Window(lookahead=2, prefetch=1, room=4)
    design = Synchronisation.REPLICATED
    with group(3) as executors:
        _, times = train(executors, batches, window, "sgd", 1.0, torch.float64, design)
    row_bytes = sum(
        8 * shape.dim * len({row for share in batch for row in share.ids[table]})
        for batch in batches
        for table, shape in enumerate(TABLES)
    )
    assert sum(part.critical_bytes for part in times) == 2 * (3 - 1) * row_bytes
    assert sum(part.delayed_bytes for part in times) == 0
