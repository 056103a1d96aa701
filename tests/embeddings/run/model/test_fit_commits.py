"""Commits of a fitted model's training, and jobs that begin from one."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headrace.embeddings import EmbeddingError, LoaderData
from headrace.embeddings.run.commits import CommitFolder, Mark
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.model.fit import fit_connected
from headrace.errors import CommunicationError
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob
from tests.embeddings.run.model.fits import DATA, OPTIMIZERS, CommittingJob
from tests.embeddings.run.models import DLRM, ROWS, steps, torch_batches


def test_a_commit_that_is_due_with_the_last_batch_is_that_of_the_epoch(
    executor: Executor, tmp_path: Path
) -> None:
    """A job that began from one of its own had an epoch without batches first."""
    model = DLRM()
    optimizers = OPTIMIZERS["sgd"](model)
    job = CommittingJob(tmp_path / "state", commit_every=4)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    for _ in range(2):
        steps(model, batches, optimizers)
    batches.close()
    positions = [tuple(position.values()) for position in job.positions]
    assert positions == [(0, 0, 0, 4, 4), (1, 1, 8, 8, 8), (2, 1, 8, 12, 12), (3, 2, 16, 16, 16)]
    assert job.servers is not None
    committed = job.servers.committed[-1]
    assert committed
    for name, row in committed.items():
        assert np.array_equal(job.servers.rows[name], row)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("commit_every", [0, 4])
def test_rows_that_are_loaded_after_an_epoch_are_in_its_commit(
    executor: Executor, tmp_path: Path, commit_every: int, is_whole: bool
) -> None:
    """It had the rows before them, and the dense part after them."""
    for table, rows in enumerate(ROWS):
        width = 4 if table < 2 or is_whole else 9  # else it fails behind two tables
        np.savez(
            tmp_path / f"tables.{table}.npz", id=np.arange(rows), row=np.full((rows, width), 0.5)
        )
    model = DLRM()
    optimizers = OPTIMIZERS["sgd"](model)
    job = CommittingJob(tmp_path / "state", commit_every=commit_every)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    steps(model, batches, optimizers)
    with pytest.raises(EmbeddingError, match="9 numbers") if not is_whole else nullcontext():
        batches.load(tmp_path)
    assert job.servers is not None
    loaded = {name: row.copy() for name, row in job.servers.rows.items()}
    assert all((loaded[table, row] == 0.5).all() for table in (0, 1) for row in range(ROWS[table]))
    epoch = iter(batches)
    next(epoch)
    position = job.positions[-1]
    assert (position["epoch"], position["batch"]) == (1, 8)
    committed = job.servers.committed[position["commit"] + 1]
    assert committed.keys() == loaded.keys()
    for name, row in loaded.items():
        assert np.array_equal(committed[name], row)
    batches.close()


def test_a_loader_that_shuffles_as_it_likes_makes_no_commits(
    executor: Executor, tmp_path: Path
) -> None:
    """A job that began from one went on with other examples than those that were left."""
    columns = (torch.cat(parts) for parts in zip(*torch_batches(DATA.batches), strict=True))
    loader = DataLoader(TensorDataset(*columns), batch_size=16, shuffle=True)
    data = LoaderData(loader, batch=16, columns=len(ROWS))
    model = DLRM()
    (optimizer,) = OPTIMIZERS["sgd"](model)
    job = CommittingJob(tmp_path / "state")
    with pytest.raises(EmbeddingError, match="the loader's order is that of a RandomSampler"):
        fit_connected(model, data, optimizer=optimizer, connect=job.connect(executor))
    assert "tables.0.weight" in dict(model.named_parameters())
    job = InProcessJob(DATA)
    _, batches = fit_connected(model, data, optimizer=optimizer, connect=job.connect(executor))
    batches.close()


def test_a_job_begins_from_no_commit_of_a_model_without_one_of_its_layers(
    executor: Executor, tmp_path: Path
) -> None:
    model = DLRM()
    job = CommittingJob(tmp_path / "state")
    optimizers = OPTIMIZERS["sgd"](model)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    with batches:
        steps(model, batches, optimizers)
    assert job.description is not None
    mark = Mark(
        start=job.made.start,
        trainers=1,
        servers=(),
        job=job.description,
        files=(),
        **job.positions[-1],
    )
    wider = DLRM()
    wider.bottom.append(nn.Linear(4, 4, bias=False))
    job = InProcessJob(DATA, commits=replace(job.made, mark=mark))
    optimizers = OPTIMIZERS["sgd"](wider)
    with pytest.raises(
        EmbeddingError, match=r'model is not that of the commit: .*\n.*"bottom\.3\.weight"'
    ):
        fit_connected(wider, DATA, optimizer=optimizers, connect=job.connect(executor))


def test_an_import_overwrites_no_rows_of_a_commit(executor: Executor, tmp_path: Path) -> None:
    """A script that loads rows before training did so again when its job began from a commit."""
    model = DLRM()
    job = CommittingJob(tmp_path / "state")
    optimizers = OPTIMIZERS["sgd"](model)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    with batches:
        assert batches.batch == 0
        batches.save(tmp_path / "rows")
        batches.load(tmp_path / "rows")
        steps(model, batches, optimizers)
        assert batches.batch == len(DATA.batches)
    assert job.description is not None
    mark = Mark(
        start=job.made.start,
        trainers=1,
        servers=(),
        job=job.description,
        files=(),
        **job.positions[-1],
    )
    job = InProcessJob(DATA, commits=replace(job.made, mark=mark))
    job.epochs = [[]]  # the first has ended
    model = DLRM()
    optimizers = OPTIMIZERS["sgd"](model)
    model, batches = fit_connected(model, DATA, optimizer=optimizers, connect=job.connect(executor))
    assert (batches.epoch, batches.batch) == (1, len(DATA.batches))
    with pytest.raises(EmbeddingError, match=r"commit of 8 batches, .* where batches.batch is 0"):
        batches.load(tmp_path / "rows")
    batches.close()


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1 << 127 | 7, -(1 << 80) - 1])
def test_a_commit_of_a_job_with_any_seed_can_be_read(tmp_path: Path, seed: int) -> None:
    """JSON is refused with numbers of more than 64 bits, of which rows begin by the lowest 64."""
    descriptions: list[JobDescription] = []

    def connect(description: JobDescription) -> NoReturn:
        descriptions.append(description)
        raise CommunicationError("there is no job")

    model = DLRM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CommunicationError, match="there is no job"):
        fit_connected(model, DATA, optimizer=optimizer, connect=connect, seed=seed)
    (job,) = descriptions
    assert job.seed % (1 << 64) == seed % (1 << 64)
    folder = CommitFolder(tmp_path)
    position = {"commit": 0, "epoch": 0, "epoch_began": 0, "batch": 1, "steps": 1}
    mark = Mark(start=folder.begin(), trainers=1, servers=(), job=job, files=(), **position)
    folder.write(mark)
    assert (read := folder.newest()) is not None
    assert read.job.seed == job.seed
