"""A demand's pre- and postconditions as columns, for planners.

Equal to `Demand.initial` and `Demand.final`, which define them rank by rank; for thousands of ranks
and slots these columns take a fraction of their time and memory.
"""

from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Values:
    """The slots that hold a value, in order of ranks; columns of int64.

    Attributes
    ----------
    rank, slot, item : the item is in that slot of that rank.
    by : contributors combined into it, as an index into `Conditions.masks`.
    """

    rank: np.ndarray
    slot: np.ndarray
    item: np.ndarray
    by: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conditions:
    """Precondition and postcondition; `masks` are distinct bit masks of ranks."""

    before: Values
    after: Values
    masks: tuple[int, ...]


def conditions(demand: Demand) -> Conditions:
    """Return `demand.initial` and `demand.final` of all ranks, in their order."""
    if demand.collective not in STANDARD:
        return _listed(demand)
    n = demand.ranks
    masks = tuple(1 << rank for rank in range(n))
    if n > 1:
        masks += ((1 << n) - 1,)
    before, after = _before(demand), _after(demand, len(masks) - 1)
    return Conditions(before=before, after=after, masks=masks)


def _before(demand: Demand) -> Values:
    ranks = np.arange(demand.ranks)
    match demand.collective:
        case Collective.BROADCAST | Collective.SCATTER:
            slot = np.arange(demand.slots)
            return _alike(slot, slot, demand.root, [demand.root])
        case Collective.ALLGATHER | Collective.GATHER:
            slot = np.arange(demand.slots)
            own = slot // demand.chunks
            return Values(rank=own, slot=slot, item=slot, by=own)
        case Collective.ALL_TO_ALL:
            half = demand.ranks * demand.chunks
            slot, rank = np.tile(np.arange(half), demand.ranks), np.repeat(ranks, half)
            return Values(rank=rank, slot=slot, item=rank * half + slot, by=rank)
        case _:  # the reducing ones
            slot, rank = (
                np.tile(np.arange(demand.slots), demand.ranks),
                np.repeat(ranks, demand.slots),
            )
            return Values(rank=rank, slot=slot, item=slot, by=rank)


def _after(demand: Demand, all_ranks: int) -> Values:
    ranks = np.arange(demand.ranks)
    slot = np.arange(demand.slots)
    own = slot // demand.chunks
    root = [demand.root] if demand.collective in ROOTED else ranks
    match demand.collective:
        case Collective.ALLREDUCE | Collective.REDUCE:
            return _alike(slot, slot, all_ranks, root)
        case Collective.BROADCAST:
            return _alike(slot, slot, demand.root, ranks)
        case Collective.SCATTER | Collective.REDUCE_SCATTER:
            by = all_ranks if demand.collective is Collective.REDUCE_SCATTER else demand.root
            return Values(rank=own, slot=slot, item=slot, by=np.full(len(slot), by))
        case Collective.ALL_TO_ALL:
            half = demand.ranks * demand.chunks
            source, k = np.divmod(np.arange(half), demand.chunks)
            at = ranks[:, None]
            item = np.hstack([at * half + slot[:half], source * half + at * demand.chunks + k])
            by = np.hstack([np.repeat(at, half, axis=1), np.tile(source, (demand.ranks, 1))])
            return Values(
                rank=np.repeat(ranks, 2 * half),
                slot=np.tile(slot, demand.ranks),
                item=item.reshape(-1),
                by=by.reshape(-1),
            )
        case _:  # allgather and gather
            return _alike(slot, slot, own, root)


def _alike(
    slot: np.ndarray, item: np.ndarray, by: np.ndarray | int, ranks: np.ndarray | list[int]
) -> Values:
    """The same at all of `ranks`."""
    count = len(ranks)
    return Values(
        rank=np.repeat(np.asarray(ranks), len(slot)),
        slot=np.tile(slot, count),
        item=np.tile(item, count),
        by=np.tile(np.broadcast_to(by, slot.shape), count),
    )


def _listed(demand: Demand) -> Conditions:
    numbers: dict[int, int] = {}
    made: list[Values] = []
    for values in (demand.initial, demand.final):
        rows = [
            (rank, slot, item, numbers.setdefault(mask, len(numbers)))
            for rank in range(demand.ranks)
            for slot, item, mask in values(rank)
        ]
        rank, slot, item, by = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        made.append(Values(rank=rank, slot=slot, item=item, by=by))
    return Conditions(before=made[0], after=made[1], masks=tuple(numbers))
