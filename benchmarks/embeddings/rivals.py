"""The rivals: rows partitioned over trainers, fetched for a step and written back after it.

Synchronous training by all-to-all of pooled rows, one for each example and table (as TorchRec), and
of distinct rows, one for each row that a trainer's examples use. Which rows a batch uses is in both
known before the step: ids are exchanged ahead.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from headrace.embeddings import Examples
from headrace.embeddings.data.examples import share_ends

MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class LocalRows:
    """Rows of one trainer, updated by their gradients.

    Parameters
    ----------
    rows : [rows, dim], taken over.
    optimizer : makes torch's; SGD without options works in place, without sparse tensors.
    """

    def __init__(self, rows: Tensor, optimizer: MakeOptimizer) -> None:
        self.rows = nn.Parameter(rows)
        self._optimizer = optimizer([self.rows])

    def gather(self, numbers: Tensor) -> Tensor:
        """Return copies of rows."""
        return self.rows.detach().index_select(0, numbers)

    def update(self, numbers: Tensor, gradients: Tensor) -> None:
        """Update rows by gradients, several of which may be of one row: they are added up."""
        options = self._optimizer.param_groups[0]
        if type(self._optimizer) is torch.optim.SGD and options["momentum"] == 0:
            self.rows.detach().index_add_(0, numbers, gradients, alpha=-options["lr"])
            return
        size = list(self.rows.shape)
        sparse = torch.sparse_coo_tensor(numbers[None], gradients, size, check_invariants=False)
        self.rows.grad = sparse.coalesce()
        self._optimizer.step()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PooledIds:
    """One trainer's numbers of a batch, of `PooledRows`.

    Attributes
    ----------
    rows : of each example of all trainers and of each own table, in the order in which they are
        sent: trainer by trainer, table by table.
    sent, received : rows to and from each trainer.
    examples : in the trainer's share.
    """

    rows: Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    examples: int


class PooledRows:
    """Tables partitioned over trainers in consecutive blocks: [tables, examples, dim] moves.

    Parameters
    ----------
    tables : initial rows of a table by its number, asked for own tables alone.
    counts : rows of every table.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        counts: Sequence[int],
        tables: Callable[[int], Tensor],
        optimizer: MakeOptimizer,
    ) -> None:
        self._group = group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._blocks = tuple(
            tuple(block.tolist()) for block in np.array_split(range(len(counts)), self._ranks)
        )
        self.own = self._blocks[self._rank]
        own_counts = [counts[table] for table in self.own]
        self._starts = np.cumsum([0, *own_counts]).tolist()
        self.local = LocalRows(torch.cat([tables(table) for table in self.own]), optimizer)
        self.dim = self.local.rows.shape[1]

    def prepare(self, batch: Examples) -> PooledIds:
        """Return the numbers of a batch of all trainers."""
        ends = share_ends(len(batch), self._ranks).tolist()
        shares = list(zip([0, *ends[:-1]], ends, strict=True))
        parts = [
            batch.ids[table][start:end] + offset
            for start, end in shares
            for table, offset in zip(self.own, self._starts[:-1], strict=True)
        ]
        start, end = shares[self._rank]
        return PooledIds(
            rows=torch.from_numpy(np.concatenate(parts)),
            sent=tuple((end - start) * len(self.own) for start, end in shares),
            received=tuple((end - start) * len(block) for block in self._blocks),
            examples=end - start,
        )

    def fetch(self, ids: PooledIds) -> Tensor:
        """Return the rows of the trainer's examples: [tables, examples, dim]."""
        return self.receive_rows(ids, self.local.gather(ids.rows))

    def receive_rows(self, ids: PooledIds, sent: Tensor) -> Tensor:
        """Exchange the rows of all examples; see `fetch`."""
        received = torch.empty(sum(ids.received), self.dim, dtype=sent.dtype)
        exchange(received, sent, ids.received, ids.sent, self._group)
        return received.view(sum(map(len, self._blocks)), ids.examples, self.dim)

    def lookup(self, ids: PooledIds, rows: Tensor) -> Tensor:
        """Return fetched rows by example: [examples, tables, dim]."""
        del ids
        return rows.transpose(0, 1)

    def write_back(self, ids: PooledIds, gradients: Tensor) -> None:
        """Update the rows of all trainers by gradients of those that were fetched."""
        self.local.update(ids.rows, self.receive_gradients(ids, gradients))

    def receive_gradients(self, ids: PooledIds, gradients: Tensor) -> Tensor:
        """Exchange the gradients of all examples, in the order of `PooledIds.rows`."""
        received = torch.empty(sum(ids.sent), self.dim, dtype=gradients.dtype)
        sent = gradients.reshape(-1, self.dim)
        exchange(received, sent, ids.sent, ids.received, self._group)
        return received

    def stored(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the numbers of this trainer's rows, and these rows, by table."""
        parts = self.local.rows.detach().split(np.diff(self._starts).tolist())
        return {
            table: (torch.arange(len(rows)), rows)
            for table, rows in zip(self.own, parts, strict=True)
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class DistinctIds:
    """One trainer's numbers of a batch, of `DistinctRows`.

    Attributes
    ----------
    rows : own rows that each trainer uses, trainer by trainer.
    sent, received : rows to and from each trainer.
    places : [tables, examples]: of each id of this trainer's examples, its row among the received.
    """

    rows: Tensor
    sent: tuple[int, ...]
    received: tuple[int, ...]
    places: Tensor


class DistinctRows:
    """Rows partitioned over trainers by their numbers: each trainer's distinct rows move.

    Parameters
    ----------
    tables : initial rows of table t with numbers n: ``tables(t, n)``, asked for own rows alone.
    stored : rows that this trainer stores at most: others share their memory, for timing alone.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        counts: Sequence[int],
        tables: Callable[[int, Tensor], Tensor],
        optimizer: MakeOptimizer,
        *,
        stored: int | None = None,
    ) -> None:
        self.group = group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._starts: list[int] = np.cumsum([0, *counts]).tolist()
        self._stored = stored
        numbers = torch.arange(self._rank, self._starts[-1], self._ranks)[:stored]
        bounds = np.searchsorted(numbers.numpy(), self._starts).tolist()
        rows = [
            tables(table, numbers[start:end] - self._starts[table])
            for table, (start, end) in enumerate(itertools.pairwise(bounds))
        ]
        self.local = LocalRows(torch.cat(rows), optimizer)
        self.dim = self.local.rows.shape[1]

    def prepare(self, batch: Examples) -> DistinctIds:
        """Return the numbers of a batch of all trainers."""
        ends = share_ends(len(batch), self._ranks).tolist()
        asked: list[np.ndarray] = []
        received, places = (), torch.empty(0)
        for trainer, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            numbers = np.stack(
                [
                    ids[start:end] + offset
                    for ids, offset in zip(batch.ids, self._starts[:-1], strict=True)
                ]
            )
            # ordered by owner: the number's remainder, then what is left of it
            owners, locals_ = numbers % self._ranks, numbers // self._ranks
            keys = owners * (self._starts[-1] // self._ranks + 1) + locals_
            distinct, inverse = np.unique(keys, return_inverse=True)
            of_owner, local = np.divmod(distinct, self._starts[-1] // self._ranks + 1)
            asked.append(local[of_owner == self._rank])
            if trainer == self._rank:
                received = tuple(np.bincount(of_owner, minlength=self._ranks).tolist())
                places = torch.from_numpy(inverse.reshape(numbers.shape))
        rows = torch.from_numpy(np.concatenate(asked))
        return DistinctIds(
            rows=rows if self._stored is None else rows % len(self.local.rows),
            sent=tuple(map(len, asked)),
            received=received,
            places=places,
        )

    def fetch(self, ids: DistinctIds) -> Tensor:
        """Return the distinct rows of the trainer's examples: [distinct, dim]."""
        received = torch.empty(sum(ids.received), self.dim, dtype=self.local.rows.dtype)
        exchange(received, self.local.gather(ids.rows), ids.received, ids.sent, self.group)
        return received

    def lookup(self, ids: DistinctIds, rows: Tensor) -> Tensor:
        """Return fetched rows by example: [examples, tables, dim]."""
        return functional.embedding(ids.places, rows).transpose(0, 1)

    def write_back(self, ids: DistinctIds, gradients: Tensor) -> None:
        """Update the rows of all trainers by gradients of those that were fetched."""
        received = torch.empty(sum(ids.sent), self.dim, dtype=gradients.dtype)
        exchange(received, gradients, ids.sent, ids.received, self.group)
        self.local.update(ids.rows, received)

    def stored(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the numbers of this trainer's rows, and these rows, by table."""
        numbers = torch.arange(self._rank, self._starts[-1], self._ranks)
        bounds = np.searchsorted(numbers.numpy(), self._starts).tolist()
        return {
            table: (numbers[start:end] - self._starts[table], self.local.rows.detach()[start:end])
            for table, (start, end) in enumerate(itertools.pairwise(bounds))
        }


def exchange(
    received: Tensor,
    sent: Tensor,
    received_rows: Sequence[int],
    sent_rows: Sequence[int],
    group: dist.ProcessGroup | None,
) -> None:
    """Exchange rows with all trainers, as many as each of them has for each other."""
    dist.all_to_all_single(
        received, sent.contiguous(), list(received_rows), list(sent_rows), group=group
    )
