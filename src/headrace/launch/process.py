"""One process of a role: its output by line, its end, and the end of what it started."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from subprocess import Popen
from typing import IO, Any

_POLL_S = 0.01
_LAST_LINES = 12
_DRAIN_S = 2.0
"""For what a process has printed before its end, on a busy machine."""


class RoleProcess:
    """A started process, the leader of a session and process group of its own.

    Threads read its output. When it ends, for whatever reason, the rest of its group is ended too
    (SIGTERM, after `grace_s` SIGKILL), and its end passed on after its last line.

    Parameters
    ----------
    start : starts it, with the given options of `subprocess.Popen`.
    take : called with every line of ``stdout``, at last with None; from threads.

    Attributes
    ----------
    last : the last lines of ``stderr``, if it is a pipe.
    """

    def __init__(
        self, start: Callable[..., Popen[str]], take: Callable[[str | None], None], grace_s: float
    ) -> None:
        # a session of its own: Ctrl-C is for this process, which ends the others
        self._process = start(text=True, errors="replace", start_new_session=True)
        self.stdin: Any = self._process.stdin
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        streams = ((self._process.stdout, take), (self._process.stderr, self.last.append))
        readers = [_thread(_read, stream, put) for stream, put in streams if stream is not None]
        self._watcher = _thread(self._watch, readers, take, grace_s)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that has ended (-n: by signal n)."""
        return self._process.returncode

    def signal(self, number: int) -> bool:
        """Send a signal to its group; False if the group is empty."""
        try:
            os.killpg(self._process.pid, number)
        except OSError:
            return False
        return True

    def wait(self, until: float) -> bool:
        """Wait until `until` (`time.monotonic`) for the end of its group; True if it came."""
        self._watcher.join(max(0.0, until - time.monotonic()))
        return not self._watcher.is_alive()

    def _watch(
        self, readers: list[threading.Thread], take: Callable[[None], None], grace_s: float
    ) -> None:
        with suppress(ChildProcessError):
            # not reaped yet, so that the number of its group cannot become another's
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self.signal(signal.SIGTERM)
        self._process.wait()
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
