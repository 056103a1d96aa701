"""File descriptors that a group needs, compared with the limit of the process before it is made."""

import errno
import os
import resource

_PER_PEER = 1
_PER_GROUP = 8  # event queues, listeners, and those in use while it is made


def shortage(ranks: int) -> str:
    """Return why this process cannot open a group of `ranks` ranks; empty if it can.

    A lower bound, without the connections' memory and additional sockets between hosts: what it
    misses fails where it happens.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    descriptors = _PER_PEER * (ranks - 1) + _PER_GROUP
    if limit == resource.RLIM_INFINITY or limit > 1 << 16:
        return ""
    try:
        in_use = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no path of each is needed
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):  # a container without /proc
            return ""
        in_use = limit  # no descriptor for the listing itself
    if in_use + descriptors <= limit:
        return ""
    return (
        f"a group of {ranks} ranks needs at least {descriptors} file descriptors, and {in_use} of "
        f"at most {limit} are open: raise the limit of open files (ulimit -n), or destroy groups "
        "that are no longer used (destroy_process_group)"
    )
