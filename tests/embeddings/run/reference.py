"""A small job, and its training in one process by torch's own modules and optimizers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.embeddings import EmbeddingTable, InitialValues, Synchronisation
from headrace.embeddings.run.batches import TrainerBatch
from headrace.embeddings.run.trainers.optimizers import RowOptimizer
from headrace.embeddings.run.trainers.trainer import Pooling
from headrace.embeddings.tables import TableGroup, table_groups
from tests.embeddings.run.cache_design import CacheDesign
from tests.embeddings.run.dispatch import Job, decisions, group_batches
from tests.embeddings.run.memory_servers import initial_numbers

IDS = 9
TABLES = (
    EmbeddingTable(name="one", rows=IDS, dim=3),
    EmbeddingTable(name="sum", rows=0, dim=5, initial=InitialValues(scale=1.0)),
    EmbeddingTable(name="mean", rows=IDS, dim=3),
)
POOLINGS: tuple[Pooling, ...] = ("sum", "sum", "mean")


class RowWiseAdagrad(torch.optim.Optimizer):
    """TorchRec's formula, on sparse gradients."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, eps: float = 1e-10) -> None:
        defaults = {"lr": lr, "lr_decay": 0.0, "weight_decay": 0.0, "eps": eps}
        super().__init__(parameters, defaults | {"initial_accumulator_value": 0.0})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                sums = self.state[parameter].setdefault(
                    "sum", torch.zeros(len(parameter), 1, dtype=parameter.dtype)
                )
                rows, gradients = parameter.grad.indices()[0], parameter.grad.values()
                sums[rows] += gradients.square().mean(dim=1, keepdim=True)
                parameter[rows] = parameter[rows].addcdiv(
                    gradients, sums[rows].sqrt().add(group["eps"]), value=-group["lr"]
                )


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.3),
    "adagrad": lambda parameters: torch.optim.Adagrad(
        parameters, lr=0.2, lr_decay=0.01, initial_accumulator_value=0.1
    ),
    "sparse adam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.05),
    "row-wise adagrad": lambda parameters: RowWiseAdagrad(parameters, lr=0.2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A trainer's examples of a batch: ids of every table, their numbers by example, labels."""

    ids: list[list[int]]
    lengths: list[list[int] | None]
    labels: np.ndarray


def shares(seed: int, batches: int, trainers: int) -> list[list[Share]]:
    """Return random examples, [batches][trainers]; the last batch has one example in all."""
    random = np.random.default_rng(seed)

    def share(examples: int) -> Share:
        lengths = [None, *(random.integers(0, 4, examples).tolist() for _ in TABLES[1:])]
        counts = [examples if sizes is None else sum(sizes) for sizes in lengths]
        return Share(
            ids=[(IDS * random.random(count) ** 2).astype(int).tolist() for count in counts],
            lengths=lengths,
            labels=random.standard_normal(examples),
        )

    sizes = [*random.integers(trainers, 3 * trainers, batches - 1).tolist(), 1]
    return [[share((size + trainer) // trainers) for trainer in range(trainers)] for size in sizes]


def losses(pooled: Sequence[Tensor], labels: np.ndarray) -> Tensor:
    """Return the loss of each example, by a fixed layer over the tables' rows."""
    columns = torch.cat(list(pooled), dim=1)
    weights = torch.linspace(-1, 1, columns.shape[1], dtype=columns.dtype)
    targets = torch.from_numpy(labels).to(columns.dtype)
    return (torch.tanh(columns * weights).sum(dim=1) - targets).square()


def groups_of(optimizer: RowOptimizer, dtype: torch.dtype) -> tuple[TableGroup, ...]:
    return table_groups(
        TABLES,
        state_per_row=optimizer.state_per_row,
        state_per_number=optimizer.state_per_number,
        state_initial=optimizer.state_initial,
        dtype="float32" if dtype == torch.float32 else "float64",
    )


def of_used_rows(parameter: Tensor, ids: Sequence[Sequence[int]]) -> Tensor:
    """Return the gradient as a coalesced sparse one, of the rows that a batch uses.

    torch's modules with `sparse=True` add up a row's gradients in another order.
    """
    assert parameter.grad is not None
    rows = torch.tensor(sorted({row for part in ids for row in part}), dtype=torch.long)
    values = parameter.grad[rows]
    return torch.sparse_coo_tensor(
        rows[None], values, parameter.shape, is_coalesced=True, check_invariants=True
    )


def reference_tables(
    batches: Sequence[Sequence[Share]], optimizer: str, decay: float, dtype: torch.dtype
) -> list[Tensor]:
    """Return the tables that training in one process ends with."""
    parameters: list[Tensor] = []
    for table, shape in enumerate(TABLES):
        rows = np.stack([initial_numbers(table, row, shape.dim) for row in range(IDS)])
        parameters.append(nn.Parameter(torch.from_numpy(rows).to(dtype)))
    reference = OPTIMIZERS[optimizer](parameters)
    schedule = torch.optim.lr_scheduler.ExponentialLR(reference, decay)
    for batch in batches:
        pooled: list[Tensor] = []
        for table, parameter in enumerate(parameters):
            ids = torch.tensor(
                [row for share in batch for row in share.ids[table]], dtype=torch.long
            )
            if table == 0:
                pooled.append(functional.embedding(ids, parameter))
                continue
            sizes = torch.tensor(
                [size for share in batch for size in share.lengths[table] or ()], dtype=torch.long
            )
            pooled.append(
                functional.embedding_bag(
                    ids, parameter, sizes.cumsum(0) - sizes, mode=POOLINGS[table]
                )
            )
        reference.zero_grad()
        losses(pooled, np.concatenate([share.labels for share in batch])).mean().backward()
        for table, parameter in enumerate(parameters):
            parameter.grad = of_used_rows(parameter, [share.ids[table] for share in batch])
        reference.step()
        schedule.step()
    return [parameter.detach() for parameter in parameters]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Options of the lookahead; `room` are slots more than the largest batch needs.

    `changes` are those of `Job`.
    """

    lookahead: int
    prefetch: int
    room: int
    commit_every: int = 0
    changes: tuple[tuple[int, int], ...] = ()


def trainer_batches(
    batches: Sequence[Sequence[Share]],
    groups: Sequence[TableGroup],
    window: Window,
    synchronisation: Synchronisation = Synchronisation.TARGETED,
) -> tuple[list[list[TrainerBatch]], list[int]]:
    """Return every trainer's parts, [trainers][batches], and the slots of every group."""
    trainers = len(batches[0])
    slots: list[int] = []
    by_group = []
    for group in groups:
        ids = [
            [[share.ids[table] for share in batch] for table in group.tables] for batch in batches
        ]
        distinct = [
            sum(len({row for part in table for row in part}) for table in batch) for batch in ids
        ]
        job = Job(
            rows=tuple(TABLES[table].rows for table in group.tables),
            trainers=trainers,
            lookahead=window.lookahead,
            prefetch=window.prefetch,
            slots=max(1, *distinct) + window.room,
            batches=ids,
            changes=window.changes,
        )
        slots.append(job.slots)
        design = CacheDesign(synchronisation, trainers, job.slots)
        by_group.append(
            [
                group_batches(decision, batch, trainers, design.columns(decision))
                for decision, batch in zip(
                    decisions(job, commit_every=window.commit_every), ids, strict=True
                )
            ]
        )
    return [
        [
            TrainerBatch(
                batch=number,
                examples=len(share.labels),
                examples_in_all=sum(len(part.labels) for part in batch),
                fields={"label": share.labels},
                lengths=tuple(
                    None if sizes is None else np.array(sizes, np.int64) for sizes in share.lengths
                ),
                groups=tuple(parts[number][trainer] for parts in by_group),
                prefetch=window.prefetch,
                commit=window.commit_every > 0 and (number + 1) % window.commit_every == 0,
            )
            for number, batch in enumerate(batches)
            for share in [batch[trainer]]
        ]
        for trainer in range(trainers)
    ], slots
