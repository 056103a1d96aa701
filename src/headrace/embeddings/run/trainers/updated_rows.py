"""Rows that a trainer updates after a batch: what needs no other trainer, then the others.

Rows whose gradient is the trainer's alone are updated while those of others arrive, and rows are
sent to other trainers before they are written into the cache: the exchange waits for less.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.embeddings.run.trainers.cache import RowCache
from headrace.embeddings.run.trainers.exchange_lists import ExchangeLists, PeerRows, RowNumbers
from headrace.embeddings.run.trainers.optimizers import RowUpdate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UpdateOrder:
    """Rows that a trainer updates, those first whose gradient is its own alone.

    Attributes
    ----------
    updated : by their numbers in its part of the batch.
    alone : how many rows need no gradients of others.
    gradients_received : rows by user, by their numbers among those behind the first `alone`.
    rows_sent : rows by next user, by their numbers in `updated`.
    """

    updated: RowNumbers
    alone: int
    gradients_received: PeerRows
    rows_sent: PeerRows


def update_order(lists: ExchangeLists) -> UpdateOrder:
    """Return the order of an exchange's rows; that of messages stays."""
    shared = np.zeros(len(lists.updated), bool)
    shared[lists.gradients_received.rows] = True
    order = np.argsort(shared, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    alone = len(order) - int(shared.sum())
    received, sent = lists.gradients_received, lists.rows_sent
    return UpdateOrder(
        updated=lists.updated[order],
        alone=alone,
        gradients_received=PeerRows(rows=places[received.rows] - alone, ends=received.ends),
        rows_sent=PeerRows(rows=places[sent.rows], ends=sent.ends),
    )


class UpdatedRows:
    """Rows of one group between their cache and its next state.

    Parameters
    ----------
    gradients : [used rows, dim]: this trainer's.
    updated, slots : of the rows, in the order of `UpdateOrder`.

    Attributes
    ----------
    rows : [updated, width].
    """

    def __init__(
        self, cache: RowCache, gradients: Tensor, updated: Tensor, slots: Tensor, alone: int
    ) -> None:
        self._cache = cache
        self._slots = slots
        self._alone = alone
        self._own = gradients.index_select(0, updated)
        self.rows = cache.read(slots)

    def update_alone(self, update: RowUpdate, step: int) -> None:
        """Update and write the rows that need no gradients of others."""
        if self._alone > 0:
            rows = self.rows[: self._alone]
            update(rows, self._own[: self._alone], step)
            self._cache.write(self._slots[: self._alone], rows)

    def update_shared(
        self,
        received: Tensor,
        rows: Tensor,
        ends: tuple[int, ...],
        rank: int,
        update: RowUpdate,
        step: int,
    ) -> None:
        """Update the other rows, by the sums of all trainers' gradients in the order of trainers.

        Parameters
        ----------
        received : gradients of the other trainers, one trainer's after the other's.
        rows : of each of them, by its number among the shared rows.
        ends : where those of each trainer end.
        rank : this trainer.
        """
        own = self._own[self._alone :]
        if len(own) == 0:
            return
        sums = torch.zeros_like(own)
        start = 0
        for trainer, end in enumerate(ends):
            if trainer == rank:
                sums.add_(own)
            elif end > start:
                sums.index_add_(0, rows[start:end], received[start:end])
            start = end
        update(self.rows[self._alone :], sums, step)

    def write_shared(self) -> None:
        """Write these rows."""
        if self._alone < len(self.rows):
            self._cache.write(self._slots[self._alone :], self.rows[self._alone :])
