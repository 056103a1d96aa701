"""Columns of caches' designs from targeted decisions, whole columns at once: an oracle."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace.embeddings.profile import Synchronisation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RowColumns:
    """Columns of a batch's rows, as in `GroupBatch`, of all trainers together.

    Attributes
    ----------
    evicted_owners, dirty_owners : of the rows that are evicted after the batch, and of the dirty
        ones.
    """

    users: NDArray[np.uint32]
    next_users: NDArray[np.uint32]
    owners: NDArray[np.uint8]
    critical: NDArray[np.bool_]
    evicted_owners: NDArray[np.uint8]
    dirty_owners: NDArray[np.uint8]


class CacheDesign:
    """Columns of one group's targeted decisions, in their order.

    TARGETED has those of the decision. REPLICATED has all rows at all trainers, none of them
    delayed. LRPP (BagPipe, 5.2.3) has those at all trainers that several use: from the batch on in
    whose window they do, until the row is evicted. DISTINCT is a partitioned cache: a row's slot
    determines its owner, which has the row as long as it stays.

    Parameters
    ----------
    slots : of the group's cache.
    """

    def __init__(self, synchronisation: Synchronisation, trainers: int, slots: int) -> None:
        self._synchronisation = synchronisation
        self._trainers = trainers
        self._everyone = np.uint32((1 << trainers) - 1)
        self._replicated = np.zeros(slots, bool)  # by slot, of LRPP

    def columns(self, decision: _native.LookaheadDecision) -> RowColumns:
        """Return the columns of the next decision."""
        targeted = RowColumns(
            users=decision.users,
            next_users=decision.next_users,
            owners=decision.owner,
            critical=decision.next == decision.batch + 1,
            evicted_owners=decision.evicted_owner,
            dirty_owners=decision.dirty_owner,
        )
        match self._synchronisation:
            case Synchronisation.REPLICATED:
                everywhere = np.ones(len(decision.ids), bool)
                return self._replicate(targeted, everywhere, everywhere, everywhere)
            case Synchronisation.LRPP:
                resident = self._replicated[decision.slots] & (decision.fetched == 0)
                shared = (decision.shared == 1) | resident
                self._replicated[decision.slots] = shared
                # A row that was one trainer's alone so far goes to all of them after this batch.
                everywhere = resident | (shared & (decision.fetched == 1))
                return self._replicate(targeted, everywhere, shared, targeted.critical)
            case Synchronisation.DISTINCT:
                return self._partition(targeted, decision)
            case _:
                return targeted

    def _replicate(
        self,
        targeted: RowColumns,
        everywhere: NDArray[np.bool_],
        shared: NDArray[np.bool_],
        critical: NDArray[np.bool_],
    ) -> RowColumns:
        """Return columns in which all trainers use some rows, and receive what is shared.

        Updates of such rows are in equal parts the trainers'.
        """
        turns = (np.cumsum(everywhere) % self._trainers).astype(np.uint8)
        return RowColumns(
            users=np.where(everywhere, self._everyone, targeted.users),
            next_users=np.where(shared, self._everyone, targeted.next_users),
            owners=np.where(everywhere, turns, targeted.owners),
            critical=critical,
            evicted_owners=targeted.evicted_owners,
            dirty_owners=targeted.dirty_owners,
        )

    def _partition(self, targeted: RowColumns, decision: _native.LookaheadDecision) -> RowColumns:
        owners = (decision.slots % self._trainers).astype(np.uint8)
        own = np.left_shift(np.uint32(1), owners.astype(np.uint32))
        stays = targeted.next_users != 0
        return RowColumns(
            users=targeted.users | own,
            next_users=np.where(stays, targeted.next_users | own, np.uint32(0)),
            owners=owners,
            critical=targeted.critical,
            evicted_owners=(decision.evicted_slots % self._trainers).astype(np.uint8),
            dirty_owners=(decision.dirty_slots % self._trainers).astype(np.uint8),
        )
