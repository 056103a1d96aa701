"""Batches of a fitted model: training's, epoch by epoch, and those of evaluation between them."""

import weakref
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.amp import GradScaler

from headrace.embeddings.data.files import ExampleData, check_data
from headrace.embeddings.data.loader import LoaderData
from headrace.embeddings.errors import EmbeddingError
from headrace.embeddings.run.batches import LENGTHS
from headrace.embeddings.run.commits import Beginning
from headrace.embeddings.run.description import JobDescription
from headrace.embeddings.run.model.evaluation import ahead, evaluation_rows
from headrace.embeddings.run.model.leaves import BatchIds, Leaves, ModuleRows
from headrace.embeddings.run.model.loss_scale import follow_scaler
from headrace.embeddings.run.model.optimizer_groups import BatchParameters, RuledRows
from headrace.embeddings.run.model.table_files import (
    TableFileFormat,
    load_tables,
    save_tables,
    whole_table,
)
from headrace.embeddings.run.step_times import TrainerTimes
from headrace.embeddings.run.trainers.agree import TAG, any_trainer, first_trainers
from headrace.embeddings.run.trainers.cache import HostCopies
from headrace.embeddings.run.trainers.committer import Committer, Position
from headrace.embeddings.run.trainers.connections import TrainerConnections
from headrace.embeddings.run.trainers.dense import DenseGradients
from headrace.embeddings.run.trainers.synchronise import RowCommit
from headrace.embeddings.run.trainers.trainer import RowsOfBatch, TrainerRows
from headrace.errors import CommunicationError
from headrace.evaluation import evaluating
from headrace.forks import ForkMark

Batch = tuple[Any, ...]
"""A batch in the data's own form: dense features, ids and, of labelled examples, labels.

Ids are [examples, columns]; where a column has bags, a tuple with [examples] for each column, or
(ids, offsets) of bags. They are numbers that stand for those of the data.
"""

_ROWS_TAG = TAG + 1
_EVALUATION = "an evaluation"


class FittedBatches:
    """Batches of a fitted model: what `headrace.embeddings.TrainingBatches` says."""

    def __init__(
        self,
        model: nn.Module,
        connections: TrainerConnections,
        description: JobDescription,
        ruled: RuledRows,
        leaves: Leaves,
        dense: DenseGradients,
        device: torch.device,
        scaler: GradScaler | None = None,
        committer: Committer | None = None,
    ) -> None:
        self._model = model
        self._connections = connections
        self._description = description
        self._ruled = ruled
        self._leaves = leaves
        self._dense = dense
        self._device = device
        self._copies = HostCopies(device, own_stream=False)
        self._added = BatchParameters(ruled)
        self._rows: TrainerRows | None = None
        self._committer = committer
        self._beginning = Beginning() if committer is None else committer.beginning
        self._epoch = self._beginning.epoch
        self._epoch_began = self._beginning.epoch_began
        self._next_batch = self._beginning.batch
        self._epoch_commit: RowCommit | None = None
        self._loaded_since = False  # the epoch that ended last
        self._busy: str | None = None
        self._mark = ForkMark()
        self._ends = ExitStack()
        self._ends.callback(connections.close)
        self._ends.callback(connections.servers.close)
        if committer is not None:
            self._ends.callback(committer.close)
        # also where a script ends without it: connections before the interpreter's threads
        self._finalizer = weakref.finalize(self, _end_at_owner, self._mark, self._ends.close)
        own = partial(_existing, weakref.ref(self))
        ruled.optimizer.register_step_pre_hook(lambda *_: own()._before_step())
        ruled.optimizer.register_step_post_hook(lambda *_: own()._step())
        if scaler is not None:
            follow_scaler(
                scaler,
                ruled.optimizer,
                pending=lambda: own()._pending() is not None,
                any_trainer=lambda flag: own()._any_trainer("a step with a scaled loss", flag),
                unscaled=dense.remember,
                skip=lambda: own()._skip(),
            )

    @property
    def times(self) -> TrainerTimes:
        """As in `TrainingBatches`."""
        return TrainerTimes() if self._rows is None else self._rows.times

    @property
    def epoch(self) -> int:
        """As in `TrainingBatches`."""
        return self._epoch

    @property
    def batch(self) -> int:
        """As in `TrainingBatches`."""
        return self._next_batch

    def __iter__(self) -> Iterator[Batch]:
        self._check_free(f"epoch {self._epoch}")
        return self._epoch_batches()

    def evaluate(self, data: ExampleData) -> Generator[Batch]:
        """As in `TrainingBatches`."""
        check_data(data)
        if data.columns != self._leaves.column_count:
            raise EmbeddingError(
                f"the evaluation data have {data.columns} columns of ids, needs the "
                f"{self._leaves.column_count} of the data that fit got"
            )
        if isinstance(data, LoaderData) and self._connections.executor.ranks > 1:
            data.share_order(self._description.seed)
        self._check_free(_EVALUATION)
        return self._evaluation_batches(data)

    def weights(self) -> dict[str, Tensor]:
        """As in `TrainingBatches`."""
        with self._between_epochs("an export"):
            servers, description = self._connections.servers, self._description
            return {
                name: torch.from_numpy(whole_table(servers, description, number))
                for number, name in enumerate(self._leaves.weight_names)
            }

    def save(
        self, folder: str | Path, *, file_format: TableFileFormat = "parquet", state: bool = False
    ) -> None:
        """As in `TrainingBatches`."""
        with self._between_epochs("an export"), self._first_trainer("the export") as is_first:
            if is_first:
                servers = self._connections.servers
                steps = self._steps if state else None
                save_tables(servers, self._description, Path(folder), file_format, steps=steps)

    def load(self, folder: str | Path, *, tables: Collection[str] | None = None) -> None:
        """As in `TrainingBatches`."""
        if self._rows is None and self._next_batch > 0:
            raise EmbeddingError(
                f"the job began from a commit of {self._next_batch} batches, whose rows an import "
                "would overwrite: import where batches.batch is 0, or give the job another "
                "--state folder"
            )
        with self._between_epochs("an import"):
            self._loaded_since = True  # also by an import that fails behind some rows
            steps, connections = self._steps, self._connections
            with self._first_trainer("the import") as is_first:
                if is_first:
                    servers = connections.servers
                    steps = load_tables(servers, self._description, Path(folder), steps, tables)
            executor, deadline_s = connections.executor, connections.deadline_s
            self._steps = first_trainers(executor, deadline_s, "the end of the import", steps)

    @property
    def _steps(self) -> int:
        """Training steps so far, by which the optimizers weigh rows' state."""
        return self._beginning.steps if self._rows is None else self._rows.steps

    @_steps.setter
    def _steps(self, steps: int) -> None:
        if self._rows is None:
            self._beginning = replace(self._beginning, steps=steps)
        else:
            self._rows.steps = steps

    @contextmanager
    def _between_epochs(self, purpose: str) -> Generator[None]:
        if self._connections.ideal:
            raise EmbeddingError(f"the job is ideal: its rows are wrong, and {purpose} has none")
        self._begin(purpose)
        try:
            yield
        finally:
            self._busy = None

    @contextmanager
    def _first_trainer(self, purpose: str) -> Generator[bool]:
        """Yield whether this is the first trainer; end when all have, at all alike.

        Raises
        ------
        EmbeddingError : it failed at the first trainer; there its own error goes on.
        """
        try:
            yield self._connections.executor.rank == 0
        except Exception:
            with suppress(CommunicationError, EmbeddingError):
                self._any_trainer(purpose, True)
            raise
        if self._any_trainer(purpose):
            raise EmbeddingError(f"{purpose} failed at trainer 0, whose error says why")

    def close(self) -> None:
        """As in `TrainingBatches`."""
        if self._mark.forked:
            return
        try:
            self._commit_epoch()
        finally:
            self._end()

    def _end(self, error: BaseException | None = None) -> None:
        """Close all; the other trainers get the error, if there is one."""
        self._busy = "closed"
        if self._rows is not None:
            self._rows.close_after(error)
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        error = raised[1]
        if isinstance(error, BaseException):
            self._end(error)
        else:
            self.close()

    def _check_owner(self) -> None:
        self._mark.check("the job of these batches")

    def _begin(self, purpose: str) -> None:
        self._check_free(purpose)
        self._busy = purpose

    def _check_free(self, purpose: str) -> None:
        self._check_owner()
        if self._busy == "closed":
            raise EmbeddingError(
                f"the batches are closed: {purpose} needs another fit, of a new model"
            )
        if self._busy is not None:
            remedy = "close the batches" if self._busy != _EVALUATION else "close that"
            raise EmbeddingError(
                f"{self._busy} has not ended, which {purpose} needs: go on with its iterator to "
                f"the end, or {remedy}"
            )

    def _epoch_batches(self) -> Iterator[Batch]:
        self._begin(f"epoch {self._epoch}")  # not before: an iterator may be dropped unused
        rows = self._started()
        if self._committer is not None:
            self._committer.restore_random()
        commit: RowCommit | None = None
        for batch in rows:
            if commit is not None and self._committer is not None:
                with rows.waiting_for_commit():
                    self._committer.begin(commit, self._position(rows))
            if batch.batch.examples_in_all > 0:
                yield self._trained(batch)
                self._check_owner()  # a child that goes on with the loop
            else:  # all of its lines were rejected: the mean of its losses is no number
                rows.skip()
            self._next_batch = batch.batch.batch + 1
            commit = rows.take_commit()
        self._leaves.clear()
        self._any_trainer(f"the end of epoch {self._epoch}")  # all rows are at the servers
        self._epoch += 1
        self._epoch_began = self._next_batch
        if self._committer is not None:
            # One that is due with the last batch is the epoch's: no row stays in a cache after it.
            self._epoch_commit = commit or rows.commit(self._next_batch - 1)
            self._epoch_commit.servers.result()  # what is loaded next belongs to a later one
            self._loaded_since = False
        self._busy = None

    def _commit_epoch(self) -> None:
        """Make the commit of the epoch that ended last, with the state of now.

        What the loop does after an epoch, such as the step of a schedule, is in it.
        """
        commit, self._epoch_commit = self._epoch_commit, None
        if commit is None or self._committer is None or self._rows is None:
            return
        # else the commit waits for a trainer that left, or is elsewhere, up to the deadline
        self._any_trainer(f"the commit of epoch {self._epoch - 1}")
        if self._loaded_since:  # at all trainers: the rows' commit is without them, and not marked
            commit = self._rows.commit(commit.batch)
        self._committer.begin(commit, self._position(self._rows))
        self._committer.finish()

    def _position(self, rows: TrainerRows) -> Position:
        return Position(
            epoch=self._epoch,
            epoch_began=self._epoch_began,
            batch=self._next_batch,
            steps=rows.steps,
        )

    def _evaluation_batches(self, data: ExampleData) -> Generator[Batch]:
        self._begin(_EVALUATION)
        connections = self._connections
        executor = connections.executor
        batches = evaluation_rows(
            data,
            self._description,
            connections.servers,
            executor.rank,
            executor.ranks,
            self._device,
        )
        try:
            self._any_trainer(_EVALUATION)  # else one alone has the metrics of its share
            with evaluating(self._model):
                for batch in ahead(batches):
                    examples = batch.examples
                    ids = self._leaves.set(batch.tables, len(examples), batch.shared_lengths)
                    labels = () if examples.labels is None else (examples.labels,)
                    yield self._form(examples.dense, ids, *labels)
                    self._check_owner()
        finally:
            self._leaves.clear()
            if self._busy == _EVALUATION:
                self._busy = None

    def _started(self) -> TrainerRows:
        """Return the rows of the epoch that begins, when all trainers have ended evaluation."""
        self._commit_epoch()
        self._any_trainer(f"the beginning of epoch {self._epoch}")
        connections = self._connections
        stream = connections.epoch(self._epoch)
        if self._rows is not None:
            self._rows.restart(stream)
            return self._rows
        self._rows = TrainerRows(
            stream,
            connections.servers,
            connections.executor,
            self._description.groups,
            self._ruled.row_optimizers,
            slots=self._description.slots,
            prefetch=connections.prefetch,
            device=self._device,
            tag=_ROWS_TAG,
            deadline_s=connections.deadline_s,
            first_commit=self._beginning.commit,
            steps=self._beginning.steps,
        )
        self._ends.callback(self._rows.close)
        return self._rows

    def _trained(self, rows: RowsOfBatch) -> Batch:
        batch = rows.batch
        self._dense.weight = batch.examples / max(batch.examples_in_all, 1)
        ids = self._leaves.set(
            [
                ModuleRows(
                    rows=table.leaf, ids=table.ids, lengths=table.lengths, padding=table.padding
                )
                for table in rows.tables
            ],
            batch.examples,
            {
                int(name.removeprefix(LENGTHS)): self._copies.from_host(lengths)
                for name, lengths in batch.fields.items()
                if name.startswith(LENGTHS)
            },
        )
        self._added.add([table.leaf for table in rows.tables])
        labels = [batch.fields[name] for name in ("labels",) if name in batch.fields]
        return self._form(batch.fields["dense"], ids, *labels)

    def _form(self, dense: NDArray[Any], ids: BatchIds, *labels: NDArray[Any]) -> Batch:
        return (
            self._copies.from_host(dense),
            ids,
            *(self._copies.from_host(column) for column in labels),
        )

    def _pending(self) -> RowsOfBatch | None:
        """Return the batch that had no step yet."""
        return None if self._rows is None else self._rows.pending

    def _before_step(self) -> None:
        self._check_owner()
        if self._pending() is None:
            raise EmbeddingError(
                "the optimizer has a step without a batch: call it once for each batch that the "
                "iterator returns"
            )
        if getattr(self._ruled.optimizer, "grad_scale", None) is not None:
            raise EmbeddingError(
                "a fused optimizer divides gradients by a GradScaler's scale itself, which leaves "
                "out embedding rows: make it with fused=False"
            )
        self._dense.check_unchanged()
        self._added.remove()

    def _step(self) -> None:
        assert self._rows is not None
        self._rows.step(self._dense.take_average())
        self._leaves.unregister()

    def _skip(self) -> None:
        self._check_owner()
        assert self._rows is not None
        self._added.remove()
        self._rows.skip(self._dense.take_average())
        self._leaves.unregister()

    def _any_trainer(self, purpose: str, flag: bool = False) -> bool:
        """Return whether any trainer has the flag, when all are here."""
        executor, deadline_s = self._connections.executor, self._connections.deadline_s
        try:
            return any_trainer(executor, deadline_s, purpose, flag)
        except CommunicationError as error:
            raise CommunicationError(f"{purpose} needs all trainers: {error}") from error


def _existing(reference: "weakref.ref[FittedBatches]") -> FittedBatches:
    batches = reference()
    if batches is None:
        raise EmbeddingError(
            "the batches that fit returned are gone, and their job with them: keep them as long as "
            "their optimizer has steps"
        )
    return batches


def _end_at_owner(mark: ForkMark, close: Callable[[], None]) -> None:
    """Close what a trainer has, in the process that has it: not as a child ends."""
    if not mark.forked:
        close()
