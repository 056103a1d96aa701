"""Tables in files: exported and imported as they are, refused by name where they are wrong."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

from headrace.embeddings import EmbeddingError, EmbeddingTable
from headrace.embeddings.run.model import table_files
from headrace.embeddings.run.model.fit import fit_connected
from headrace.embeddings.run.model.fitted import FittedBatches
from headrace.embeddings.run.model.table_files import TableFileFormat, read_rows, whole_table
from headrace.embeddings.run.servers.row_client import ServerConnections
from headrace.embeddings.tables import table_groups
from headrace.executor import Executor
from tests.embeddings.run.in_process import InProcessJob
from tests.embeddings.run.jobs import description
from tests.embeddings.run.model.fits import DATA, OPTIMIZERS, fitted_model
from tests.embeddings.run.models import DLRM, ROWS, steps


@pytest.mark.parametrize("file_format", ["parquet", "npz"])
def test_tables_are_exported_and_imported(
    executor: Executor, tmp_path: Path, file_format: TableFileFormat
) -> None:
    def fitted_dlrm() -> tuple[nn.Module, FittedBatches, torch.optim.Optimizer]:
        model = DLRM(device="meta")
        (optimizer,) = OPTIMIZERS["adagrad"](model)
        job = InProcessJob(DATA)
        fitted, batches = fit_connected(
            model, DATA, optimizer=optimizer, connect=job.connect(executor)
        )
        return fitted, batches, optimizer

    model, first, optimizer = fitted_dlrm()
    with first:
        steps(model, first, [optimizer])
        weights = first.weights()
        assert [len(weight) for weight in weights.values()] == [*ROWS]
        first.save(tmp_path, file_format=file_format, state=True)
    _, second, _ = fitted_dlrm()
    with second:
        second.load(tmp_path)
        assert weights.keys() == second.weights().keys()
        for name, weight in second.weights().items():
            assert torch.equal(weights[name], weight)
        second.save(tmp_path / "again", file_format=file_format, state=True)
    for path in tmp_path.glob(f"*.{file_format}"):
        for columns in zip(read_rows(path), read_rows(tmp_path / "again" / path.name), strict=True):
            assert all(np.array_equal(*pair) for pair in zip(*columns, strict=True))


@pytest.mark.parametrize("file_format", ["parquet", "npz"])
def test_training_goes_on_with_the_state_of_imported_rows(
    executor: Executor, tmp_path: Path, file_format: TableFileFormat
) -> None:
    """Its steps began with 1: SparseAdam's moments counted as those of the first step."""

    def weights(*, save: bool, load: bool) -> dict[str, Tensor]:
        model = ByFeature()
        optimizer = torch.optim.SparseAdam([*model.parameters()], lr=0.05)
        connect = InProcessJob(DATA).connect(executor)
        fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=connect)
        with batches:
            if load:
                batches.load(tmp_path)
            else:
                steps(fitted, batches, [optimizer])
            if save:
                batches.save(tmp_path, file_format=file_format, state=True)
            steps(fitted, batches, [optimizer])
            return batches.weights()

    expected = weights(save=True, load=False)
    for name, weight in weights(save=False, load=True).items():
        assert torch.equal(expected[name], weight)


def test_rows_without_state_leave_the_number_of_steps(executor: Executor, tmp_path: Path) -> None:
    model = ByFeature()
    optimizer = torch.optim.SparseAdam([*model.parameters()], lr=0.05)
    connect = InProcessJob(DATA).connect(executor)
    fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=connect)
    with batches:
        batches.save(tmp_path / "first", state=True)
        steps(fitted, batches, [optimizer])
        batches.save(tmp_path / "last")
        batches.load(tmp_path / "last")
        assert batches._steps == len(DATA.batches)  # pyright: ignore[reportPrivateUsage]
        batches.load(tmp_path / "first")
        assert batches._steps == 0  # pyright: ignore[reportPrivateUsage]


class ByFeature(nn.Module):
    """Tables by the names of features."""

    def __init__(self, dim: int = 2) -> None:
        super().__init__()
        names = ("user/id", "user%2Fid", "/")
        self.rows = nn.ModuleDict(
            {name: nn.Embedding(rows, dim) for name, rows in zip(names, ROWS, strict=True)}
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        tables = self.rows.values()
        return torch.cat([table(ids[:, column]) for column, table in enumerate(tables)], 1).sum(1)


@pytest.mark.parametrize("file_format", ["parquet", "npz"])
def test_names_of_tables_may_have_slashes(
    executor: Executor, tmp_path: Path, file_format: TableFileFormat
) -> None:
    """Their files were in folders that did not exist, or elsewhere."""
    _, batches, _, _ = fitted_model(executor, ByFeature())
    with batches:
        batches.save(tmp_path, file_format=file_format)
        assert {path.name for path in tmp_path.iterdir()} == {
            f"rows.{name}.{file_format}" for name in ("user%2Fid", "user%252Fid", "%2F")
        }
        batches.load(tmp_path)


def test_a_folder_with_files_of_two_saves_is_refused(executor: Executor, tmp_path: Path) -> None:
    """The rows of the Parquet files were loaded, whichever had been saved last."""
    _, batches, _, _ = fitted_model(executor)
    with batches:
        batches.save(tmp_path)
        batches.save(tmp_path, file_format="npz")
        with pytest.raises(EmbeddingError, match=r"has tables.0.parquet and tables.0.npz, need"):
            batches.load(tmp_path)


def test_a_format_that_does_not_exist_is_refused(executor: Executor, tmp_path: Path) -> None:
    """Files were NumPy's under its name, and a load did not see them."""
    _, batches, _, _ = fitted_model(executor)
    with batches, pytest.raises(EmbeddingError, match="file_format is 'csv', needs parquet or npz"):
        batches.save(tmp_path / "rows", file_format=cast("TableFileFormat", "csv"))
    assert not (tmp_path / "rows").exists()


def test_a_folder_that_tables_cannot_be_written_to_is_named(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full device the error had no path."""

    def full() -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _, batches, _, _ = fitted_model(executor)
    with batches:
        with monkeypatch.context() as patched:
            patched.setattr(table_files, "whole_files", full)
            with pytest.raises(EmbeddingError, match="rows: tables cannot be written: No space le"):
                batches.save(tmp_path / "rows")
        batches.save(tmp_path / "rows")


def test_a_save_that_fails_leaves_all_tables_of_the_one_before(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some were of the epoch before, which a load took with the others."""
    fitted, batches, optimizer, _ = fitted_model(executor)
    written: list[object] = []

    def write(*arguments: Any) -> None:
        if len(written) == len(ROWS) - 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(arguments)
        arguments[0].write(b"rows")

    with batches:
        batches.save(tmp_path)
        saved = {path: path.read_bytes() for path in tmp_path.iterdir()}
        steps(fitted, batches, [optimizer])
        with monkeypatch.context() as patched:
            patched.setattr(table_files, "_write_parquet", write)
            with pytest.raises(EmbeddingError, match="No space left"):
                batches.save(tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == saved
        batches.save(tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} != saved


def test_files_of_other_tables_are_refused(executor: Executor, tmp_path: Path) -> None:
    _, batches, _, _ = fitted_model(executor)
    with batches:
        with pytest.raises(EmbeddingError, match=r"has no file of table tables\.0"):
            batches.load(tmp_path)
        for table in range(3):
            np.savez(tmp_path / f"tables.{table}.npz", id=np.arange(9), row=np.zeros((9, 5)))
        with pytest.raises(EmbeddingError, match=r"rows have 5 numbers, table tables\.0 needs 4"):
            batches.load(tmp_path)
        for table in range(3):
            np.savez(tmp_path / f"tables.{table}.npz", id=np.arange(9), row=np.zeros((9, 4)))
        with pytest.raises(EmbeddingError, match=r"ids of 0 to 8, table tables\.1 needs 0 to 6"):
            batches.load(tmp_path)


@pytest.mark.parametrize("file_format", ["parquet", "npz"])
def test_the_state_of_another_optimizer_is_no_part_of_rows(
    executor: Executor, tmp_path: Path, file_format: TableFileFormat
) -> None:
    """Sums of squares were loaded as numbers of rows of twice the dim."""
    model = ByFeature()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    connect = InProcessJob(DATA).connect(executor)
    fitted, batches = fit_connected(model, DATA, optimizer=optimizer, connect=connect)
    with batches:
        steps(fitted, batches, [optimizer])
        batches.save(tmp_path, file_format=file_format, state=True)
    for dim, end in ((4, ""), (2, ": save them without state for another optimizer")):
        _, batches, _, _ = fitted_model(executor, ByFeature(dim))
        message = f"rows have 2 numbers and 2 of an optimizer's state, table .* needs {dim}{end}$"
        with batches, pytest.raises(EmbeddingError, match=message):
            batches.load(tmp_path)


def test_tables_are_loaded_beside_new_ones(executor: Executor, tmp_path: Path) -> None:
    """A folder without the file of a new table was refused: its other rows could not be taken."""
    fitted, batches, optimizer, _ = fitted_model(executor)
    with batches:
        steps(fitted, batches, [optimizer])
        trained = batches.weights()
        batches.save(tmp_path)
    (tmp_path / "tables.2.parquet").unlink()
    _, batches, _, _ = fitted_model(executor)
    with batches:
        initial = batches.weights()
        batches.load(tmp_path, tables=["tables.1", "tables.0"])
        weights = batches.weights()
        for number, expected in enumerate((trained, trained, initial)):
            name = f"tables.{number}.weight"
            assert torch.equal(weights[name], expected[name])
        for names in ("tables.1", ["tables.1", "tables.3"]):
            with pytest.raises(EmbeddingError, match=r"needs a list of some of tables\.0, tables"):
                batches.load(tmp_path, tables=names)


def _truncated(path: Path) -> None:
    np.savez(path, id=np.arange(7), row=np.zeros((7, 4)))
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("ending", "write", "found"),
    [
        ("npz", lambda path: path.write_bytes(b"rows"), "pickled"),
        ("npz", _truncated, "not a zip file"),
        ("npz", lambda path: np.savez(path, id=np.arange(7)), "row is not a file"),
        ("npz", lambda path: np.savez(path, id=np.arange(7), row=np.zeros(7)), r"row \w+ \(7,\)"),
        (
            "npz",
            lambda path: np.savez(path, id=np.arange(3.0), row=np.zeros((3, 4))),
            "id is float64",
        ),
        (
            "npz",
            lambda path: np.savez(path, id=np.arange(3), row=np.full((3, 4), "a")),
            "row <U1",
        ),
        ("parquet", lambda path: path.write_bytes(b"rows"), "Parquet"),
        (
            "parquet",
            lambda path: pq.write_table(pa.table({"id": [1], "row": [[0.0] * 4]}), path),
            "row list<.*lists of one fixed size",
        ),
    ],
)
def test_files_that_are_not_of_rows_are_named(
    executor: Executor, tmp_path: Path, ending: str, write: Callable[[Path], object], found: str
) -> None:
    """They ended in tracebacks of NumPy and PyArrow, without the file's name."""
    _, batches, _, _ = fitted_model(executor)
    for table in range(len(ROWS)):
        write(tmp_path / f"tables.{table}.{ending}")
    with (
        batches,
        pytest.raises(EmbeddingError, match=rf"tables\.0\.{ending}: cannot be read as .*{found}"),
    ):
        batches.load(tmp_path)


def test_a_large_table_is_no_tensor() -> None:
    table = EmbeddingTable(name="users", rows=(1 << 27) + 1, dim=2)
    job = description(tables=(table,), groups=table_groups((table,)))
    with pytest.raises(EmbeddingError, match="table users has too many rows for a tensor of all"):
        whole_table(cast(ServerConnections, None), job, 0)
