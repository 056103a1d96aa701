"""Gradients and rows that a trainer exchanges after a batch, by the columns of its part.

A row's owner receives the gradients of its other users, updates the row, and sends it with its
state to its next users. Rows that the next batch uses are critical, and exchanged before it; the
others are delayed. Both sides of a message derive its rows from their own columns, in one order:
those that the receiver uses in this batch, then the others, either in the order of the batch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.embeddings.run.batches import GroupBatch

RowNumbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PeerRows:
    """Rows to send to, or to receive from, each of the trainers.

    Attributes
    ----------
    rows : one trainer's after the other's.
    ends : [trainers]: where those of each trainer end.
    """

    rows: RowNumbers
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ExchangeLists:
    """One trainer's part of an exchange.

    Attributes
    ----------
    updated : [updated]: rows that this trainer updates, by their numbers in its part of the batch.
    gradients_sent : rows by owner, by their numbers in the part of the batch.
    gradients_received : rows by user, by their numbers in `updated`.
    rows_sent : rows by next user, by their numbers in `updated`.
    rows_received : rows by owner, by their numbers in the part of the batch.
    """

    updated: RowNumbers
    gradients_sent: PeerRows
    gradients_received: PeerRows
    rows_sent: PeerRows
    rows_received: PeerRows


def exchange_lists(
    batch: GroupBatch, trainer: int, trainers: int
) -> tuple[ExchangeLists, ExchangeLists]:
    """Return the critical and the delayed lists of a trainer."""
    return (
        _lists(batch, np.flatnonzero(batch.critical), trainer, trainers),
        _lists(batch, np.flatnonzero(~batch.critical), trainer, trainers),
    )


def _lists(batch: GroupBatch, rows: RowNumbers, trainer: int, trainers: int) -> ExchangeLists:
    owners, users, next_users = batch.owners[rows], batch.users[rows], batch.next_users[rows]
    own, others = np.uint32(1 << trainer), np.uint32(~(1 << trainer) & 0xFFFFFFFF)
    foreign = owners != trainer
    updated = np.flatnonzero(~foreign)
    sharers, receivers = users[updated] & others, next_users[updated] & others
    sent = np.flatnonzero(foreign & (users & own != 0))
    received = np.flatnonzero(foreign & (next_users & own != 0))
    return ExchangeLists(
        updated=rows[updated],
        gradients_sent=_by_owner(rows[sent], owners[sent], trainers),
        gradients_received=_by_trainer((sharers,), trainers),
        rows_sent=_by_trainer((receivers & sharers, receivers & ~sharers), trainers),
        rows_received=_by_owner(rows[received], owners[received], trainers),
    )


def _by_owner(rows: RowNumbers, owners: NDArray[np.uint8], trainers: int) -> PeerRows:
    """Return rows by the trainer that updates them, those of each in their order."""
    counts = np.bincount(owners, minlength=trainers)
    return PeerRows(
        rows=rows[np.argsort(owners, kind="stable")], ends=tuple(np.cumsum(counts).tolist())
    )


def _by_trainer(parts: tuple[NDArray[np.uint32], ...], trainers: int) -> PeerRows:
    """Return the rows of each trainer by their bits, those of one part after the other's."""
    listed = [(np.flatnonzero(bits), bits) for bits in parts]
    columns = [(rows, bits[rows]) for rows, bits in listed]
    lists: list[RowNumbers] = []
    ends: list[int] = []
    end = 0
    for trainer in range(trainers):
        for rows, bits in columns:
            selected = rows[(bits >> np.uint32(trainer) & np.uint32(1)).astype(bool)]
            lists.append(selected)
            end += len(selected)
        ends.append(end)
    return PeerRows(rows=np.concatenate(lists), ends=tuple(ends))
