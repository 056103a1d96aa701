"""One trainer's part of a batch: its share of the examples, and rows to fetch, exchange and evict.

The cacher makes it of a decision of `headrace._native.Lookahead`. All trainers see the rows of a
batch in one order, so that two of them that exchange some list these in the same order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LENGTHS = "lengths of column "
"""Begins the name of a field with the lengths of bags, before the number of their column."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SlottedRows:
    """Rows of a group, and where they lie in the caches.

    Attributes
    ----------
    ends : [tables of the group]: where the rows of each table end.
    ids : [rows]: in their tables.
    slots : [rows]: the same at every trainer.
    """

    ends: NDArray[np.int64]
    ids: NDArray[np.int64]
    slots: NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GroupBatch:
    """Rows of one group of tables that a trainer uses in a batch, or receives after it.

    Attributes
    ----------
    after : the fetches begin when all evictions after this batch are written back; below 0: at
        once.
    fetched : rows that are not in the caches, and used by this trainer: it fetches them.
    evicted : rows that leave the caches after the batch, whose newest value this trainer has: it
        writes them back.
    dirty : at a commit, rows that stay and whose newest value this trainer has, and the servers
        have not: it writes them, too.
    used : this trainer uses the first `used` rows; of the others it is only a next user.
    used_ends : [tables of the group]: where the used rows of each table end; the last is `used`. A
        trainer has one leaf tensor for each table, as the gradient of each is a whole tensor.
    slots : [rows]: where the rows lie.
    users : [rows]: bits of the trainers that use the row in this batch.
    next_users : [rows]: bits of those that use it in the next batch that uses it, and of those that
        a cache's design gives it to; 0: it goes to none of the others.
    owners : [rows]: the trainer that updates the row, one of `users`. If there are next users and
        one of `users` is among them, it is one of these.
    critical : [rows]: whether the next batch uses the row.
    rows_of_ids : of each id of this trainer's examples, one table's after the other's, the number
        of its row among the used rows of its table.
    id_ends : [tables of the group]: where the ids of each table end.
    """

    after: int
    fetched: SlottedRows
    evicted: SlottedRows
    dirty: SlottedRows
    used: int
    used_ends: NDArray[np.int64]
    slots: NDArray[np.uint32]
    users: NDArray[np.uint32]
    next_users: NDArray[np.uint32]
    owners: NDArray[np.uint8]
    critical: NDArray[np.bool_]
    rows_of_ids: NDArray[np.uint32]
    id_ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TrainerBatch:
    """One trainer's part of a batch.

    Attributes
    ----------
    batch : its number, from 0 on.
    examples : in the trainer's share.
    examples_in_all : in the shares of all trainers together.
    fields : columns that are no ids, such as labels, [examples, ...].
    lengths : of every table of the job, [examples]: ids of each example; None: one each.
    groups : one for each of the job's groups of tables.
    padding : of every table of the job, the first of the trainer's ids of the table that is its
        padding; below 0: none is. Without tables: no table has padding.
    prefetch : batches that may be fetched before their use, from this one on.
    commit : whether the servers have the newest value of every row when those that are evicted
        after the batch, and the dirty ones, are written.
    """

    batch: int
    examples: int
    examples_in_all: int
    fields: Mapping[str, NDArray[Any]]
    lengths: tuple[NDArray[np.int64] | None, ...]
    groups: tuple[GroupBatch, ...]
    prefetch: int
    padding: tuple[int, ...] = ()
    commit: bool = False
