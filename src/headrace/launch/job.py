"""A job: processes that run side by side until all are done, or one fails."""

import queue
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.launch.roles import INHERITED, LINES, Role, Roles

OnLine = Callable[[int, str], None]
"""Called with a process's index in the job and a line it wrote, without the line's end."""

_NEVER_S = 1e8


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
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + (_NEVER_S if timeout_s is None else timeout_s)
    streams = INHERITED if on_line is None else LINES
    with Roles(dict(enumerate(roles)), streams=streams, grace_s=grace_s) as job:
        for until in (deadline, 0.0):  # at last what they still wrote when they were ended
            with suppress(queue.Empty):
                while not until or (len(codes) < len(roles) and not any(codes.values())):
                    index, line = job.receive_line(max(0.0, until - time.monotonic()))
                    if line is None:
                        codes[index] = job.exit_code(index)
                    elif on_line is not None:
                        on_line(index, line)
            job.end()
    return [codes.get(index, -signal.SIGKILL) or 0 for index in range(len(roles))]
