"""Workloads: codes to load and operations in order, as a file that the native benchmark maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FIND, INSERT, ERASE, SCAN, MISS = range(5)
"""Operations: a scan reads 100 keys, a miss is a find of a code that is not in the map."""

_MAGIC = 0x31786469636E6562
_ZIPF = 0.99
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Shares of operations; the rest are finds of codes that are in the map."""

    inserts: float = 0.0
    erases: float = 0.0
    scans: float = 0.0
    misses: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Codes to load (ascending), and `operations` with their `codes`, of equal length."""

    loaded: NDArray[np.uint64]
    operations: NDArray[np.uint8]
    codes: NDArray[np.uint64]

    def write(self, path: Path) -> Path:
        """Write the file of `native/index/bench/workload.hpp`."""
        header = np.array([_MAGIC, len(self.loaded), len(self.codes)], dtype=np.uint64)
        with path.open("wb") as file:
            for column in (header, self.loaded, self.codes, self.operations):
                column.tofile(file)
        return path


Phases = Sequence[tuple[int, Mix]]
"""Counts of operations, each with its mix, one after the other."""


def make(
    arrivals: NDArray[np.uint64],
    *,
    loaded: int,
    phases: Phases,
    seed: int = 0,
    hot: bool = False,
) -> Workload:
    """Return a workload on codes in the order of their arrival.

    The first `loaded` codes are there at the start, inserts take the next ones. Erased is the code
    that arrived first of those left; as arrivals are in random order, that is any. Finds, and the
    first keys of scans, are drawn from the codes that are there at that time, evenly or (`hot`) by
    a Zipf law of 0.99 over arrivals. Misses are of codes that never arrive.

    Raises
    ------
    ValueError : if there are too few arrivals for the inserts, or too few loaded codes for erases.
    """
    random = np.random.default_rng([seed, loaded])
    kinds = np.concatenate([_kinds(count, mix, random) for count, mix in phases])
    inserted = np.cumsum(kinds == INSERT, dtype=np.int64)
    erased = np.cumsum(kinds == ERASE, dtype=np.int64)
    end = loaded + int(inserted[-1])
    if end > len(arrivals) or erased[-1] >= loaded:
        raise ValueError(
            f"{len(arrivals)} codes arrive and {loaded} are loaded, needs at least {end} and more "
            f"than {erased[-1]}"
        )
    places = np.empty(len(kinds), dtype=np.int64)
    for begin in range(0, len(kinds), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        places[part] = _drawn(erased[part], loaded + inserted[part], hot, random)
    inserts, erases, misses = kinds == INSERT, kinds == ERASE, kinds == MISS
    places[inserts] = loaded + inserted[inserts] - 1
    places[erases] = erased[erases] - 1
    codes = arrivals[places]
    if misses.any():
        codes[misses] = _absent(arrivals[:end], int(misses.sum()), random)
    return Workload(loaded=np.sort(arrivals[:loaded]), operations=kinds, codes=codes)


def arrivals_needed(loaded: int, phases: Phases) -> int:
    """Return a number of arrivals that is enough for `make`, whatever its seed."""
    inserts = sum(count * mix.inserts for count, mix in phases)
    return loaded + int(inserts + 6 * inserts**0.5) + 1


def _kinds(operations: int, mix: Mix, random: np.random.Generator) -> NDArray[np.uint8]:
    drawn = random.random(operations, dtype=np.float32)
    kinds = np.full(operations, FIND, dtype=np.uint8)
    shares = ((INSERT, mix.inserts), (ERASE, mix.erases), (SCAN, mix.scans), (MISS, mix.misses))
    bound = 0.0
    for kind, share in shares:
        kinds[(drawn >= bound) & (drawn < bound + share)] = kind
        bound += share
    return kinds


def _drawn(
    begins: NDArray[np.int64], ends: NDArray[np.int64], hot: bool, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return places between `begins` and `ends`."""
    shares = random.random(len(begins))
    room = (ends - begins).astype(np.float64)
    if hot:  # the inverse of the continuous law's distribution function
        power = 1.0 - _ZIPF
        shares = (((room + 1.0) ** power - 1.0) * shares + 1.0) ** (1.0 / power) - 1.0
    else:
        shares *= room
    return begins + np.minimum(shares, room - 1.0).astype(np.int64)


def _absent(
    present: NDArray[np.uint64], count: int, random: np.random.Generator
) -> NDArray[np.uint64]:
    """Return codes next to present ones that are themselves never present."""
    ordered = np.sort(present)
    picked = ordered[random.integers(0, len(ordered), count)] + np.uint64(1)
    while True:
        at = np.minimum(np.searchsorted(ordered, picked), len(ordered) - 1)
        taken = ordered[at] == picked
        if not taken.any():
            return picked
        picked[taken] += np.uint64(1)
