"""Flags of one bit per element, packed from the lowest bit of a byte on, in order of memory.

Eight flags are packed by one multiplication of 64 bits, and unpacked by another. Work is done in
blocks, so that the workspace is constant. The same code runs on CPUs and GPUs.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from headrace.memory.operators.variant import laid_out

BLOCK = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Elements of a block, a multiple of 8: on a CPU its flags stay in the second level of cache."""

_GATHER = 0x0102040810204080
"""Times eight bytes of 0 or 1: their flags are in the highest byte of the product."""
_SPREAD = 0x0101010101010101
_EACH = 0x8040201008040201 - (1 << 64)
"""Bit i of byte i, as a signed integer."""

Flags = Callable[[Tensor, Tensor], object]
"""Elements, and the boolean tensor that receives their flags."""


def packed_bytes(elements: int) -> int:
    """Return the bytes of the flags of so many elements."""
    return -(-elements // 8)


def aligned_slices(elements: int, device: torch.device) -> Iterator[slice]:
    """Yield slices that cover the elements; all begin at a multiple of 8."""
    step = BLOCK.get(device.type, 1 << 20)
    for begin in range(0, elements, step):
        yield slice(begin, min(begin + step, elements))


def in_memory_order(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the elements of a tensor in the order of memory of a dense layout.

    It is a view if the tensor has the layout, else a copy.
    """
    return laid_out(tensor, strides).as_strided((tensor.numel(),), (1,))


def pack_flags(flags: Flags, elements: Tensor) -> Tensor:
    """Return the packed flags of the elements, which are in one dimension."""
    count = elements.numel()
    packed = torch.empty(packed_bytes(count), dtype=torch.uint8, device=elements.device)
    for block in aligned_slices(count, elements.device):
        length = block.stop - block.start
        raised = _flag_bytes(length, elements.device)
        flags(elements[block], raised[:length])
        product = raised.view(torch.int64).mul_(_GATHER)
        begin = block.start // 8
        packed[begin : begin + product.numel()] = product.view(torch.uint8)[7::8]
    return packed


def _flag_bytes(length: int, device: torch.device) -> Tensor:
    raised = torch.empty(8 * packed_bytes(length), dtype=torch.bool, device=device)
    raised[length:] = False
    return raised


def by_blocks(
    change: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    packed: Tensor,
    strides: tuple[int, ...],
    out_strides: tuple[int, ...],
) -> Tensor:
    """Return ``change(elements, flags)`` of all elements of `x`.

    Parameters
    ----------
    strides : of the layout in whose order the bits are.
    out_strides : of the result.
    """
    out = x.new_empty_strided(x.shape, strides)
    read, write = in_memory_order(x, strides), in_memory_order(out, strides)
    for block in aligned_slices(write.numel(), x.device):
        write[block] = change(read[block], unpack(packed, block))
    return laid_out(out, out_strides)


def unpack(packed: Tensor, block: slice) -> Tensor:
    """Return the flags of a block of elements, as a boolean tensor."""
    read = packed[block.start // 8 : packed_bytes(block.stop)]
    words = read.to(torch.int64).mul_(_SPREAD).bitwise_and_(_EACH).view(torch.uint8)
    return (words != 0)[: block.stop - block.start]
