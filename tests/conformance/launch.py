"""Starts the ranks of a torch job as processes on this machine, and always ends them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with headrace and its tests on the path, and `changes`."""
    path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changes}


@contextmanager
def ranks(
    count: int, script: Path, *arguments: str, **settings: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Yield `count` processes of `script`, set up as torchrun would, with `settings`."""
    port = str(free_port())
    started = []
    try:
        for rank in range(count):
            variables = environment(
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                WORLD_SIZE=str(count),
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                **settings,
            )
            started.append(
                subprocess.Popen(
                    [sys.executable, "-W", "ignore::FutureWarning", str(script), *arguments],
                    env=variables,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def outputs(processes: Sequence[subprocess.Popen[str]], deadline_s: float) -> list[str]:
    """Wait for all; what each printed. Fails the test at the deadline, with what there is."""
    end = time.monotonic() + deadline_s
    texts = []
    for rank, process in enumerate(processes):
        try:
            texts.append(process.communicate(timeout=max(0.1, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0]
            raise AssertionError(
                f"rank {rank} did not end within {deadline_s:g} s; it said:\n{said}"
            ) from None
    return texts
