"""Clock offset between two ranks.

Processes of one machine read the same CLOCK_MONOTONIC, whatever network namespace they are in, so
their times are compared as they are. For others the offset is estimated as NTP does: from the
shortest of some round trips, where the ways there and back can differ least.
"""

import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace.executor import Executor

ROUND_TRIPS = 40
_TAG = 0xFFFF_7C10


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A peer's clock less ours, in ns.

    Attributes
    ----------
    uncertainty_ns : half of the shortest round trip: the offset is wrong by no more. 0 where the
        clock is the same.
    """

    offset_ns: int
    uncertainty_ns: int


def clock_identity() -> bytes:
    """Return 16 bytes, equal exactly for processes that read the same CLOCK_MONOTONIC."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/time").stat().st_ino
        return sha256(f"{boot}/{namespace}".encode()).digest()[:16]
    except OSError:  # not known: equal to no other
        return uuid4().bytes


def clock_offset(
    executor: "Executor", peer: int, *, round_trips: int = ROUND_TRIPS
) -> Offset | None:
    """Estimate how far the peer's clock is ahead of ours; both ranks of the pair call this.

    Returns
    -------
    Offset | None
        At the lower rank, None at the other.

    Raises
    ------
    InputError : `round_trips` is below 1, or `peer` is this rank.
    CommunicationError : the peer is gone.
    """
    if round_trips < 1 or peer == executor.rank:
        raise InputError(
            f"round_trips is {round_trips} and the peer rank {peer}, needs at least 1 and another "
            f"rank than {executor.rank}"
        )
    theirs = np.zeros(1, dtype=np.int64)
    address, starts = theirs.ctypes.data, executor.rank < peer
    best: Offset | None = None
    for _ in range(round_trips):
        if not starts:
            executor.wait(executor.recv(address, 8, peer, _TAG))
            theirs[0] = time.monotonic_ns()
            executor.wait(executor.send(address, 8, peer, _TAG))
            continue
        begin = time.monotonic_ns()
        executor.wait(executor.send(address, 8, peer, _TAG))
        executor.wait(executor.recv(address, 8, peer, _TAG))
        end = time.monotonic_ns()
        half = -((begin - end) // 2)
        if best is None or half < best.uncertainty_ns:
            best = Offset(offset_ns=int(theirs[0]) - (begin + half), uncertainty_ns=half)
    return best
