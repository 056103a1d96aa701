"""Exchange of addresses for additional connections of a group while its calls are under way.

The addresses are sent as messages over the existing connections: the store is unsuitable here, as a
thread that waits for it blocks all others of its process that use it.
"""

import zlib

import numpy as np

from headrace.collectives.run.executor import Executor
from headrace.collectives.run.torch.checks import TAGS
from headrace.errors import CommunicationError, InputError

_ADDRESS_BYTES = 64
_FIRST_TAG = TAGS + TAGS // 2  # `Caller.next_tag` counts up to it


def allgather_addresses(executor: Executor, name: str, mine: str, deadline_s: float) -> list[str]:
    """Return every rank's `mine`, by rank; collective: once per `name`, which is the same on all.

    Raises
    ------
    CommunicationError : a rank did not call it in time.
    """
    encoded = mine.encode()
    if len(encoded) > _ADDRESS_BYTES:
        raise InputError(f"{mine!r} is over {_ADDRESS_BYTES} bytes")
    tag = _FIRST_TAG + zlib.crc32(name.encode()) % (TAGS // 2)
    rows = np.zeros((executor.ranks, _ADDRESS_BYTES), dtype=np.uint8)
    own = rows[executor.rank]
    own[: len(encoded)] = np.frombuffer(encoded, dtype=np.uint8)
    handles: list[int] = []
    for peer in range(executor.ranks):
        if peer != executor.rank:
            row, source = rows[peer].ctypes.data, own.ctypes.data
            handles.append(executor.recv(row, _ADDRESS_BYTES, peer, tag, deadline_s=deadline_s))
            handles.append(executor.send(source, _ADDRESS_BYTES, peer, tag, deadline_s=deadline_s))
    errors: list[CommunicationError] = []
    for handle in handles:  # all: the buffers are in use until then
        try:
            executor.wait(handle)
        except CommunicationError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return [row.tobytes().rstrip(b"\0").decode() for row in rows]
