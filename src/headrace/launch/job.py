"""A job: processes that run side by side until all are done, or one fails."""

import errno
import os
import queue
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from subprocess import Popen
from typing import Any

from headrace.launch.roles import INHERITED, LINES, Role, Roles, start_local
from headrace.launch.with_parent import with_parent
from headrace.settings import child_environment

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
    The kernel kills those on this machine when the calling thread ends, by whatever cause.

    Parameters
    ----------
    on_line : receives their output line by line; without it they write to this process's.
    """
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + (_NEVER_S if timeout_s is None else timeout_s)
    streams = INHERITED if on_line is None else LINES
    bound = [
        replace(role, start=_start_with_parent) if role.start is start_local else role
        for role in roles
    ]
    with Roles(dict(enumerate(bound)), streams=streams, grace_s=grace_s) as job:
        for until in (deadline, 0.0):  # at last what they still wrote when they were ended
            with suppress(queue.Empty):
                while not until or (len(codes) < len(roles) and not any(codes.values())):
                    left_s = until - time.monotonic()
                    if until and left_s <= 0:  # whatever lines are left
                        break
                    index, line = job.receive_line(max(0.0, left_s))
                    if line is None:
                        codes[index] = job.exit_code(index)
                    elif on_line is not None:
                        on_line(index, line)
            job.end()
    return [codes.get(index, -signal.SIGKILL) or 0 for index in range(len(roles))]


def _start_with_parent(
    argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **options: Any
) -> Popen[Any]:
    """Start `argv` as `start_local`, killed with the thread that calls this."""
    program = shutil.which(argv[0], path=child_environment(env).get("PATH"))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return start_local(with_parent(".", [program, *argv[1:]]), env=env, **options)
