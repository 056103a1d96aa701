"""A job: processes that run side by side until all are done, or one fails."""

import queue
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.launch.roles import INHERITED, LINES, Role, Roles

OnLine = Callable[[int, str], None]
"""Called with a process's index in the job and a line it wrote, without the line's end."""


def run_job(
    roles: Sequence[Role],
    *,
    on_line: OnLine | None = None,
    timeout_s: float | None = None,
    grace_s: float = 2.0,
) -> list[int]:
    """Run processes and return their exit codes (below 0: the signal).

    When one fails, or `timeout_s` passes, the others are ended: SIGTERM, after `grace_s` SIGKILL.

    Parameters
    ----------
    on_line : receives their output line by line; without it they write to this process's.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    streams = INHERITED if on_line is None else LINES
    with Roles(dict(enumerate(roles)), streams=streams, grace_s=grace_s) as job:

        def take(timeout_s: float | None) -> None:
            index, line = job.receive_line(timeout_s)
            if line is not None and on_line is not None:
                on_line(index, line)

        def codes() -> list[int | None]:
            return [job.exit_code(index) for index in range(len(roles))]

        with suppress(queue.Empty):
            while None in codes() and not any(codes()):
                take(None if until is None else max(0.0, until - time.monotonic()))
        job.end()
        with suppress(queue.Empty):
            while True:
                take(0.0)
        return [-signal.SIGKILL if code is None else code for code in codes()]
