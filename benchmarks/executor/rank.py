"""One rank of one rival, which executes the benchmark's commands: ``python -m ...rank TASK``.

The task is JSON: {"rival", "ranks", "rank", "host", "socket"} (Open MPI's ranks find their own
"rank"). The process connects to the Unix socket and to its peers, and then waits for commands,
blocked in a read: while other rivals are timed it takes no processor time. A command is a dict
with a "do"; the answer is a dict, with an "error" if it failed.
"""

import json
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.executor.backends import (
    NATIVE,
    Backend,
    Messenger,
    Native,
    OpenMpi,
    Sockets,
    Torch,
)
from benchmarks.executor.patterns import PERIOD, Buffers, write
from headrace.collectives.demand import Collective

LEAD_S = 0.001
"""Time from the agreement on a common start to that start."""

Command = dict[str, Any]


def start_together(backend: Messenger) -> float:
    """Sleep to a moment that all ranks agree upon, and return it.

    Ranks leave a barrier at different times.
    """
    moment = backend.latest(time.monotonic() + LEAD_S)
    while (left_s := moment - time.monotonic()) > 0:
        time.sleep(left_s)
    return moment


def timed(calls: list[Callable[[], object]]) -> list[float]:
    """Run the calls back to back; returns the time of each in us."""
    times: list[float] = []
    for call in calls:
        begin = time.monotonic()
        call()
        times.append((time.monotonic() - begin) * 1e6)
    return times


def time_collective(backend: Backend, command: Command) -> Command:
    """Time bursts of a collective; every call has buffers of its own and is checked.

    The command has "collective", "bytes", "pool" (calls a burst), "bursts" and "warm_up" (bursts
    before them). The answer's "us" are the calls', burst after burst.
    """
    collective = Collective(command["collective"])
    rank, ranks = backend.rank, backend.ranks
    in_place = collective in backend.in_place
    pool = [
        Buffers.make(
            collective, command["bytes"], rank, ranks, in_place=in_place, empty=backend.empty
        )
        for _ in range(command["pool"])
    ]
    calls = [backend.prepare(buffers) for buffers in pool]
    times: list[float] = []
    for burst in range(-command["warm_up"], command["bursts"]):
        for buffers in pool:
            buffers.fill(rank, ranks)
        start_together(backend)
        taken = timed(calls)
        backend.latest(0.0)  # a rank that is done must not take the processor from the others
        for buffers in pool:
            buffers.check(rank, ranks)
        if burst >= 0:
            times += taken
    return {"us": times}


def time_reduce(backend: Backend, command: Command) -> Command:
    """Time reductions of "bytes" of fp8 to rank 0, "calls" of them after one to warm up.

    Every element is 1 or 2 at all ranks, of which there are four: the sum is four times as much,
    whose exponent is larger by two.
    """
    assert isinstance(backend, Native)
    assert backend.ranks == 4
    one, two, twice = 0x38, 0x40, 0x08  # the exponent begins at the fourth bit
    given = np.full(command["bytes"], one, np.uint8)
    given[::PERIOD] = two
    data = np.empty_like(given)
    call = backend.reduce_fp8(data)
    times: list[float] = []
    for _ in range(command["calls"] + 1):
        data[:] = given
        start_together(backend)
        times += timed([call])
        backend.latest(0.0)
        if backend.rank == 0 and not np.array_equal(data, given + 2 * twice):
            raise RuntimeError("the sum is wrong")
    return {"us": times[1:]}


def time_callbacks(backend: Torch, command: Command) -> Command:
    """Time "pairs" of a wait for a call's future, and for a callback of it; both in us."""
    calls = [backend.chained(False), backend.chained(True)]
    start_together(backend)
    timed(calls * 200)  # to warm up
    times = timed(calls * command["pairs"])
    return {"plain_us": times[::2], "chained_us": times[1::2]}


def time_copy(backend: Messenger, command: Command) -> Command:
    """Time a plain copy of "bytes" by all ranks at once, "calls" times after one to warm up."""
    source = np.ones(command["bytes"] // 4, np.float32)
    target = np.zeros_like(source)
    times: list[float] = []
    for _ in range(command["calls"] + 1):
        start_together(backend)
        times += timed([lambda: np.copyto(target, source)])
    if not np.array_equal(source, target):
        raise RuntimeError("the copy differs")
    return {"us": times[1:]}


def measure_cpu(backend: Backend, command: Command) -> Command:
    """Return the processor time of this process, all threads, for "calls" allreduces of "bytes".

    They work on each other's results, which stay exact: powers of the number of ranks.
    """
    rank, ranks, calls = backend.rank, backend.ranks, command["calls"]
    buffers = Buffers.make(Collective.ALLREDUCE, command["bytes"], rank, ranks, in_place=True)
    call = backend.prepare(buffers)
    buffers.fill(rank, ranks)
    call()  # to warm up
    buffers.check(rank, ranks)
    buffers.fill(rank, ranks)
    start_together(backend)
    begin, before = time.monotonic(), _cpu_s()
    for _ in range(calls):
        call()
    backend.latest(0.0)
    spent, took = _cpu_s() - before, time.monotonic() - begin
    buffers.check(rank, ranks, times=calls)
    return {"cpu_s": spent, "wall_s": took}


def time_messages(backend: Messenger, command: Command) -> Command:
    """Send bursts of "pool" messages of "bytes" from rank 0 to rank 1.

    The answer's "us" are from the common start of a burst to its last message's end.
    """
    sender = backend.rank == 0
    pool = [np.full(command["bytes"] // 4, -1.0, np.float32) for _ in range(command["pool"])]
    if sender:
        calls = [backend.send(data, 1) for data in pool]
    else:
        calls = [backend.receive(data, 0) for data in pool]
    times: list[float] = []
    for burst in range(-command["warm_up"], command["bursts"]):
        for index, data in enumerate(pool):
            if sender:
                write(data, [(1 + index + burst % 8, 1)])
            else:
                data[:] = -1.0
        start = start_together(backend)
        for call in calls:
            call()
        taken = (time.monotonic() - start) * 1e6
        if not sender:
            _check_messages(pool, burst)
        if burst >= 0:
            times.append(taken)
    return {"us": times}


def _check_messages(pool: list[Any], burst: int) -> None:
    for index, data in enumerate(pool):
        expected = np.empty_like(data)
        write(expected, [(1 + index + burst % 8, 1)])
        if not np.array_equal(data, expected):
            raise RuntimeError(f"message {index} of a burst is wrong")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


COMMANDS: dict[str, Callable[[Any, Command], Command]] = {  # no rival supports all
    "time": time_collective,
    "copy": time_copy,
    "reduce": time_reduce,
    "callbacks": time_callbacks,
    "cpu": measure_cpu,
    "messages": time_messages,
}


def serve(backend: Messenger, conductor: "Connection[Any, Any]") -> None:
    """Execute commands until "stop", or the end of the connection."""
    while True:
        try:
            command: Command = conductor.recv()
        except EOFError:
            return
        if command["do"] == "stop":
            return
        try:
            answer = COMMANDS[command["do"]](backend, command)
        except Exception:  # the benchmark ends the section with it
            answer = {"error": traceback.format_exc()}
        conductor.send(answer)


def main() -> None:
    """Join the rival's group and execute commands."""
    task = json.loads(sys.argv[1])
    backend: Messenger | None = OpenMpi() if task["rival"] == "openmpi" else None
    rank = task["rank"] if backend is None else backend.rank
    link = socket.socket(socket.AF_UNIX)
    link.connect(task["socket"])
    conductor: Connection[Any, Any] = Connection(link.detach())
    conductor.send({"rank": rank})

    def exchange(text: str) -> list[str]:
        conductor.send({"exchange": text})
        return conductor.recv()

    if task["rival"] in NATIVE:
        backend = NATIVE[task["rival"]](rank, task["ranks"], task["host"], exchange)
    elif task["rival"] == "sockets":
        backend = Sockets(rank, task["host"], exchange)
    elif backend is None:
        backend = Torch(task["rival"])
    start_together(backend)
    conductor.send({"ready": True})
    serve(backend, conductor)
    backend.close()


if __name__ == "__main__":
    main()
