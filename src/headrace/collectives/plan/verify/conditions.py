"""Precondition and postcondition of a demand, as columns.

Read from `Demand.initial` and `Demand.final`, rank by rank, and from nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.collectives.demand import Demand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotContents:
    """Columns of int64: at `rank`, `slot` holds `item`, combined of the ranks of mask `by`."""

    rank: np.ndarray
    slot: np.ndarray
    item: np.ndarray
    by: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Specification:
    """Precondition and postcondition; `by` indexes the distinct `masks`."""

    before: SlotContents
    after: SlotContents
    masks: tuple[int, ...]

    @classmethod
    def of(cls, demand: Demand) -> "Specification":
        """Evaluate `demand` at every rank."""
        numbers: dict[int, int] = {}
        before = _rows(demand, demand.initial, numbers)
        after = _rows(demand, demand.final, numbers)
        return cls(before=before, after=after, masks=tuple(numbers))


def _rows(
    demand: Demand, holds: Callable[[int], list[tuple[int, int, int]]], numbers: dict[int, int]
) -> SlotContents:
    parts: list[np.ndarray] = []
    before: list[tuple[int, int, int]] = []
    columns = np.empty((3, 0), dtype=np.int64)
    for rank in range(demand.ranks):
        slot_values = holds(rank)
        if slot_values != before:  # many demands are the same at every rank
            columns = np.empty((3, len(slot_values)), dtype=np.int64)
            if slot_values:
                columns[0], columns[1], masks = zip(*slot_values, strict=True)
                columns[2] = [numbers.setdefault(mask, len(numbers)) for mask in masks]
            before = slot_values
        parts.append(columns)
    slot, item, by = np.hstack(parts)
    rank = np.repeat(np.arange(demand.ranks), [part.shape[1] for part in parts])
    return SlotContents(rank=rank, slot=slot, item=item, by=by)
