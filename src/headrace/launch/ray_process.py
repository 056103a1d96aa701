"""A process on a node of Ray, as `headrace.launch.roles.Roles` watches one of this machine."""

import itertools
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, Any

from headrace.errors import CommunicationError
from headrace.forks import ForkMark
from headrace.launch.node_processes import END, ERRORS, OUTPUT, Command
from headrace.launch.ray_names import RayError, ray
from headrace.settings import child_environment

_ASK_S = 2.0
_POLL_S = 0.5
_READ_BYTES = 1 << 16
_numbers = itertools.count()


class RayCalls:
    """Calls of actors, from any thread, until the connection to the cluster is closed.

    Attributes
    ----------
    mark : of the process that has the connection.
    """

    def __init__(self) -> None:
        self.mark = ForkMark()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def check(self) -> None:
        """Raise an error in a forked child.

        Raises
        ------
        ForkError : the connection is its parent's.
        """
        self.mark.check("the connection to the Ray cluster")

    def answer(self, reference: Any) -> Any:
        """Return the answer of a call.

        Raises
        ------
        RayError : the actor or its node is lost.
        CommunicationError : the connection was closed.
        """
        while not self._closed.is_set():
            if ray.wait([reference], timeout=_POLL_S)[0]:
                return ray.get(reference)
        raise CommunicationError("the connection to the Ray cluster was closed")

    def in_thread(self, target: Any) -> None:
        """Run a function that calls actors in a thread, which ends after `close`."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End the calls, and the threads that wait for them."""
        self._closed.set()
        for thread in self._threads:
            thread.join(4 * _POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHost:
    """Room for a process on a node of a Ray cluster: an actor that starts and watches it.

    Attributes
    ----------
    address : of the node.
    gpus : the numbers of the GPUs there that are the process's.
    env : changes to the environment of the node (None removes a variable).
    """

    actor: Any = field(repr=False)
    calls: RayCalls = field(repr=False)
    address: str
    gpus: tuple[str, ...] = ()
    env: Mapping[str, str | None] = field(default_factory=dict)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **options: Any
    ) -> "RayProcess":
        """Start `argv` there in this process's folder, with the environment of the node.

        OMP_NUM_THREADS alone is this process's, as Ray sets it to the processors that it counts.

        Parameters
        ----------
        env : changes to the environment (None removes a variable).
        options : `stdin`, `stdout` and `stderr`, as for `subprocess.Popen`; `stdin` and `stdout`
            have to be pipes, or DEVNULL. Others are ignored: it is text, in a session of its own.
        """
        self.calls.check()
        threads = child_environment().get("OMP_NUM_THREADS")
        command = Command(
            argv=list(argv),
            folder=str(Path.cwd()),
            env={"OMP_NUM_THREADS": threads, **self.env, **(env or {})},
            streams={name: options.get(name, DEVNULL) for name in ("stdin", "stdout", "stderr")},
        )
        return RayProcess(self, command)

    def free_port(self) -> int:
        """Return a port of the node's address that nothing listens at."""
        self.calls.check()
        return self.calls.answer(self.actor.free_port.remote(self.address))


class RayProcess:
    """A process that an actor watches; see `headrace.launch.process.ProcessGroup`.

    Where the actor or its node is lost, it counts as killed, and its last line says so.
    """

    def __init__(self, place: RayHost, command: Command) -> None:
        self._place = place
        self._number = next(_numbers)
        self._started = threading.Event()
        self._ended = threading.Event()
        self._sinks: dict[str, IO[str]] = {}
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        with ExitStack() as opened:
            self.stdout = self._pipe(OUTPUT, command, opened)
            self.stderr = self._pipe(ERRORS, command, opened)
            if command.streams["stdin"] == PIPE:
                source, sink = os.pipe()
                self.stdin = os.fdopen(sink, "wb", buffering=0)
                place.calls.in_thread(lambda: self._feed(source))
            opened.pop_all()
        place.calls.in_thread(lambda: self._fetch(command))

    def signal(self, number: int) -> bool:
        """Send a signal to the group, without waiting; False if it is empty."""
        if self._ended.is_set():
            return False
        self._place.calls.check()
        with suppress(RayError):
            self._place.actor.signal.remote(self._number, int(number))
        return True

    def await_end(self) -> None:
        """Wait for the end of the process, and of its group."""
        self._ended.wait()

    def wait(self) -> int:
        """Wait for the end of the process; return its exit code."""
        self._ended.wait()
        return self.returncode or 0

    def _pipe(self, name: str, command: Command, opened: ExitStack) -> IO[str] | None:
        """Return the file that the lines of a stream are read from, if it is a pipe."""
        if command.streams[name] != PIPE:
            return None
        source, sink = os.pipe()
        # the node's lines have any characters, this machine's locale need not
        file = os.fdopen(sink, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        self._sinks[name] = opened.enter_context(file)
        return opened.enter_context(os.fdopen(source, encoding="utf-8"))

    def _feed(self, source: int) -> None:
        """Pass standard input on."""
        actor, calls = self._place.actor, self._place.calls
        with os.fdopen(source, "rb", buffering=0) as stream, suppress(RayError, CommunicationError):
            self._started.wait()
            while text := stream.read(_READ_BYTES):
                calls.answer(actor.write.remote(self._number, text))
            calls.answer(actor.write.remote(self._number, b""))

    def _fetch(self, command: Command) -> None:
        """Start the process, and pass its output on until it ends."""
        actor, calls = self._place.actor, self._place.calls
        code: int | None = None
        try:
            calls.answer(actor.start.remote(self._number, command))
            self._started.set()
            while code is None:
                for name, value in calls.answer(actor.events.remote(self._number, _ASK_S)):
                    if name == END:
                        code = int(value)
                    else:
                        self._tell(name, str(value))
        except (RayError, CommunicationError) as error:
            reason = str(error).strip().partition("\n")[0]
            name = ERRORS if command.streams[ERRORS] != STDOUT else OUTPUT
            self._tell(name, f"lost on node {self._place.address} of Ray: {reason}")
        finally:
            self._started.set()
            for sink in self._sinks.values():
                sink.close()
            self.returncode = -signal.SIGKILL if code is None else code
            self._ended.set()

    def _tell(self, stream: str, line: str) -> None:
        if stream in self._sinks:
            self._sinks[stream].write(line + "\n")
