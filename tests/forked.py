"""Children of forks in tests."""

import os
import select
import signal
import warnings
from collections.abc import Callable

from tests.waiting import HANG_S


def status_of_child(action: Callable[[], None]) -> int:
    """Return the exit status of a forked child that runs `action`; -9 if it hung."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    if not select.select([read], [], [], HANG_S)[0]:  # readable at its end
        os.kill(child, signal.SIGKILL)
    os.close(read)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
