"""Calls of a soak: collectives drawn at random, alike at every rank, and their right results.

Values are small whole numbers, so that no type, not even bfloat16, rounds any sum.
"""

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

GROUPS = ((0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2), (1, 2, 3), (0, 3))
"""Members of every group; the first is the whole job."""

KINDS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "broadcast",
    "all_gather",
    "all_gather_uneven",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_uneven",
    "send_receive",
    "barrier",
)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
)
_COMBINE = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}
OPERATORS = tuple(_COMBINE)

_VALUES = 11
_MOST_ELEMENTS = 1 << 20
_SIZES = 300
_LARGE_SHARE = 0.02
_LARGE_BITS = (16.0, 18.0)
_ORDINARY_BITS = (0.0, 14.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective of one group.

    Attributes
    ----------
    number : of the call; determines its values.
    group : index in `GROUPS`.
    elements : of a block; uneven calls have blocks of as many and fewer, see `uneven`.
    root : the rank in the group, where the kind has one.
    pending : True if it is waited for later.
    """

    number: int
    kind: str
    group: int
    dtype: torch.dtype
    elements: int
    operator: str
    root: int
    pending: bool

    @property
    def members(self) -> tuple[int, ...]:
        """The job's ranks that take part."""
        return GROUPS[self.group]


def draw(source: random.Random, number: int) -> Call:
    """Return the next call; every rank draws the same from the same seed."""
    group = source.randrange(len(GROUPS))
    return Call(
        number=number,
        kind=source.choice(KINDS),
        group=group,
        dtype=source.choice(DTYPES),
        elements=source.choice(_sizes()),
        operator=source.choice(OPERATORS),
        root=source.randrange(len(GROUPS[group])),
        pending=source.random() < 0.5,
    )


def block(call: Call, source: int, destination: int, elements: int | None = None) -> torch.Tensor:
    """Return a new tensor with the block of `source` for `destination` (ranks in the group)."""
    shift = (7 * call.number + 5 * source + 3 * destination) % _VALUES
    count = call.elements if elements is None else elements
    return _numbers(call.dtype)[shift : shift + count].clone()


def uneven(call: Call, source: int, destination: int) -> int:
    """Return the elements of a block of an uneven call; some are empty."""
    return call.elements * ((call.number + source + 2 * destination) % 4) // 3


def reduced(call: Call, destination: int) -> torch.Tensor:
    """Return the reduction of all ranks' blocks for `destination`."""
    blocks = [block(call, source, destination) for source in range(len(call.members))]
    return functools.reduce(_COMBINE[call.operator], blocks)


def total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors one after the other."""
    return torch.cat(list(tensors))


@functools.cache
def _sizes() -> tuple[int, ...]:
    """Return the sizes of blocks: a limited number, or caches would fill for hours."""
    source, sizes = random.Random(_SIZES), list[int]()
    for number in range(_SIZES):
        bits = _LARGE_BITS if number < _LARGE_SHARE * _SIZES else _ORDINARY_BITS
        sizes.append(int(2 ** source.uniform(*bits)))
    return tuple(sizes)


@functools.cache
def _numbers(dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(_MOST_ELEMENTS + _VALUES) % _VALUES).to(dtype)
