"""Tensors on large pages, which a processor reads faster.

Reading keys and values once in a row misses the processor's table of addresses at every page of
4 KiB, and its prefetching stops there. Linux gives pages of 2 MiB to memory that asks for them,
unless its setting is never (``/sys/kernel/mm/transparent_hugepage/enabled``).
"""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

_PAGE_BYTES = 2 << 20


def allocated(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor whose numbers are anything, on large pages as far as it covers whole ones.

    Its storage has the bytes of its numbers; on other devices and systems it is PyTorch's.
    """
    size = math.prod(shape) * dtype.itemsize
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if device.type != "cpu" or advice is None or size < _PAGE_BYTES:
        return torch.empty(*shape, dtype=dtype, device=device)
    # Private: pages of shared memory have a setting of their own.
    mapping = mmap.mmap(-1, size + _PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = -torch.frombuffer(mapping, dtype=torch.uint8).data_ptr() % _PAGE_BYTES
    with suppress(OSError):  # of a kernel without large pages
        if size % _PAGE_BYTES:
            # Not of the last one in part: it would take more memory than the tensor has.
            mapping.madvise(advice, first, size // _PAGE_BYTES * _PAGE_BYTES)
        else:
            # Of all, with what is beyond the tensor: the kernel joins neighbours that are alike.
            # A process has 65,530 mappings: two for each block of 2 MiB would end at 64 GiB.
            mapping.madvise(advice)
    numbers = torch.frombuffer(mapping, dtype=torch.uint8, offset=first, count=size)
    return numbers.view(dtype).view(*shape)


def selected(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return some entries of the first dimension, each any number of times, on large pages."""
    out = allocated((len(indices), *tensor.shape[1:]), tensor.dtype, tensor.device)
    return torch.index_select(tensor, 0, indices, out=out)
