"""Memory that two ranks of one host share: an anonymous file of sealed size."""

import fcntl
import os

from headrace.collectives.run.connect.handshake import Refused

# without these, a peer that shrinks the file kills a process that accesses the rest (SIGBUS)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_NOT_WRITABLE = fcntl.F_SEAL_WRITE | 0x10  # F_SEAL_FUTURE_WRITE is not in Python's fcntl


def make_memory(nbytes: int) -> int:
    """Return the descriptor of `nbytes` of sealed, zeroed memory; pages are allocated lazily.

    Raises
    ------
    OSError : there is no memory, no descriptor, or the call is forbidden.
    """
    fd = os.memfd_create("headrace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_memory(fd: int, nbytes: int) -> None:
    """Check that a peer's descriptor is memory as `make_memory` makes it.

    Raises
    ------
    Refused : it is not memory, not sealed, or of another size.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        raise Refused("offered a descriptor that is no memory") from None
    if seals & _SEALS != _SEALS or seals & _NOT_WRITABLE:
        raise Refused(f"offered memory with the wrong seals ({seals:#x})")
    found = os.fstat(fd).st_size
    if found != nbytes:
        raise Refused(f"offered {found} bytes of memory, not {nbytes}")
