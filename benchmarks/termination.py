"""SIGTERM to a benchmark: it ends, with all processes that it started, directly or not."""

import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import FrameType

from headrace.testbed.teardown import start_time

_GRACE_S = 5.0
"""For processes to end by themselves, and again after SIGTERM."""


class Terminated(BaseException):
    """The end of a run by SIGTERM.

    It is no `SystemExit` and no `KeyboardInterrupt`: a command that runs in this process would take
    those for its own end, and the run would go on.
    """


@contextmanager
def ended_by_sigterm() -> Generator[None]:
    """Leave the block at SIGTERM, end what it has started, and exit with the signal's code.

    Processes that were started before the block go on.

    Raises
    ------
    SystemExit : at SIGTERM, once none of the block's processes is left.
    """
    ending: list[Thread] = []
    earlier = descendants(os.getpid())

    def end(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is under way ends the run
        # now: a process whose parent has ended is no descendant any more; and beside this thread,
        # which may wait for one of them as it leaves the block
        started = dict(descendants(os.getpid()).items() - earlier.items())
        ending.append(Thread(target=end_processes, args=(started, _GRACE_S)))
        ending[0].start()
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except Terminated:
        ending[0].join()
        sys.exit(128 + signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def descendants(ancestor: int) -> dict[int, str]:
    """Return the processes that a process has started, and theirs: when each began, by its id."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            # bytes: the name before ")" may be of any
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    family = {ancestor}
    while children := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= children
    began = {pid: start_time(pid) for pid in family - {ancestor}}
    return {pid: when for pid, when in began.items() if when is not None}


def end_processes(started: dict[int, str], grace_s: float) -> None:
    """End processes that do not end by themselves: by SIGTERM, and at last by SIGKILL.

    Parameters
    ----------
    started : when each began, by its id: an id that is another process's by now is left alone.
    grace_s : seconds before SIGTERM, and as many before SIGKILL.
    """
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        running = [pid for pid, when in started.items() if start_time(pid) == when]
        for pid in running if number is not None else ():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + grace_s
        while running and time.monotonic() < until:
            time.sleep(0.05)
            running = [pid for pid in running if start_time(pid) == started[pid]]
        if not running:
            return
