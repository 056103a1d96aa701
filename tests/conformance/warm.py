"""Python processes that begin with torch imported, for the many ranks that tests start.

An import of torch and of what DDP needs takes four seconds of processor time, more than most tests'
ranks have to do. A *source* is a process that has imported it, and forks once for each process that
is asked for. What is started and signalled is a small program (`main`), which hands its streams,
arguments, environment and namespaces to the source, ends as the fork does, and whose end ends the
fork. Where its environment has other variables that Python or torch read when they start, it is
replaced by a Python of its own.

Two sources differ in the seed of their hashes, as processes started one by one do: what depends on
the order of a set differs between the ranks of even and odd number.

Where several processes share the tests, their sources are forks of two that were started for all.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

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

_READ_LATER = (
    "PYTHONHASHSEED",
    "PYTHONUNBUFFERED",
    "TORCHELASTIC_",
    "TORCH_NCCL_",
    "KMP_DUPLICATE_LIB_OK",  # sklearn sets these two when it is imported, for an OpenMP
    "KMP_INIT_AT_FORK",  # that is not torch's
    "TORCHINDUCTOR_CACHE_DIR",
)
"""Starts of names of those that are read later, that `become` follows, or that a source sets."""

_AT_IMPORT = dict(os.environ)

_REQUEST_BYTES = 1 << 20
_START_S = 120.0
_STREAMS = 3
_NAMESPACES = ("net", "mnt")
_REFUSED = b"other variables"


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with headrace and its tests on the path, and `changes`.

    Variables that Python and torch read when they start are as this process had them at its start:
    libraries set some for themselves, as inductor does for its cache and sklearn for OpenMP.
    """
    at_start = {n: value for n, value in _AT_IMPORT.items() if n.startswith(_READ_AT_START)}
    later = {n: value for n, value in os.environ.items() if not n.startswith(_READ_AT_START)}
    return {**later, **at_start, **_added(_AT_IMPORT), **changes}


def _added(variables: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join([variables.get("PYTHONPATH", ""), str(ROOT / "src"), str(ROOT)])
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


class Source:
    """A process that forks on request; started when its address is first asked for.

    Parameters
    ----------
    hash_seed : of its forks.
    parent : the address of a source that forks it; otherwise it imports torch itself.
    """

    def __init__(self, hash_seed: int, parent: str | None = None) -> None:
        self._hash_seed = hash_seed
        self._parent = parent
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._pid = 0

    def address(self) -> str:
        """Return the name of the socket at which it takes requests, once it takes them."""
        self.start()
        if not self._pid:
            assert self._process is not None
            assert self._process.stdout is not None
            answer = self._process.stdout.readline().split()
            assert answer[:1] == [b"ready"], "the source of ranks ended"
            self._pid = int(answer[1])
        return self._address

    def processor_s(self) -> float:
        """Return the processor time of the source, and of its forks that have ended."""
        if not self._pid:
            return 0.0
        words = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def start(self) -> str:
        """Start it, unless it was; return its address, at which it takes requests some time on."""
        if self._process is not None:
            return self._address
        folder = tempfile.mkdtemp(prefix="headrace-warm-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._address = f"{folder}/socket"  # a file's name, which is the same in all namespaces
        program = [__file__, "--source", self._address]
        if self._parent is None:
            argv = [sys.executable, "-W", "ignore::FutureWarning", *program]
        else:
            argv = _forked(self._parent, program)
        self._process = subprocess.Popen(
            argv,
            env={**_AT_IMPORT, **_added(_AT_IMPORT), "PYTHONHASHSEED": str(self._hash_seed)},
            stdin=subprocess.PIPE,  # its end is this process's end
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(_end, self._process)
        return self._address


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


_sources = (Source(1), Source(2))


def start() -> list[str]:
    """Start the sources of this process; return their addresses."""
    return [source.start() for source in _sources]


def share(addresses: Sequence[str]) -> None:
    """Have the sources of this process, not started yet, forked by the sources at `addresses`."""
    global _sources
    first, second = addresses
    _sources = (Source(1, first), Source(2, second))


def _forked(addresses: str, program: Sequence[str]) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, addresses, *program]


def command(*program: str, number: int | None = None) -> list[str]:
    """Return what to start in place of ``python *program`` in an `environment`.

    Parameters
    ----------
    program : a script's path, "-c" and code, or "-m" and a module; then its arguments.
    number : of the process among several; by default the variable RANK of its environment.
    """
    sources = _sources if number is None else [_sources[number % len(_sources)]]
    return _forked(",".join(source.address() for source in sources), program)


def processor_s() -> float:
    """Return the processor time of all sources and of their forks that have ended."""
    return sum(source.processor_s() for source in _sources)


# -- the program that is started ------------------------------------------------------------------


def main(addresses: Sequence[str], program: Sequence[str]) -> None:
    """Have `program` run by a fork of a source, and end as that does."""
    address = addresses[int(os.environ.get("RANK", "0")) % len(addresses)]
    deadline = time.monotonic() + _START_S
    while not Path(address).exists():
        if time.monotonic() > deadline:
            sys.exit(f"the source of ranks did not start within {_START_S:g} s")
        time.sleep(0.05)
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.connect(address)
        request = {"program": program, "folder": str(Path.cwd()), "environment": dict(os.environ)}
        data = json.dumps(request).encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _REQUEST_BYTES)
        namespaces = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
        socket.send_fds(connection, [data], [*range(_STREAMS), *namespaces])
        answer = connection.recv(64)
    if answer == _REFUSED:
        os.execv(sys.executable, [sys.executable, "-W", "ignore::FutureWarning", *program])
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
        listener.bind(f"{address}-bound")
        listener.listen(64)
        Path(f"{address}-bound").rename(address)  # from now on it can be connected to
        woken, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for file in (listener, woken, sys.stdin):
            selector.register(file, selectors.EVENT_READ)
        print("ready", os.getpid(), flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for fork in forks:
                        _kill(fork)
                    shutil.rmtree(Path(address).parent, ignore_errors=True)
                    os._exit(0)
                elif key.fileobj is woken:
                    woken.recv(4096)
                    _report_ends(forks, selector)
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    request = _fork(connection)
                    if request is None:
                        connection.close()
                        continue
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


def _fork(connection: socket.socket) -> int | dict[str, Any] | None:
    """Return the fork's process id, in the fork the request, and None where it is refused."""
    data, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _STREAMS + len(_NAMESPACES))
    request: dict[str, Any] = json.loads(data)
    refused = _differs_at_start(request["environment"])
    pid = 0 if refused else os.fork()
    if refused or pid:
        for file in files:
            os.close(file)
        if refused:
            connection.send(_REFUSED)
        return pid or None
    connection.close()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(files[:_STREAMS]):
        os.dup2(stream, number)
    for name, namespace in zip(_NAMESPACES, files[_STREAMS:], strict=True):
        _enter(name, namespace)
    for file in files:
        os.close(file)
    os.setsid()
    return request


def _differs_at_start(environment: Mapping[str, str]) -> bool:
    """Return whether a variable that Python or torch has read by now differs."""
    return any(
        name.startswith(_READ_AT_START) and not name.startswith(_READ_LATER)
        for name, _ in environment.items() ^ _AT_IMPORT.items()
    )


def _enter(name: str, namespace: int) -> None:
    if os.fstat(namespace).st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, 0):
            raise OSError(ctypes.get_errno(), f"the fork cannot enter the namespace '{name}'")


def become(request: Mapping[str, Any]) -> None:
    """Run the program of a request as Python does: as `__main__`, with its arguments and path."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)
    name, *arguments = request["program"]
    if name == "-m":
        module, *arguments = arguments
        sys.argv[:], sys.path[0] = [module, *arguments], request["folder"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
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
        # no rank compiles for a GPU, and triton's types would be reported as leaked at every end
        sys.modules["triton"] = None  # pyright: ignore[reportArgumentType]
        logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)  # it misses triton
        # the latter two are imported by the first optimizer, DDP and capture
        import torch._dynamo
        import torch._functorch.aot_autograd
        import torch.distributed  # noqa: F401

        gc.collect()
        gc.freeze()  # what is imported is passed over by collections, as one at each fork's end
        threads = list(Path("/proc/self/task").iterdir())
        assert len(threads) == 1, "a process of several threads cannot fork"
        become(serve(sys.argv[2]))
    else:
        main(sys.argv[1].split(","), sys.argv[2:])
