"""One process of a role: its output by line, its end, and the end of what it started."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from subprocess import Popen
from typing import IO, Any, Protocol

from headrace.facades import offered_by

_POLL_S = 0.01
_LAST_LINES = 12
_DRAIN_S = 2.0
"""For what a process has printed before its end, on a busy machine."""


def signal_name(number: int) -> str:
    """Return a signal's name; of a real-time one, which has none, its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@offered_by("headrace.launch")
class ProcessGroup(Protocol):
    """A process, the leader of a group, with what it started: here, or on another machine.

    Attributes
    ----------
    stdin, stdout, stderr : as of `subprocess.Popen`.
    """

    stdin: IO[Any] | None
    stdout: IO[str] | None
    stderr: IO[str] | None

    @property
    def returncode(self) -> int | None:
        """The exit code of a process that has ended (-n: by signal n)."""
        ...

    def signal(self, number: int) -> bool:
        """Send a signal to the group; False if it is empty."""
        ...

    def await_end(self) -> None:
        """Wait for the end of the process; its number stays its own until `wait`."""
        ...

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        ...


class LocalGroup:
    """A group of processes on this machine: see `ProcessGroup`."""

    def __init__(self, process: Popen[Any]) -> None:
        self._process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    @property
    def returncode(self) -> int | None:
        """The exit code."""
        return self._process.returncode

    def signal(self, number: int) -> bool:
        """Send a signal to the group; False if it is empty."""
        try:
            os.killpg(self._process.pid, number)
        except OSError:
            return False
        return True

    def await_end(self) -> None:
        """Wait for the end; not reaped, so that the group's number cannot become another's."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)

    def wait(self) -> int:
        """Wait for the end, and reap."""
        return self._process.wait()


class RoleProcess:
    """A started process, the leader of a session and process group of its own.

    Threads read its output. When it ends, for whatever reason, the rest of its group is ended too
    (SIGTERM, after `grace_s` SIGKILL), and its end passed on after its last line.

    Parameters
    ----------
    start : starts it, with the given options of `subprocess.Popen`.
    take : called with every line of ``stdout``, at last with None; from threads.
    take_error : called with every line of ``stderr``; None: it is one of `last`.

    Attributes
    ----------
    last : the last lines of ``stderr``, if it is a pipe.
    """

    def __init__(
        self,
        start: Callable[..., Popen[str] | ProcessGroup],
        take: Callable[[str | None], None],
        grace_s: float,
        take_error: Callable[[str], None] | None = None,
    ) -> None:
        # a session of its own: Ctrl-C is for this process, which ends the others
        started = start(text=True, errors="replace", start_new_session=True)
        self._group = LocalGroup(started) if isinstance(started, Popen) else started
        self.stdin: Any = self._group.stdin
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        streams = (
            (self._group.stdout, take),
            (self._group.stderr, take_error or self.last.append),
        )
        readers = [_thread(_read, stream, put) for stream, put in streams if stream is not None]
        self._watcher = _thread(self._watch, readers, take, grace_s)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that has ended (-n: by signal n)."""
        return self._group.returncode or 0

    def signal(self, number: int) -> bool:
        """Send a signal to its group; False if the group is empty."""
        return self._group.signal(number)

    def wait(self, until: float) -> bool:
        """Wait until `until` (`time.monotonic`) for the end of its group; True if it came."""
        self._watcher.join(max(0.0, until - time.monotonic()))
        return not self._watcher.is_alive()

    def _watch(
        self, readers: list[threading.Thread], take: Callable[[None], None], grace_s: float
    ) -> None:
        self._group.await_end()
        self.signal(signal.SIGTERM)
        self._group.wait()
        until = time.monotonic() + grace_s
        while self.signal(0) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self.signal(signal.SIGKILL)
        for reader in readers:
            # a process that left the group may still hold the pipe open
            reader.join(max(grace_s, _DRAIN_S))
        take(None)


def _thread(run: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread


def _read(stream: IO[str], take: Callable[[str], None]) -> None:
    with suppress(ValueError), stream:
        for line in stream:
            take(line.rstrip("\n"))
