"""Training in one process and by the rivals, on the same batches: the standard of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.embeddings.models import MODELS, auc
from benchmarks.embeddings.rivals import DistinctRows, MakeOptimizer, PooledRows
from headrace.embeddings import Examples
from headrace.embeddings.data.examples import share_ends

DENSE_RATE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model of `MODELS`, its tables and its numbers."""

    name: str
    counts: tuple[int, ...]
    dim: int
    integers: int = 13
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def dense_part(self) -> nn.Module:
        """Return the dense part, the same in every process."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return MODELS[self.name](len(self.counts), self.dim, self.integers).to(self.dtype)

    def table(self, number: int) -> Tensor:
        """Return the initial rows of a table: uniform from -1/sqrt(rows) to 1/sqrt(rows)."""
        generator = np.random.default_rng([self.seed, number])
        scale = self.counts[number] ** -0.5
        rows = generator.uniform(-scale, scale, (self.counts[number], self.dim))
        return torch.from_numpy(rows).to(self.dtype)


class Recommender(nn.Module):
    """A model with its tables, as one writes it for one process."""

    def __init__(self, shape: ModelShape, tables: Sequence[Tensor]) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(
            nn.Embedding.from_pretrained(rows.clone(), freeze=False) for rows in tables
        )
        self.dense_part = shape.dense_part()

    def forward(self, dense: Tensor, ids: Sequence[Tensor]) -> Tensor:
        """Return logits: [examples]."""
        rows = [table(column) for table, column in zip(self.embeddings, ids, strict=True)]
        return self.dense_part(dense, torch.stack(rows, dim=1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """Training in one process.

    Attributes
    ----------
    losses : of every batch, before its update.
    auc : of every batch's logits, before its update.
    tables : rows at the end.
    dense : parameters of the dense part at the end, by name.
    """

    losses: list[float]
    auc: list[float]
    tables: list[Tensor]
    dense: dict[str, Tensor]


def train_alone(
    shape: ModelShape,
    tables: Sequence[Tensor],
    epochs: Iterable[Iterable[Examples]],
    optimizer: MakeOptimizer,
    after_epoch: Callable[[Recommender], None] = lambda _: None,
) -> Trained:
    """Train in one process: the dense part by SGD, the tables by `optimizer`.

    Tables have coalesced sparse gradients, of the rows that a batch uses.

    Parameters
    ----------
    after_epoch : is called after every epoch but the last one.
    """
    model = Recommender(shape, tables)
    weights: list[Tensor] = [table.weight for table in model.embeddings]  # type: ignore[misc]
    optimizers = (
        torch.optim.SGD(model.dense_part.parameters(), lr=DENSE_RATE),
        optimizer(weights),
    )
    losses: list[float] = []
    areas: list[float] = []
    for number, epoch in enumerate(epochs):
        if number > 0:
            after_epoch(model)
        for batch in epoch:
            ids = [torch.from_numpy(column) for column in batch.ids]
            logits = model(_dense(batch, shape), ids)
            loss = functional.binary_cross_entropy_with_logits(logits, _labels(batch, shape))
            model.zero_grad()
            loss.backward()
            for weight, column in zip(weights, ids, strict=True):
                weight.grad = _of_rows(weight, column.unique())
            for part in optimizers:
                part.step()
            losses.append(float(loss.detach()))
            areas.append(auc(_clicks(batch), logits.detach().numpy()))
    return Trained(
        losses=losses,
        auc=areas,
        tables=[weight.detach() for weight in weights],
        dense={name: value.detach() for name, value in model.dense_part.named_parameters()},
    )


def _of_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Return a dense gradient's rows as a coalesced sparse one."""
    assert weight.grad is not None
    return torch.sparse_coo_tensor(
        rows[None],
        weight.grad[rows],
        list(weight.shape),
        is_coalesced=True,
        check_invariants=True,
    )


def _clicks(batch: Examples) -> NDArray[np.float32]:
    assert batch.labels is not None
    return batch.labels


def _labels(batch: Examples, shape: ModelShape) -> Tensor:
    return torch.from_numpy(_clicks(batch)).to(shape.dtype)


def _dense(batch: Examples, shape: ModelShape) -> Tensor:
    return torch.from_numpy(batch.dense).to(shape.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedShare:
    """One trainer's part of distributed training.

    Attributes
    ----------
    losses : of its share of every batch, weighted so that all trainers' add up to the batch's.
    rows : numbers of rows that it stores, and these rows, by table.
    """

    losses: list[float]
    rows: dict[int, tuple[Tensor, Tensor]]
    dense: dict[str, Tensor]


def train_by_rival(
    rival: str,
    shape: ModelShape,
    batches: Iterable[Examples],
    optimizer: MakeOptimizer,
    group: dist.ProcessGroup | None,
    after_step: Callable[[], None] = lambda: None,
) -> TrainedShare:
    """Train as one of the trainers of a group: "pooled" or "distinct" rows, the dense part by DDP.

    Parameters
    ----------
    batches : of all trainers together.
    after_step : called after every step.
    """
    rows = (
        PooledRows(group, shape.counts, shape.table, optimizer)
        if rival == "pooled"
        else DistinctRows(
            group, shape.counts, lambda table, numbers: shape.table(table)[numbers], optimizer
        )
    )
    trainer = _Trainer(shape, group)
    losses: list[float] = []
    for batch in batches:
        losses.append(trainer.step(rows, batch))
        after_step()
    return TrainedShare(losses=losses, rows=rows.stored(), dense=trainer.dense())


class _Trainer:
    """The dense part, and a trainer's steps."""

    def __init__(self, shape: ModelShape, group: dist.ProcessGroup | None) -> None:
        self._shape = shape
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._model = DistributedDataParallel(shape.dense_part(), process_group=group)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=DENSE_RATE)

    def dense(self) -> dict[str, Tensor]:
        """Return the dense part's parameters."""
        return dict(self._model.module.state_dict())

    def step(self, rows: PooledRows | DistinctRows, batch: Examples) -> float:
        """Do a step, and return this trainer's part of the loss."""
        shape, ends = self._shape, [0, *share_ends(len(batch), self._ranks).tolist()]
        share = batch[ends[self._rank] : ends[self._rank + 1]]
        ids: Any = rows.prepare(batch)
        fetched = rows.fetch(ids).requires_grad_()
        logits = self._model(_dense(share, shape), rows.lookup(ids, fetched))
        loss = functional.binary_cross_entropy_with_logits(
            logits, _labels(share, shape), reduction="sum"
        ).div(len(batch))
        (self._ranks * loss).backward()  # DDP divides by the trainers
        assert fetched.grad is not None
        rows.write_back(ids, fetched.grad / self._ranks)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.detach())
