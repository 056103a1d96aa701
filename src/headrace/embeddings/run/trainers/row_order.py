"""Order of a batch's rows by id, as in a whole table, where one trainer has them all.

torch's EmbeddingBag adds up the gradients of a row in an order that depends on how the numbers of
all rows compare: with rows by id, sums are those of the whole table, bit for bit. Several trainers
have all rows in one order that they exchange them in, and sums to rounding.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.embeddings.run.batches import GroupBatch, TrainerBatch


class RowOrder:
    """Ids of the rows in the caches of a job with one trainer.

    Parameters
    ----------
    slots : of every group's cache.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._ids = [np.zeros(count, np.int64) for count in slots]

    def by_id(self, batch: TrainerBatch) -> TrainerBatch:
        """Return a batch, the next one, with the rows of each table in the order of their ids."""
        groups: list[GroupBatch] = []
        for ids, group in zip(self._ids, batch.groups, strict=True):
            ids[group.fetched.slots] = group.fetched.ids
            tables = np.repeat(np.arange(len(group.used_ends)), np.diff(group.used_ends, prepend=0))
            groups.append(_permuted(group, np.lexsort((ids[group.slots], tables))))
        return replace(batch, groups=tuple(groups))


def _permuted(group: GroupBatch, order: np.ndarray) -> GroupBatch:
    ranks = np.empty(len(order), np.uint32)
    ranks[order] = np.arange(len(order), dtype=np.uint32)
    firsts = np.concatenate([[0], group.used_ends[:-1]])
    first_of_ids = np.repeat(firsts, np.diff(group.id_ends, prepend=0))
    rows_of_ids = ranks[group.rows_of_ids + first_of_ids] - first_of_ids.astype(np.uint32)
    return replace(
        group,
        slots=group.slots[order],
        users=group.users[order],
        next_users=group.next_users[order],
        owners=group.owners[order],
        critical=group.critical[order],
        rows_of_ids=rows_of_ids.astype(np.uint32),
    )
