"""Test patterns of every rank's buffers, and the expected results of collectives.

A block holds small whole numbers that encode its source, its destination and the position in it, so
that a missing, doubled, swapped or shifted block is detected. All sums are exact in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.collectives.demand import Collective

COLLECTIVES = (
    Collective.ALLREDUCE,
    Collective.ALLGATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)

PERIOD = 1021
"""A block's numbers repeat after so many: a prime, so that no chunk's length is a multiple."""

Floats = NDArray[np.float32]

Empty = Callable[[int], Floats]
"""Allocates an array of the given number of elements."""

Row = tuple[int, int]
"""(base, scale): a block whose element i is ``base + scale * (i % PERIOD)``."""


def plain(count: int) -> Floats:
    """Return memory of NumPy's allocator."""
    return np.empty(count, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """One call's memory at one rank.

    A call of `bytes` has blocks of a rank's share of that: an allreduce works on a vector of
    `bytes`, an allgather makes `bytes` of blocks, a reduce-scatter starts from, and an all-to-all
    has on either side, `bytes` of blocks.

    Attributes
    ----------
    source, target : the rank's input and output; in place one is part of the other.
    """

    collective: Collective
    source: Floats
    target: Floats

    @classmethod
    def make(
        cls,
        collective: Collective,
        size: int,
        rank: int,
        ranks: int,
        *,
        in_place: bool,
        empty: Empty = plain,
    ) -> "Buffers":
        """Return buffers of a call of `size` bytes.

        Parameters
        ----------
        in_place : an allgather's source is part of its target, and a reduce-scatter's target of
            its source. An allreduce always is in place, an all-to-all never.
        empty : allocates memory.
        """
        whole = empty(size // 4)
        own = slice(rank * (whole.size // ranks), (rank + 1) * (whole.size // ranks))
        match collective:
            case Collective.ALLREDUCE:
                return cls(collective=collective, source=whole, target=whole)
            case Collective.ALLGATHER:
                source = whole[own] if in_place else empty(whole[own].size)
                return cls(collective=collective, source=source, target=whole)
            case Collective.REDUCE_SCATTER:
                target = whole[own] if in_place else empty(whole[own].size)
                return cls(collective=collective, source=whole, target=target)
            case Collective.ALL_TO_ALL:
                return cls(collective=collective, source=whole, target=empty(whole.size))
            case _:
                raise ValueError(f"this benchmark has no buffers for {collective}")

    def fill(self, rank: int, ranks: int) -> None:
        """Write this rank's contribution into the source, and -1 into the target."""
        self.target[:] = -1.0
        write(self.source, given(self.collective, rank, ranks))

    def check(self, rank: int, ranks: int, *, times: int = 1) -> None:
        """Raise RuntimeError unless the target holds the collective's result.

        Parameters
        ----------
        times : calls of an allreduce in place, each on the result of the one before.
        """
        rows = wanted(self.collective, rank, ranks)
        growth = ranks ** (times - 1)
        found = differing(self.target, [(base * growth, scale * growth) for base, scale in rows])
        if found is not None:
            raise RuntimeError(f"{self.collective}: block {found} of rank {rank} is wrong")


def given(collective: Collective, rank: int, ranks: int) -> list[Row]:
    """Return the blocks of `rank`'s input."""
    blocks = 1 if collective in (Collective.ALLREDUCE, Collective.ALLGATHER) else ranks
    return [(_base(rank, block, ranks), 1) for block in range(blocks)]


def wanted(collective: Collective, rank: int, ranks: int) -> list[Row]:
    """Return the blocks of `rank`'s expected output."""
    sources = range(ranks)
    match collective:
        case Collective.ALLREDUCE:
            return [(sum(_base(source, 0, ranks) for source in sources), ranks)]
        case Collective.ALLGATHER:
            return [(_base(source, 0, ranks), 1) for source in sources]
        case Collective.REDUCE_SCATTER:
            return [(sum(_base(source, rank, ranks) for source in sources), ranks)]
        case Collective.ALL_TO_ALL:
            return [(_base(source, rank, ranks), 1) for source in sources]
        case _:
            raise ValueError(f"this benchmark has no results for {collective}")


def write(array: Floats, rows: Sequence[Row]) -> None:
    """Fill `array`, cut into as many equal blocks as there are rows."""
    for block, (base, scale) in zip(np.split(array, len(rows)), rows, strict=True):
        period = _period(base, scale)
        whole = block.size // PERIOD * PERIOD
        block[:whole].reshape(-1, PERIOD)[:] = period
        block[whole:] = period[: block.size - whole]


def differing(array: Floats, rows: Sequence[Row]) -> int | None:
    """Return the first block that differs from its row, or None."""
    for index, (block, row) in enumerate(zip(np.split(array, len(rows)), rows, strict=True)):
        period = _period(*row)
        whole = block.size // PERIOD * PERIOD
        same = (block[:whole].reshape(-1, PERIOD) == period).all()
        if not (same and (block[whole:] == period[: block.size - whole]).all()):
            return index
    return None


def _base(source: int, block: int, ranks: int) -> int:
    return 1 + 3 * (source * ranks + block)


def _period(base: int, scale: int) -> Floats:
    return (np.arange(PERIOD, dtype=np.float64) * scale + base).astype(np.float32)
