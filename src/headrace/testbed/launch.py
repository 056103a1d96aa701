"""A job on a testbed: one process per host, with the environment that torch.distributed reads."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from headrace.settings import child_environment
from headrace.testbed.testbed import Testbed

OnLine = Callable[[int, str], None]
"""Called with a rank and a line it wrote (without the line's end), from one thread per rank."""

_POLL_S = 0.02


def rank_environment(testbed: Testbed, order: Sequence[int], rank: int) -> dict[str, str]:
    """Return RANK, WORLD_SIZE and so on for a rank; `order[rank]` is the index of its host.

    The hosts share this machine's processors: like torchrun, one thread a rank by default.
    """
    threads = {} if "OMP_NUM_THREADS" in child_environment() else {"OMP_NUM_THREADS": "1"}
    return {
        **threads,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(order)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": testbed.hosts[order[0]].address,
        "MASTER_PORT": str(testbed.record.master_port),
    }


def run_ranks(
    testbed: Testbed,
    argv: Sequence[str],
    order: Sequence[int],
    *,
    env: Mapping[str, str | None] | None = None,
    on_line: OnLine | None = None,
    timeout_s: float | None = None,
    grace_s: float = 2.0,
) -> list[int]:
    """Run `argv` as one process per rank and return their exit codes (below 0: the signal).

    When a rank fails, or `timeout_s` passes, the others are ended: SIGTERM, then SIGKILL.

    Parameters
    ----------
    order : the host index of every rank; see `TestbedSpec.order`.
    env : changes to every rank's environment.
    on_line : receives the ranks' output line by line; without it they write to this process's.
    """
    pipe = None if on_line is None else subprocess.PIPE
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for rank, index in enumerate(order):
            process = testbed.popen(
                testbed.hosts[index].name,
                argv,
                env={
                    "PYTHONUNBUFFERED": "1",
                    **rank_environment(testbed, order, rank),
                    **(env or {}),
                },
                stdout=pipe,
                stderr=None if on_line is None else subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                # a process group of its own, so that children of a rank end with it
                start_new_session=True,
            )
            processes.append(process)
            if on_line is not None and process.stdout is not None:
                reader = threading.Thread(
                    target=_read, args=(rank, process.stdout, on_line), daemon=True
                )
                reader.start()
                readers.append(reader)
        _wait(processes, timeout_s)
    finally:
        _end(processes, grace_s)
        until = time.monotonic() + grace_s
        for reader in readers:
            # a process that left its rank's group may still hold the pipe open; `down` ends it
            reader.join(max(0.0, until - time.monotonic()))
    return [process.returncode for process in processes]


def _read(rank: int, lines: IO[str], on_line: OnLine) -> None:
    with suppress(ValueError), lines:
        for line in lines:
            on_line(rank, line.rstrip("\n"))


def _wait(processes: Sequence["subprocess.Popen[str]"], timeout_s: float | None) -> None:
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            return
        if until is not None and time.monotonic() > until:
            return
        time.sleep(_POLL_S)


def _end(processes: Sequence["subprocess.Popen[str]"], grace_s: float) -> None:
    failed = any(process.poll() != 0 for process in processes)
    for process in processes if failed else ():
        _signal_group(process, signal.SIGTERM)
    until = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: "subprocess.Popen[str]", sent: signal.Signals) -> None:
    with suppress(OSError):  # the group is empty
        os.killpg(process.pid, sent)
