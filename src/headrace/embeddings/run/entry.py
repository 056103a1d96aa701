"""The entry of a user's script: `fit` joins the job that the script was started for."""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from headrace.embeddings.data.files import FORMATS, ExampleData
from headrace.embeddings.data.loader import LoaderData
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.join import join_job
from headrace.embeddings.run.model.fit import fit_connected
from headrace.embeddings.run.readers.script_reader import serve_batches
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.embeddings.run.trainers.connections import TrainerConnections
from headrace.embeddings.run.trainers.trainer_state import Stateful
from headrace.embeddings.settings import EmbeddingSettings
from headrace.embeddings.tables import InitialValues
from headrace.facades import offered_by

_CACHE_BYTES = 1 << 30
"""Of each trainer's caches, where neither the script nor a plan says."""

_first_data: list[ExampleData] = []
"""Data of the first `fit` of this process; none before it."""


@offered_by("headrace.embeddings")
class TrainingBatches(Protocol):
    """A trainer's share of every batch; a context manager that closes them.

    Iterating is an epoch; the optimizer's step ends a batch::

        for epoch in range(batches.epoch, 3):
            for dense, ids, labels in batches:
                loss = criterion(model(dense, ids), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for dense, ids, labels in batches.evaluate(test_data):
                ...

    An epoch's end writes all rows to the servers. One that is left before it has to be gone on with
    by its iterator, or closed. In the middle of one, or of an evaluation, what begins another, and
    exports and imports, raise EmbeddingError. All raise CommunicationError where a process of the
    job failed.
    """

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Begin an epoch: its batches are (dense, ids, labels), in the data's own form.

        Ids are numbers that stand for those of the data.

        Raises
        ------
        EmbeddingError : at the batch after one that had no step.
        """
        ...

    @property
    def epoch(self) -> int:
        """Epochs that ended, those before the commit that the job began from included."""
        ...

    @property
    def batch(self) -> int:
        """Number of the batch that is trained on, else of the next one, over all epochs.

        Behind `fit` it is 0, unless the job began from a commit.
        """
        ...

    @property
    def times(self) -> TrainerTimes:
        """Sums over this trainer's steps so far: seconds by part, rows and bytes."""
        ...

    def evaluate(self, data: ExampleData) -> Generator[tuple[Any, ...]]:
        """Yield this trainer's share of every batch of evaluation data; all trainers call it.

        The model is in its mode for evaluation meanwhile. Rows are read from the servers, and none
        is created: one that training has not used has its initial values. Where an
        iterator that a loop has left is held, as by a progress bar, its `close()` ends it.

        Raises
        ------
        EmbeddingError : the data have another form, or number of columns, than training's; a
            loader shuffles them differently at each of several trainers; at the first batch where
            another trainer does not evaluate; at a batch with an id outside its table.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """Return all embedding weights by their names: [rows, dim].

        Names are those in the state of the model that `fit` got, which several trainers have as
        `model.module`. Rows that training has not used have their initial values.

        Raises
        ------
        EmbeddingError : a table is too large.
        """
        ...

    def save(
        self,
        folder: str | Path,
        *,
        file_format: Literal["parquet", "npz"] = "parquet",
        state: bool = False,
    ) -> None:
        """Write the rows that exist to a folder, a file for each table.

        All trainers call it; the first one writes, and the others wait for it, up to
        HEADRACE_DEADLINE_S. A file has the table's name, with "%2F" for "/" and "%25" for "%".
        Those of an earlier save are replaced when all are written, which takes room for both.

        Parameters
        ----------
        file_format : Parquet, or NumPy's: columns `id`, rising, and `row`.
        state : whether rows have the optimizer's state behind the numbers that the model reads, and
            files the number of training steps, by which some optimizers weigh it.
        """
        ...

    def load(self, folder: str | Path, *, tables: Collection[str] | None = None) -> None:
        """Write the rows in a folder that `save` made to the servers.

        All trainers call it; the first one reads, and the others wait for it, up to
        HEADRACE_DEADLINE_S. With the optimizer's state training steps are numbered on from those of
        the files.

        Parameters
        ----------
        tables : names of those to load, as where a model has new ones beside them; None: all.

        Raises
        ------
        EmbeddingError : a file is missing, or of another table, or has the state of another
            optimizer; or the job began from a commit, and has trained on no batch since.
        """
        ...

    def close(self) -> None:
        """End this trainer's part of the job; in the middle of an epoch, the other trainers' too.

        The rows of that epoch are then not all at the servers. Else the last epoch is committed,
        where the job makes commits.
        """
        ...

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close; after an error without a commit."""
        ...


def fit(
    model: nn.Module,
    data: ExampleData,
    *,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    cache: str | int | None = None,
    ids: Mapping[str, Sequence[int]] | None = None,
    initial: InitialValues | Mapping[str, InitialValues] | None = None,
    forward: Callable[[nn.Module, tuple[Any, ...]], object] | None = None,
    scaler: GradScaler | None = None,
    state: Mapping[str, Stateful] | None = None,
    find_unused_parameters: bool = False,
    seed: int = 0,
) -> tuple[nn.Module, TrainingBatches]:
    """Put a model's embedding rows into servers and caches; return it, and the batches to train on.

    The job is that of ``headrace embeddings run``. A script that was started without it starts
    servers, a reader and a cacher, and trains alone. In a process that is to read for trainers
    (``--script-reads``) it serves the batches of `data`, and does not return.

    The embedding weights leave the model and the optimizer, whose step updates the rows by the
    options of their parameter group, with a new state. Of several trainers each gets the model in
    DistributedDataParallel. If it fails, model and optimizer are as they were.

    Parameters
    ----------
    model : with nn.Embedding or nn.EmbeddingBag, before DistributedDataParallel. A weight on the
        device "meta" begins with the values of `initial`, another one with its own.
    data : to train on, the same at all trainers.
    optimizer : that has the embedding weights; or all of the model's, where there are several.
    cache : of each trainer, in bytes or as "1GiB"; by default the plan's, else 1 GiB.
    ids : columns of the data's ids that a module looks up, by its name; found by a run if absent.
    initial : of rows whose weight is on "meta", in all or by name; within 1/sqrt(rows) if absent.
    forward : runs the model on a batch (dense, ids, labels); `model(dense, ids)` if absent.
    scaler : that scales the loss, if there is one: steps that it skips are skipped for rows, too.
    state : further objects that commits save, by name, such as schedules and the scaler.
    find_unused_parameters : of DistributedDataParallel: a step may leave out a part, as a tower.
    seed : of initial values.

    Raises
    ------
    EmbeddingError : the model, the optimizer or an option of them is not served, by name; the cache
        has no room.
    CommunicationError : a process of the job failed, or is not there.
    """
    settings = _settings_of_trainer(data)
    return fit_connected(
        model,
        data,
        optimizer=optimizer,
        connect=partial(_join, data),
        cache=(settings.cache_bytes or _CACHE_BYTES) if cache is None else cache,
        ids=ids,
        initial=initial,
        forward=forward,
        scaler=scaler,
        state=state,
        find_unused_parameters=find_unused_parameters,
        seed=seed,
    )


def _settings_of_trainer(data: ExampleData) -> EmbeddingSettings:
    """Return settings; a process that is to read serves batches of data, and does not return."""
    settings = EmbeddingSettings.from_environment()
    if settings.role == "reader":
        serve_batches(data)
    if not _first_data:
        _first_data.append(data)
    return settings


def _join(data: ExampleData, description: JobDescription) -> TrainerConnections:
    """Join the job; see `join_job`.

    Raises
    ------
    EmbeddingError : another process of the script would read other data: those of its first `fit`.
    """
    alone = EmbeddingSettings.from_environment().cacher is None
    if alone and description.data.get("format") not in FORMATS and not _are_first(data):
        raise EmbeddingError(
            "this script has called fit with other data before, and the process that reads a "
            "loader's data runs the script up to its first fit: fit this model in a script of its "
            "own, or with the loader of the first fit"
        )
    return join_job(description)


def _are_first(data: ExampleData) -> bool:
    (first,) = _first_data
    if isinstance(first, LoaderData) and isinstance(data, LoaderData):
        return first.loader is data.loader and first.to_fields() == data.to_fields()
    return first is data
