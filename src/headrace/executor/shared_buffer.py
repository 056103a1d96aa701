"""Shared buffers for zero copy: memory that ranks of the same host read without a ring."""

import math
import operator
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from headrace import _native
from headrace.errors import CommunicationError, InputError


def empty_shared(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return an uninitialized array in shared memory, for buffers that are reused.

    Collectives work on any memory; from a shared buffer the ranks of this host copy, or reduce, a
    block in place (zero copy). The memory is released once nothing refers to the array: for the
    next one of about its size, or to the system beyond 64 MiB. A forked child shares it with its
    parent.

    Raises
    ------
    InputError : an extent is negative, or all are too large together.
    CommunicationError : there is no shared memory left.
    """
    wanted = np.dtype(dtype)
    extents = tuple(shape) if isinstance(shape, Sequence) else (operator.index(shape),)
    nbytes = math.prod(map(int, extents)) * wanted.itemsize
    if min(extents, default=0) < 0 or nbytes > sys.maxsize:
        raise InputError(
            f"a shared buffer is to have shape {extents}, needs extents from 0 and less than 2^63 "
            "bytes in all"
        )
    try:
        memory = _native.shared_buffer(nbytes)
    except _native.CommunicationError as error:
        raise CommunicationError(str(error)) from None
    return memory.view(wanted).reshape(extents)
