"""Slot allocation for `chunks.realize`: the slot of every chunk at every rank."""

import numpy as np

from headrace.collectives.demand import Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.verify.conditions import Specification
from headrace.collectives.program import Transfer


class SlotAllocation:
    """Slots of chunks: where the demand has their item before or after, else scratch.

    Attributes
    ----------
    copies_before : local copies of items that a rank both holds and wants, in another slot.
    """

    def __init__(self, demand: Demand, chunks: int) -> None:
        before = Specification.of(demand).before
        self._demand = demand
        self._items = max(chunks, int(before.item.max(initial=-1)) + 1)
        self._held = np.sort(before.rank * self._items + before.item)
        """Items held, as sorted keys: rank times items, plus item."""
        self._known = np.empty(0, dtype=np.int64)
        """Keys whose slot is known, sorted, and in `_slots` their slots."""
        self._slots = np.empty(0, dtype=np.int64)
        self._passed: dict[tuple[int, int], int] = {}
        """Number of scratch slots in use, by rank and position in a block."""
        self._late: list[tuple[int, int, int]] = []
        """(rank, item, slot) to be filled by local copies at the end."""
        self.copies_before: list[Transfer] = []
        if not demand.in_place:
            slot_of_item: dict[int, int] = {}
            for rank in range(demand.ranks):
                self._assign(rank, slot_of_item)
            self._insert(np.array(list(slot_of_item)), np.array(list(slot_of_item.values())))

    @property
    def scratch_slots(self) -> int:
        """Number of scratch slots at every rank."""
        return self._demand.chunks * max(self._passed.values(), default=0)

    def _assign(self, rank: int, slot_of_item: dict[int, int]) -> None:
        slots_of_item: dict[int, list[int]] = {}
        taken: set[int] = set()
        for slot, item, _ in self._demand.initial(rank):
            slots_of_item.setdefault(item, []).append(slot)
            taken.add(slot)
        place = {item: slots[0] for item, slots in slots_of_item.items()}
        for slot, item, _ in self._demand.final(rank):
            if slot in slots_of_item.get(item, ()):
                continue
            if slot in taken:
                self._late.append((rank, item, slot))
            elif item in slots_of_item:
                self.copies_before.append(Transfer(rank, rank, place[item], slot))
            elif item in place:
                self._late.append((rank, item, slot))
            else:
                place[item] = slot
        slot_of_item.update((rank * self._items + item, slot) for item, slot in place.items())

    def hops(
        self, row: np.ndarray, chunk: np.ndarray, src: np.ndarray, dst: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the source and destination slots of sends, in order.

        Parameters
        ----------
        row : number of every send, for errors.

        Raises
        ------
        ProgramError : if a rank sends a chunk that it does not have.
        """
        here, there = src * self._items + chunk, dst * self._items + chunk
        arrived, first = np.unique(there, return_index=True)
        place, located = _found(arrived, here)
        there_is = located & (first[place] < np.arange(len(here))) if len(arrived) else located
        there_is |= _found(self._held, here)[1] & (chunk >= 0)
        lost = np.flatnonzero(~there_is)
        if len(lost):
            at = lost[0]
            raise ProgramError(
                f"sends: row {row[at]} sends chunk {chunk[at]} from rank {src[at]} to rank "
                f"{dst[at]}, but rank {src[at]} does not have it yet; needs a causal order"
            )
        self._held = np.sort(np.append(self._held, arrived))
        if self._demand.in_place:
            return chunk, chunk
        new = np.sort(first[~_found(self._known, arrived)[1]])
        slots = [
            self._passing(*ends)
            for ends in zip(dst[new].tolist(), chunk[new].tolist(), strict=True)
        ]
        self._insert(there[new], np.array(slots, dtype=np.int64))
        return (
            self._slots[_found(self._known, here)[0]],
            self._slots[_found(self._known, there)[0]],
        )

    def _insert(self, keys: np.ndarray, slots: np.ndarray) -> None:
        keys = np.append(self._known, keys)
        order = np.argsort(keys)
        self._known, self._slots = keys[order], np.append(self._slots, slots)[order]

    def _passing(self, rank: int, chunk: int) -> int:
        """A scratch slot of its own, for chunks of its position in a block."""
        chunks = self._demand.chunks
        taken = self._passed.get((rank, chunk % chunks), 0)
        self._passed[rank, chunk % chunks] = taken + 1
        return self._demand.slots + taken * chunks + chunk % chunks

    def copies_after(self) -> list[Transfer]:
        """Return the local copies at the end; sources that they overwrite are saved first.

        Raises
        ------
        ProgramError : if an item never arrived.
        """
        aside: list[Transfer] = []
        filled: list[Transfer] = []
        targets = {(rank, slot) for rank, _, slot in self._late}
        keys = np.array([rank * self._items + item for rank, item, _ in self._late], dtype=np.int64)
        came = _found(self._held, keys)[1].tolist()
        places: list[int] = self._slots[_found(self._known, keys)[0]].tolist()
        moved: dict[tuple[int, int], int] = {}
        for (rank, item, slot), present, place in zip(self._late, came, places, strict=True):
            if not present:
                raise ProgramError(f"sends: chunk {item} never reaches rank {rank}")
            if (rank, place) in targets and (rank, item) not in moved:
                moved[rank, item] = self._passing(rank, item)
                aside.append(Transfer(rank, rank, place, moved[rank, item]))
            filled.append(Transfer(rank, rank, moved.get((rank, item), place), slot))
        return aside + filled


def _found(keys: np.ndarray, sought: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of each of `sought` in the sorted `keys`, and whether it has one."""
    if not len(keys):
        return np.zeros(len(sought), dtype=np.int64), np.zeros(len(sought), dtype=bool)
    place = np.minimum(np.searchsorted(keys, sought), len(keys) - 1)
    return place, keys[place] == sought
