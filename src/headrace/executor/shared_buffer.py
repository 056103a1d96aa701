"""Shared buffers for zero copy: memory that ranks of the same host read without a ring."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from headrace import _native
from headrace.errors import CommunicationError


def empty_shared(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return an uninitialized array in shared memory, for buffers that are reused.

    Collectives work on any memory; from a shared buffer the ranks of this host copy, or reduce, a
    block in place (zero copy). The memory is released once nothing refers to the array: for the
    next one of about its size, or to the system beyond 64 MiB. A forked child shares it with its
    parent.

    Raises
    ------
    CommunicationError : there is no shared memory left.
    """
    wanted = np.dtype(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = int(np.prod(extents, dtype=np.int64)) * wanted.itemsize
    try:
        memory = _native.shared_buffer(nbytes)
    except _native.CommunicationError as error:
        raise CommunicationError(str(error)) from None
    return memory.view(wanted).reshape(extents)
