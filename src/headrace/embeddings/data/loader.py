"""Data of a script's own: batches of a loader, such as torch's DataLoader."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.data.examples import Examples, is_count
from headrace.embeddings.data.rejects import Rejects
from headrace.embeddings.errors import EmbeddingError
from headrace.facades import offered_by

_MOST_ID = (1 << 63) - 1

_NUMBERS = "biuf"
"""Kinds of NumPy's types that are numbers."""

_BY_GENERATOR = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
"""torch's samplers with an attribute `generator`; known by name, as nothing here loads torch."""

_SHUFFLE = (
    "Shuffle by DataLoader(..., generator=torch.Generator().manual_seed(0)), by a "
    "DistributedSampler of one replica, or by a loader or sampler with a method set_epoch(epoch)"
)


@offered_by("headrace.embeddings")
class LoaderData:
    """Batches of a loader that yields (dense, ids, labels), or (dense, ids).

    Dense features are [examples, features], ids [examples, columns] of integers, and labels
    [examples] or [examples, labels]: tensors or arrays. Dense features and labels become float32. A
    batch is that of all trainers together. Readers that run the script iterate the loader, once an
    epoch.

    Several readers, one that starts again, and commits need an order that follows from the epoch
    alone: that of a list, of a dataset from its first example to its last, of a sampler with a
    `generator`, whose seed in an epoch is its first seed plus the epoch's number, or of a loader,
    sampler or iterable dataset with `set_epoch`, which is called. Others are refused then, and
    `persistent_workers` beside a loader's generator or a dataset's `set_epoch`.

    Parameters
    ----------
    batch : examples of a batch; the last one of an epoch may be shorter.
    columns : of ids.

    Raises
    ------
    EmbeddingError : `batch` or `columns` is no int or below 1; the loader has the examples of one
        of several replicas.
    """

    def __init__(self, loader: Iterable[Any], *, batch: int, columns: int) -> None:
        for name, number in (("batch", batch), ("columns", columns)):
            if not is_count(number):
                raise EmbeddingError(
                    f"{name} of a loader's data is {number!r}, needs 1 or more, an int"
                )
        self._loader = loader
        self._batch = batch
        self._columns = columns
        self._begun = False
        self._order = _LoaderOrder(loader)
        if self._order.replicas > 1:
            raise EmbeddingError(
                f"the loader's {self._order.source} is one of {self._order.replicas} replicas, "
                "needs all examples of a batch, which are shared out to the trainers here: make it "
                "with num_replicas=1, rank=0, and batches of all trainers together"
            )
        self._epochs = 0

    @property
    def loader(self) -> Iterable[Any]:
        """The loader."""
        return self._loader

    @property
    def batch(self) -> int:
        """Examples of a batch."""
        return self._batch

    @property
    def columns(self) -> int:
        """Columns of ids."""
        return self._columns

    def check_order(self) -> None:
        """Check that the order of batches follows from the epoch alone.

        Raises
        ------
        EmbeddingError : it need not; names what gives the loader its order.
        """
        if self._order.follows_epoch and not self._order.follows_workers:
            return
        remedy = (
            "Make it with persistent_workers=False: its workers follow earlier epochs, too"
            if self._order.follows_epoch
            else _SHUFFLE
        )
        raise EmbeddingError(
            f"the loader's order is that of a {self._order.source}, which may be another one in "
            "another process: commits (--state), several readers and a reader that starts again "
            f"need one order. {remedy}"
        )

    def share_order(self, seed: int) -> None:
        """Let processes that read it at the same time have one order of batches.

        Parameters
        ----------
        seed : of all of them, in place of each one's own, for a generator that shuffles.

        Raises
        ------
        EmbeddingError : torch's global random numbers, each process's own, give the order.
        """
        if self._order.by_global_numbers:
            raise EmbeddingError(
                f"the loader's order is that of a {self._order.source} without a generator, "
                "another one at each trainer: their shares of a batch would have some examples "
                f"twice, and others not. Leave out shuffle=True. {_SHUFFLE}"
            )
        self._order.seed_generator(seed)

    def begin_epoch(self, epoch: int, *, alone: bool) -> None:
        """Let the loader have its order of an epoch.

        Parameters
        ----------
        alone : whether this process reads all of its batches.

        Raises
        ------
        EmbeddingError : as `check_order`, unless this process alone read all epochs so far.
        """
        if not alone or epoch != self._epochs:
            self.check_order()
        self._epochs = epoch + 1
        self._order.begin(epoch)

    def read(self, rejects: Rejects | None = None) -> Iterator[Examples]:
        """Yield the batches of an epoch; nothing is rejected.

        Raises
        ------
        EmbeddingError : a batch has other columns, another type or number of examples or labels, or
            ids that are negative or 2^63 or more; the loader is a generator that was read before.
        """
        del rejects
        if isinstance(self._loader, Iterator):
            if self._begun:
                raise EmbeddingError(
                    f"the loader is a {type(self._loader).__name__}, whose batches can be read "
                    "once: pass what begins anew in every epoch, as a DataLoader does"
                )
            self._begun = True
        for number, batch in enumerate(self._loader):
            yield self._examples(number, batch)

    def first(self, examples: int) -> Examples:
        """Return the first examples.

        Raises
        ------
        EmbeddingError : as `read`; or the loader has no batch with examples.
        """
        for batch in self.read():
            if len(batch):
                return batch[:examples]
        raise EmbeddingError("the loader has no batch with examples")

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can express it; the loader itself stays in the script."""
        fields = {"format": "loader", "batch": self._batch, "columns": self._columns}
        return fields if self._order.seed is None else {**fields, "seed": self._order.seed}

    def _examples(self, number: int, batch: Any) -> Examples:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise EmbeddingError(
                f"batch {number} of the loader is a {type(batch).__name__}, needs (dense, ids, "
                "labels) or (dense, ids)"
            )
        try:
            columns: list[NDArray[Any]] = [np.asarray(column) for column in batch]
        except (TypeError, ValueError, RuntimeError) as error:  # of bfloat16, or with a gradient
            raise EmbeddingError(
                f"batch {number} of the loader has a column that NumPy does not read, needs "
                f"tensors of float32 or int64 without gradients, or arrays: {error}"
            ) from error
        dense, ids, *labels = columns
        if ids.dtype.kind not in "iu" or ids.ndim != 2 or ids.shape[1] != self._columns:
            raise EmbeddingError(
                f"batch {number} of the loader has ids of {ids.dtype} and shape {ids.shape}, needs "
                f"integers of [examples, {self._columns}]"
            )
        if ids.dtype == np.uint64 and ids.size and int(ids.max()) > _MOST_ID:
            raise EmbeddingError(
                f"batch {number} of the loader has id {ids.max()}, needs less than 2^63: take the "
                "lowest bit off hashes of 64 bits"
            )
        if ids.size and int(ids.min()) < 0:
            raise EmbeddingError(
                f"batch {number} of the loader has id {ids.min()}, needs 0 or more: give what is "
                "missing a row of its own"
            )
        if dense.dtype.kind not in _NUMBERS:
            raise EmbeddingError(
                f"batch {number} of the loader has dense features of {dense.dtype}, needs numbers"
            )
        if dense.ndim != 2 or not len(dense) == len(ids) <= self._batch:
            raise EmbeddingError(
                f"batch {number} of the loader has dense features of shape {dense.shape} beside "
                f"ids of {len(ids)} examples, needs [examples, features] of {self._batch} at most"
            )
        for label in labels:
            by_example = label.shape[:1] == (len(ids),) or (label.size, len(ids)) == (1, 1)
            if not by_example or label.dtype.kind not in _NUMBERS:
                raise EmbeddingError(
                    f"batch {number} of the loader: {len(ids)} examples have labels of "
                    f"{label.dtype} and shape {label.shape}, needs numbers of [examples] or "
                    "[examples, labels]"
                )
        return Examples(  # copies: a loader may fill the memory of a batch again
            labels=_float_labels(labels[0], len(ids)) if labels else None,
            dense=dense.astype(np.float32),
            ids=tuple(np.array(column, np.int64) for column in ids.T),
            lengths=(None,) * self._columns,
        )


def _float_labels(labels: NDArray[Any], examples: int) -> NDArray[np.float32]:
    """Return labels in their own form, [examples] or [examples, labels], as a loss has them."""
    return labels.astype(np.float32).reshape(examples, *labels.shape[1:])


class _LoaderOrder:
    """Order of a loader's batches, by the epoch.

    Attributes
    ----------
    source : class of what gives the loader its order.
    follows_epoch : whether it follows from the epoch alone, in any process.
    follows_workers : whether it follows from earlier epochs all the same, as its workers persist:
        they have a copy of a dataset, and torch draws their seed from a generator once.
    seed : of the generator that shuffles in the first epoch; None: none does.
    by_global_numbers : whether torch's global random numbers shuffle.
    replicas : that share the examples, by a DistributedSampler.
    """

    def __init__(self, loader: Any) -> None:
        sampler = _sampler_of(loader)
        self.source = type(sampler).__name__
        self.replicas = int(getattr(sampler, "num_replicas", 1))
        self._set_epoch = getattr(sampler, "set_epoch", None)
        by_generator = self.source in _BY_GENERATOR and self._set_epoch is None
        self._generator = sampler.generator if by_generator else None
        self.seed = None if self._generator is None else int(self._generator.initial_seed())
        self.by_global_numbers = by_generator and self._generator is None
        self.follows_epoch = (
            self._set_epoch is not None
            or self.seed is not None
            or self.source == "SequentialSampler"
            or isinstance(sampler, (Sequence, np.ndarray))
        )
        self.follows_workers = bool(getattr(loader, "persistent_workers", False)) and (
            sampler is getattr(loader, "dataset", None)
            or (
                self._generator is not None
                and self._generator is getattr(loader, "generator", None)
            )
        )

    def begin(self, epoch: int) -> None:
        """Let the loader have the order of an epoch."""
        if self._set_epoch is not None:
            self._set_epoch(epoch)
        elif self.seed is not None:
            self.seed_generator(self.seed + epoch)

    def seed_generator(self, seed: int) -> None:
        """Give a generator that shuffles, if there is one, a seed."""
        if self._generator is not None:
            self._generator.manual_seed(seed & _MOST_ID)


def _sampler_of(loader: Any) -> Any:
    """Return the origin of a loader's order: a sampler or dataset of torch's, else the loader."""
    if hasattr(loader, "set_epoch") or not hasattr(loader, "batch_sampler"):
        return loader
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if type(sampler).__name__ == "BatchSampler":
        sampler = sampler.sampler
    # torch's, of a dataset without indices
    return loader.dataset if type(sampler).__name__ == "_InfiniteConstantSampler" else sampler
