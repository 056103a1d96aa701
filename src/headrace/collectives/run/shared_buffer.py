"""Memory that ranks of the same host may read: what lies in it needs no copy into a ring."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from headrace import _native
from headrace.errors import CommunicationError


def empty_shared(shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return an array of any content, for buffers that are used again and again.

    Collectives work on any memory; from this one the ranks of this host take, or reduce, a block
    straight from where it is. The memory is given back once nothing refers to the array: to the
    next one of about its size, or to the system beyond 64 MiB of it. A forked child shares it with
    its parent.

    Raises
    ------
    CommunicationError : there is no memory left to share.
    """
    wanted = np.dtype(dtype)
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = int(np.prod(extents, dtype=np.int64)) * wanted.itemsize
    try:
        memory = _native.lendable(nbytes)
    except _native.CommunicationError as error:
        raise CommunicationError(str(error)) from None
    return memory.view(wanted).reshape(extents)
