"""Python processes that begin with torch imported, for the many ranks that tests start.

An import of torch and of what DDP needs takes four seconds of processor time, more than most tests'
ranks have to do. A *source* is a process that has imported it, and forks once for each process that
is asked for. What is started and signalled is a small program (`main`), which hands its streams,
arguments and environment to the source, ends as the fork does, and whose end ends the fork.

Two sources differ in the seed of their hashes, as processes started one by one do: what depends on
the order of a set differs between the ranks of even and odd number.
"""

import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_READ_AT_START = (
    "PYTHON",
    "TORCH",
    "OMP",
    "GOMP",
    "MKL",
    "OPENBLAS",
    "KMP",
    "LD_",
    "CUDA",
    "CUBLAS",
)
"""Starts of names of variables that Python and torch read when they start."""

_AT_IMPORT = dict(os.environ)

_REQUEST_BYTES = 1 << 20
_STREAMS = 3


class Source:
    """A process that forks on request; started at the first request."""

    def __init__(self, hash_seed: int) -> None:
        self._hash_seed = hash_seed
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._address = ""

    def arguments(self, program: Sequence[str], environment: Mapping[str, str]) -> list[str] | None:
        """Return what to start instead of `python *program`; None if only that will do."""
        if self._process is None:
            self._start(environment)
        before, after = self._environment.items(), environment.items()
        if any(name.startswith(_READ_AT_START) for name, _ in before ^ after):
            return None
        return [sys.executable, "-I", "-S", __file__, self._address, *program]

    def processor_s(self) -> float:
        """Return the processor time of the source, and of its forks that have ended."""
        if self._process is None:
            return 0.0
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def _start(self, environment: Mapping[str, str]) -> None:
        self._address = f"headrace-warm-{os.getpid()}-{self._hash_seed}"
        self._environment = {
            **_AT_IMPORT,
            **{name: environment[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")},
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore::FutureWarning", __file__, "--source", self._address],
            env={**self._environment, "PYTHONHASHSEED": str(self._hash_seed)},
            stdin=subprocess.PIPE,  # its end is this process's end
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(_end, self._process)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the source of ranks ended"


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


_sources = (Source(1), Source(2))


def program_arguments(
    number: int, program: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return what to start for `python *program`, the `number`-th of several processes.

    Parameters
    ----------
    program : a script's path, or "-c" and code; then its arguments.
    environment : of the process, whole.
    """
    warm = _sources[number % len(_sources)].arguments(program, environment)
    return warm or [sys.executable, "-W", "ignore::FutureWarning", *program]


def processor_s() -> float:
    """Return the processor time of all sources and of their forks that have ended."""
    return sum(source.processor_s() for source in _sources)


# -- the program that is started ------------------------------------------------------------------


def main(address: str, program: Sequence[str]) -> None:
    """Have `program` run by a fork of the source, and end as that does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect("\0" + address)
        request = {"program": program, "folder": str(Path.cwd()), "environment": dict(os.environ)}
        data = json.dumps(request).encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _REQUEST_BYTES)
        socket.send_fds(connection, [data], range(_STREAMS))
        answer = connection.recv(64)
    code = int(answer) if answer else 1
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# -- the source -----------------------------------------------------------------------------------


def serve(address: str) -> dict[str, Any]:
    """Fork for every request, until the starter ends; returns in the forks, with the request."""
    forks: dict[int, socket.socket] = {}
    with (
        selectors.DefaultSelector() as selector,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind("\0" + address)  # a name without a file, which ends with its socket
        listener.listen(64)
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for file in (listener, woken, sys.stdin):
            selector.register(file, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for fork in forks:
                        _kill(fork)
                    os._exit(0)
                elif key.fileobj is woken:
                    woken.recv(4096)
                    _report_ends(forks, selector)
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    request = _fork(connection)
                    if isinstance(request, dict):
                        for file in (listener, woken, waker, *forks.values()):
                            file.close()
                        return request
                    forks[request] = connection
                    selector.register(connection, selectors.EVENT_READ, request)
                elif key.data in forks:  # the program that stands for it has ended
                    selector.unregister(key.fileobj)
                    _kill(key.data)


def _report_ends(forks: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            _kill_group(pid)
            with forks.pop(pid) as connection:
                with contextlib.suppress(KeyError):
                    selector.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _kill(fork: int) -> None:
    os.kill(fork, signal.SIGKILL)  # it may not lead its group yet
    _kill_group(fork)


def _kill_group(fork: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(fork, signal.SIGKILL)


def _fork(connection: socket.socket) -> int | dict[str, Any]:
    """Return the fork's process id, and in the fork the request."""
    data, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _STREAMS)
    if pid := os.fork():
        for stream in streams:
            os.close(stream)
        return pid
    connection.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.setsid()
    return json.loads(data)


def become(request: Mapping[str, Any]) -> None:
    """Run the program of a request as Python does: as `__main__`, with its arguments and path."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    name, *arguments = request["program"]
    main = ModuleType("__main__")
    if name == "-c":
        code = compile(arguments[0], "<string>", "exec")
        sys.argv[:], sys.path[0] = ["-c", *arguments[1:]], ""
    else:
        code = compile(Path(name).read_text(), name, "exec")
        sys.argv[:], sys.path[0] = [name, *arguments], str(Path(name).parent)
        main.__file__ = name
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "--source":
        # the latter two are imported by the first optimizer, DDP and capture
        import torch._dynamo
        import torch._functorch.aot_autograd
        import torch.distributed  # noqa: F401

        threads = list(Path("/proc/self/task").iterdir())
        assert len(threads) == 1, "a process of several threads cannot fork"
        become(serve(sys.argv[2]))
    else:
        main(sys.argv[1], sys.argv[2:])
