"""Small models with embedding rows, and their training by torch alone."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.embeddings import Examples
from tests.embeddings.run.reference import of_used_rows

ROWS = (20, 7, 40)
"""Ids of each column of the data that the models have."""

DENSE = 3


class DLRM(nn.Module):
    """Dense and sparse features, and the products of each two."""

    def __init__(self, dim: int = 4, device: str = "cpu") -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 8), nn.ReLU(), nn.Linear(8, dim))
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", device=device) for rows in ROWS
        )
        count = len(ROWS) + 1
        self.top = nn.Linear(dim + count * (count - 1) // 2, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense.to(self.top.weight.dtype))
        rows = [table(ids[:, column : column + 1]) for column, table in enumerate(self.tables)]
        features = torch.stack([bottom, *rows], dim=1)
        products = features @ features.transpose(1, 2)
        first, second = torch.triu_indices(features.shape[1], features.shape[1], offset=1)
        return self.top(torch.cat([bottom, products[:, first, second]], dim=1)).squeeze(1)


class WideAndDeep(nn.Module):
    """Weights of ids, one table for all columns; rows beside dense features."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.wide = nn.EmbeddingBag(max(ROWS), 1, mode="sum")
        self.deep = nn.ModuleList(nn.Embedding(rows, dim) for rows in ROWS)
        self.top = nn.Sequential(nn.Linear(DENSE + dim * len(ROWS), 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        rows = [table(ids[:, column]) for column, table in enumerate(self.deep)]
        features = torch.cat([dense.to(self.wide.weight.dtype), *rows], dim=1)
        return (self.wide(ids) + self.top(features)).squeeze(1)


class DeepFM(nn.Module):
    """A linear term of each id, products of rows, and layers over the same rows."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Embedding(rows, 1) for rows in ROWS)
        self.factors = nn.ModuleList(nn.Embedding(rows, dim) for rows in ROWS)
        self.top = nn.Sequential(nn.Linear(DENSE + dim * len(ROWS), 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        terms = [table(ids[:, column]) for column, table in enumerate(self.linear)]
        rows = torch.stack([table(ids[:, c]) for c, table in enumerate(self.factors)], dim=1)
        products = (rows.sum(1).square() - rows.square().sum(1)).sum(1) / 2
        features = torch.cat([dense.to(rows.dtype), rows.flatten(1)], dim=1)
        return torch.cat(terms, dim=1).sum(1) + products + self.top(features).squeeze(1)


class DeepAndCross(nn.Module):
    """Layers that multiply all features by the first ones; two columns share a table."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.shared = nn.Embedding(max(ROWS), dim)
        self.last = nn.EmbeddingBag(ROWS[2], dim, mode="mean")
        width = DENSE + 3 * dim
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.top = nn.Linear(width, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        shared = self.shared(ids[:, :2]).flatten(1)
        offsets = torch.arange(len(ids), device=ids.device)
        last = self.last(ids[:, 2].contiguous(), offsets)
        first = torch.cat([dense.to(last.dtype), shared, last], dim=1)
        features = first
        for layer in self.cross:
            features = first * layer(features) + features
        return self.top(features).squeeze(1)


class Bags(nn.Module):
    """Bags of ids, some of them empty, with padding and weights; dims and poolings are mixed."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(ROWS[0], 4, mode="mean", padding_idx=0, device=device)
        self.one = nn.Embedding(max(ROWS), 3, padding_idx=1, device=device)
        self.weighted = nn.EmbeddingBag(ROWS[2], 4, mode="sum", device=device)
        self.again = nn.EmbeddingBag(ROWS[2], 1, mode="sum", padding_idx=2, device=device)
        self.top = nn.Linear(DENSE + 15, 1)

    def forward(self, dense: Tensor, ids: tuple[Any, ...]) -> Tensor:
        values, offsets = ids[2]
        dense = dense.to(self.top.weight.dtype)
        lengths = offsets.diff(append=offsets.new_tensor([len(values)]))
        weights = (1 + dense[:, 0].tanh()).repeat_interleave(lengths)
        features = [
            dense,
            self.mean(*ids[0]),
            self.one(torch.stack([ids[3], ids[1]], dim=1)).flatten(1),
            self.weighted(values, offsets, per_sample_weights=weights),
            self.again(values, offsets=offsets),
        ]
        return self.top(torch.cat(features, dim=1)).squeeze(1)


class History(nn.Module):
    """A table of items: of those that users have seen, two bags, and of one that is shown (DIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(max(ROWS), 4, mode="sum", padding_idx=1)
        self.last = nn.Embedding(9, 3)
        self.top = nn.Linear(DENSE + 15, 1)

    def forward(self, dense: Tensor, ids: tuple[Any, ...]) -> Tensor:
        features = [
            dense.to(self.top.weight.dtype),
            self.items(*ids[0]),
            self.items(ids[1], torch.arange(len(dense))),
            self.items(*ids[2]),
            self.last(ids[3]),
        ]
        return self.top(torch.cat(features, dim=1)).squeeze(1)


class Collection(nn.Module):
    """Tables as TorchRec's EmbeddingBagCollection has them, fed by a KeyedJaggedTensor's columns.

    The last offset is the number of ids, and arguments have names.
    """

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict(
            {
                f"table_{rows}": nn.EmbeddingBag(rows, dim, mode="sum", include_last_offset=True)
                for rows in ROWS
            }
        )
        self.top = nn.Linear(DENSE + dim * len(ROWS), 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        values, lengths = ids.t().flatten(), torch.ones(ids.numel(), dtype=torch.int64)
        offsets = torch.cat([lengths.new_zeros(1), lengths[: len(ids)].cumsum(0)])
        features = [dense.to(self.top.weight.dtype)]
        for bag, column in zip(self.embedding_bags.values(), values.split(len(ids)), strict=True):
            features.append(bag(input=column, offsets=offsets, per_sample_weights=None))
        return self.top(torch.cat(features, dim=1)).squeeze(1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dlrm": DLRM,
    "wide and deep": WideAndDeep,
    "deepfm": DeepFM,
    "deep and cross": DeepAndCross,
    "collection": Collection,
}

Batch = tuple[Any, ...]


def torch_batches(batches: Sequence[Examples]) -> Iterator[Batch]:
    """Yield batches as a plain loader would."""
    for examples in batches:
        assert examples.labels is not None
        columns: list[Any] = [torch.from_numpy(column) for column in examples.ids]
        for number, lengths in enumerate(examples.lengths):
            if lengths is not None:
                offsets = torch.from_numpy(np.cumsum(lengths) - lengths)
                columns[number] = columns[number], offsets
        has_bags = any(lengths is not None for lengths in examples.lengths)
        ids = tuple(columns) if has_bags else torch.stack(columns, dim=1)
        yield torch.from_numpy(examples.dense), ids, torch.from_numpy(examples.labels)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    dense, ids, labels = batch
    scores = model(dense, ids)
    return functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


def steps(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizers: Sequence[torch.optim.Optimizer],
    before_step: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> list[float]:
    """Train on batches as a user's script does; return the losses."""
    losses: list[float] = []
    for batch in batches:
        loss = loss_of(model, batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        before_step()
        for optimizer in optimizers:
            optimizer.step()
        after_step()
        losses.append(loss.item())
    return losses


@contextmanager
def gradients_of_used_rows(model: nn.Module) -> Generator[Callable[[], None]]:
    """Yield a function that makes embeddings' gradients coalesced sparse ones, of the rows in use.

    torch's modules with `sparse=True` add up a row's gradients in another order.
    """
    used: dict[nn.Module, list[int]] = {}

    def observe(module: nn.Module, arguments: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        ids = arguments[0] if arguments else named["input"]
        used.setdefault(module, []).extend(ids.flatten().tolist())

    modules = [each for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]
    handles = [module.register_forward_pre_hook(observe, with_kwargs=True) for module in modules]

    def convert() -> None:
        for module in modules:
            module.weight.grad = of_used_rows(module.weight, [used.pop(module)])

    try:
        yield convert
    finally:
        for handle in handles:
            handle.remove()
