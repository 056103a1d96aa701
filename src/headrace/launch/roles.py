"""Processes by role, which exchange lines of JSON with this one and can be restarted one by one.

A role is the purpose of a process (rank 3, a server); its *incarnation* is the process that has the
role at present. Messages carry their incarnation's number, so that those of a process that was
replaced are not taken for its successor's.
"""

import json
import os
import queue
import select
import signal
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Any, Generic, Self, TypeVar

from headrace.errors import CommunicationError
from headrace.facades import offered_by, public_value
from headrace.forks import ForkMark
from headrace.launch.process import ProcessGroup, RoleProcess
from headrace.launch.worker import MARK
from headrace.settings import child_environment

K = TypeVar("K", bound=Hashable)

Message = dict[str, Any]
"""A line of JSON. The field "error" is the text of an error that ended the work."""

Start = Callable[..., Popen[Any] | ProcessGroup]
"""Place of a process: ``start(argv, env=changes, **options)`` starts it, as `start_local`.

A testbed's host is ``partial(testbed.popen, name)``, a node of Ray `RayHost.start`.
"""

Streams = Mapping[str, int | None]
"""Options ``stdin``, ``stdout`` and ``stderr`` of `subprocess.Popen`."""

MESSAGES: Streams = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
LINES: Streams = {"stdin": DEVNULL, "stdout": PIPE, "stderr": STDOUT}
INHERITED: Streams = {"stdin": DEVNULL}

_SEND_S = 15.0
_KILL_S = 5.0  # wait for the end after SIGKILL, which only the kernel can delay
_AFTERMATH_S = 2.0  # wait after the first failure for the messages of other roles


def start_local(
    argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **options: Any
) -> Popen[Any]:
    """Start `argv` on this machine; `env` are changes to the environment (None: removed)."""
    return Popen(argv, env=child_environment(env), **options)


@public_value("headrace.launch")
class Role:
    """A process to be started.

    Attributes
    ----------
    name : for error messages, such as "rank 3".
    start : its place.
    env : changes to the environment there (None removes a variable).
    streams : of this process, in place of those of all roles.
    beside_prints : whether it prints other texts beside its messages, see `run_worker`.
    """

    name: str
    argv: Sequence[str]
    start: Start = start_local
    env: Mapping[str, str | None] = field(default_factory=dict)
    streams: Streams | None = None
    beside_prints: bool = False


@offered_by("headrace.launch")
class Roles(Generic[K]):
    """Processes by the key of their role. As a context manager it starts and ends them all.

    They are ended as process groups: SIGTERM, after `grace_s` SIGKILL. Ctrl-C reaches this process
    alone, which ends them on its way out. A forked child of this process ends none of them.

    Parameters
    ----------
    streams : of every process whose role has none; messages need `MESSAGES`.
    grace_s : time between SIGTERM and SIGKILL.
    """

    def __init__(
        self, roles: Mapping[K, Role], *, streams: Streams = MESSAGES, grace_s: float = 2.0
    ) -> None:
        self._roles = dict(roles)
        self._streams = streams
        self._grace_s = grace_s
        self._mark = ForkMark()
        self._processes: dict[K, RoleProcess] = {}
        self._incarnations = dict.fromkeys(roles, 0)
        self._ended: dict[K, int] = {}  # exit codes, in the order of the ends
        self._received: queue.SimpleQueue[tuple[K, int, str | None]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        try:
            for key in self._roles:
                self._start(key)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def add(self, key: K, role: Role) -> None:
        """Start the process of another role."""
        self._roles[key] = role
        self._incarnations[key] = 0
        self._start(key)

    def restart(self, key: K) -> None:
        """End the process of a role, and start another in its place."""
        self.end([key])
        self._incarnations[key] += 1
        self._ended.pop(key, None)
        self._start(key)

    def end(self, keys: Collection[K] | None = None, grace_s: float | None = None) -> None:
        """End the processes of roles, or of all, within `grace_s` and 5 s; idempotent."""
        if self._mark.forked:
            return
        processes = [p for key, p in self._processes.items() if keys is None or key in keys]
        running = [process for process in processes if not process.wait(0.0)]
        try:
            for process in running:
                process.signal(signal.SIGTERM)
            until = time.monotonic() + (self._grace_s if grace_s is None else grace_s)
            running = [process for process in running if not process.wait(until)]
        finally:  # also when Ctrl-C cuts the grace short
            for process in running:
                process.signal(signal.SIGKILL)
            until = time.monotonic() + _KILL_S
            for process in processes:
                process.wait(until)
                if process.stdin is not None:
                    with suppress(OSError):
                        process.stdin.close()

    def send(self, key: K, message: Message) -> None:
        """Send a message to a role.

        One that has ended, or does not read within 15 s and is therefore ended, is no error here:
        `receive` reports its end.
        """
        process = self._processes[key]
        if process.stdin.closed:  # by `end`
            return
        pipe, ready = process.stdin.fileno(), select.poll()
        ready.register(pipe, select.POLLOUT)
        data = memoryview(json.dumps(message).encode() + b"\n")
        until = time.monotonic() + _SEND_S
        with suppress(OSError):
            while data and ready.poll(max(0.0, until - time.monotonic()) * 1000):
                data = data[os.write(pipe, data) :]
            if data:
                process.signal(signal.SIGKILL)

    def receive_line(self, timeout_s: float) -> tuple[K, str | None]:
        """Wait for a line of the present process of any role; None is its end.

        Raises
        ------
        queue.Empty : there is none in time.
        """
        until = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, until - time.monotonic())
            key, incarnation, line = self._received.get(timeout=left_s)
            if incarnation == self._incarnations[key]:
                if line is None:
                    self._ended[key] = self._processes[key].exit_code
                return key, line

    def receive(self, timeout_s: float) -> tuple[K, Message | None]:
        """Wait for a message of any role; None is its end. Other lines are kept for `failure`.

        Raises
        ------
        queue.Empty : there is none in time.
        """
        until = time.monotonic() + timeout_s
        while True:
            key, line = self.receive_line(max(0.0, until - time.monotonic()))
            if line is None:
                return key, None
            if (message := self.message_of(key, line)) is not None:
                return key, message
            if line:  # else it is that before a message beside prints
                self._processes[key].last.append(line)

    def message_of(self, key: K, line: str) -> Message | None:
        """Return the message that a line of a role is; None for others."""
        if self._roles[key].beside_prints:
            if not line.startswith(MARK):
                return None
            line = line.removeprefix(MARK)
        with suppress(ValueError):
            if isinstance(message := json.loads(line), dict):
                return message
        return None

    def next(self, what: str, timeout_s: float) -> tuple[K, Message | None]:
        """Wait for a message as `receive`; CommunicationError if there is none in time."""
        try:
            return self.receive(timeout_s)
        except queue.Empty:
            names = ", ".join(r.name for key, r in self._roles.items() if key not in self._ended)
            raise CommunicationError(
                f"{what} is stuck: no message for {timeout_s:g} s from {names}"
            ) from None

    def expect(self, what: str, timeout_s: float) -> tuple[K, Message] | None:
        """Wait for a message; None once all roles have ended without an error.

        Raises
        ------
        CommunicationError : see `failure`: a role reported an error or died; or none of them sent
            a message in time.
        """
        while len(self._ended) < len(self._roles):
            key, message = self.next(what, timeout_s)
            if self.exit_code(key):
                raise self.failure(what, {})
            if message is not None and "error" in message:
                raise self.failure(what, {key: message["error"]})
            if message is not None:
                return key, message
        return None

    def keep_line(self, key: K, line: str) -> None:
        """Keep a line that `receive_line` returned as one of a role's `last_lines`."""
        self._processes[key].last.append(line)

    def last_lines(self, key: K) -> Sequence[str]:
        """Return the last lines of the errors of a role's process, and of those that were kept."""
        return [*self._processes[key].last]

    def exit_code(self, key: K) -> int | None:
        """Return the exit code of a role whose end was received (-n: by signal n), else None."""
        return self._ended.get(key)

    def failure(self, what: str, errors: Mapping[K, str]) -> CommunicationError:
        """Return the error of an activity; a process that died is the cause of others' errors.

        Parameters
        ----------
        errors : that roles have reported so far; those of others are awaited for a moment.
        """
        reported = dict(errors)
        until = time.monotonic() + _AFTERMATH_S
        with suppress(queue.Empty):
            while len(self._ended | reported) < len(self._roles):
                key, message = self.receive(max(0.0, until - time.monotonic()))
                if message is not None and "error" in message:
                    reported.setdefault(key, message["error"])
        names = {key: role.name for key, role in self._roles.items()}
        dead = {key: code for key, code in self._ended.items() if code and key not in reported}
        causes = [
            f"{names[key]} was ended by signal {-code}"
            if code < 0
            else f"{names[key]} ended with exit code {code}"
            for key, code in dead.items()
        ]
        causes += [f"{names[key]}: {reported[key]}" for key in names if key in reported][:1]
        last = {key: "\n".join(self._processes[key].last).strip() for key in dead}
        causes += [f"last output of {names[key]}:\n{last[key]}" for key in dead if last[key]][:1]
        return CommunicationError(f"{what} failed: {'; '.join(causes)}")

    def _start(self, key: K) -> None:
        role, incarnation = self._roles[key], self._incarnations[key]
        process = RoleProcess(
            partial(role.start, role.argv, env=role.env, **(role.streams or self._streams)),
            lambda line: self._received.put((key, incarnation, line)),
            self._grace_s,
        )
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        self._processes[key] = process
