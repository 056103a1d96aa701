"""``python -I -S with_parent.py PID FOLDER ARGV``: a command in a folder, killed with its parent.

The parent, process PID, is the *thread* that starts this file: when it ends, by whatever cause, the
kernel kills the command. The file is run by its path, so it imports nothing of headrace.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_GONE = 130


def with_parent(folder: str, argv: Sequence[str]) -> list[str]:
    """Return a command that becomes `argv` in a folder, for the thread that will start it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), folder, *argv]


def _become(parent: int, folder: str, argv: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        sys.exit(_GONE)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a command inherits
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be started in {folder}: {error}")


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
