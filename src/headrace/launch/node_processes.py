"""Processes on another machine, for a program that calls this one: they are started and watched.

It runs as an actor of Ray (`headrace.launch.ray_cluster`), and needs nothing of Ray itself.
"""

import queue
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from headrace import __version__
from headrace.launch.ports import free_port
from headrace.launch.process import RoleProcess
from headrace.launch.with_parent import with_parent
from headrace.settings import child_environment

OUTPUT, ERRORS, END = "stdout", "stderr", "end"

ProcessEvent = tuple[str, str | int]
"""A line that a process wrote to one of its streams, or its end with the exit code."""

LEASE_S = 60.0
"""A process whose events were not asked for, for so long, is killed."""

_LEASE_CHECK_S = 1.0
_MOST_EVENTS = 1000
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to be started.

    Attributes
    ----------
    folder : it starts in.
    env : changes to the environment of the node (None removes a variable).
    streams : options ``stdin``, ``stdout`` and ``stderr`` of `subprocess.Popen`.
    """

    argv: Sequence[str]
    folder: str
    env: Mapping[str, str | None]
    streams: Mapping[str, int | None]


class NodeProcesses:
    """Processes of one role, each by its number; its methods are called side by side.

    A process is ended, with all that it started, when this object's process ends, or when its
    events are not asked for, for `LEASE_S`: the program that started it is gone or cut off, and may
    have started another in its place.
    """

    def __init__(self) -> None:
        self._processes: dict[int, _Leased] = {}

    def describe(self) -> tuple[str, tuple[str, ...]]:
        """Return headrace's version here, and the GPUs of this process."""
        gpus = child_environment().get("CUDA_VISIBLE_DEVICES", "")
        return __version__, tuple(filter(None, gpus.split(",")))

    def free_port(self, address: str) -> int:
        """Return a port of an address of this machine that nothing listens at."""
        return free_port(address)

    def start(self, number: int, command: Command) -> None:
        """Start a process; raises OSError if this machine cannot."""
        self._processes[number] = _Leased(command)

    def events(self, number: int, timeout_s: float) -> list[ProcessEvent]:
        """Return a process's events since the last call; wait for one up to `timeout_s`."""
        return self._processes[number].events(timeout_s)

    def write(self, number: int, text: bytes) -> None:
        """Write to the standard input of a process; nothing closes it."""
        self._processes[number].write(text)

    def signal(self, number: int, signal_number: int) -> bool:
        """Send a signal to the group of a process; False if it is empty."""
        return self._processes[number].process.signal(signal_number)


class _Leased:
    """A process, and its events that were not asked for yet."""

    def __init__(self, command: Command) -> None:
        self._events = queue.SimpleQueue[ProcessEvent]()
        self._asked_s = time.monotonic()
        started = Future[RoleProcess]()
        threading.Thread(target=self._run, args=(command, started), daemon=True).start()
        self.process = started.result()

    def _run(self, command: Command, started: Future[RoleProcess]) -> None:
        """Start the process, whose life is bound to this thread's, and wait for its end."""

        def start(**options: Any) -> Popen[str]:
            return Popen(
                with_parent(command.folder, command.argv),
                env=child_environment(command.env),
                cwd=Path("/"),
                **command.streams,
                **options,
            )

        def take(line: str | None) -> None:
            if line is None:
                self._events.put((END, started.result().exit_code))
            else:
                self._events.put((OUTPUT, line))

        try:
            process = RoleProcess(
                start, take, _GRACE_S, lambda line: self._events.put((ERRORS, line))
            )
        except Exception as error:  # of any kind: `start` waits, and its caller without a deadline
            started.set_exception(error)
            return
        started.set_result(process)
        while not process.wait(time.monotonic() + _LEASE_CHECK_S):
            if time.monotonic() - self._asked_s > LEASE_S:
                process.signal(signal.SIGKILL)
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def events(self, timeout_s: float) -> list[ProcessEvent]:
        self._asked_s = time.monotonic()
        events: list[ProcessEvent] = []
        with suppress(queue.Empty):
            events.append(self._events.get(timeout=timeout_s))
            while len(events) < _MOST_EVENTS:
                events.append(self._events.get_nowait())
        self._asked_s = time.monotonic()
        return events

    def write(self, text: bytes) -> None:
        with suppress(OSError, ValueError):  # it has ended, or its input was closed
            stream = self.process.stdin
            if text:
                stream.buffer.write(text)
                stream.flush()
            else:
                stream.close()
