"""Starts the ranks of a torch job as processes on this machine, and always ends them."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from headrace.launch import ports
from headrace.launch.roles import LINES, Role, Roles
from tests.conformance import warm
from tests.conformance.warm import environment
from tests.waiting import JOB_S


def free_port() -> int:
    return ports.free_port("127.0.0.1")


class Rank:
    """A process of a job: what it printed so far, and its exit code once that was read."""

    def __init__(self, job: "Job") -> None:
        self.job = job
        self.lines: list[str] = []
        self.returncode: int | None = None

    def has_printed(self, start: str) -> bool:
        return any(line.startswith(start) for line in self.lines)

    def has_ended(self) -> bool:
        return self.returncode is not None


class Job:
    """The processes of a job, whose output is read by `read_until`."""

    def __init__(self, roles: Roles[int], count: int) -> None:
        self._roles = roles
        self.ranks = [Rank(self) for _ in range(count)]

    def read_until(self, holds: Callable[[], bool], deadline_s: float = JOB_S) -> bool:
        """Read output until `holds`; False at the deadline."""
        end = time.monotonic() + deadline_s
        while not holds():
            try:
                rank, line = self._roles.receive_line(max(0.0, end - time.monotonic()))
            except Empty:
                return False
            if line is None:
                self.ranks[rank].returncode = self._roles.exit_code(rank)
            else:
                self.ranks[rank].lines.append(line)
        return True


def all_succeed(
    code: str, count: int, *arguments: str, deadline_s: float = JOB_S, **settings: str
) -> None:
    """Run `count` processes of `code`, each of which has to end with exit code 0."""
    variables = [environment(RANK=str(rank), **settings) for rank in range(count)]
    started = [
        subprocess.Popen(
            warm.command("-c", code, *arguments, number=rank),
            env=variables[rank],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        texts = [process.communicate(timeout=deadline_s)[0] for process in started]
        assert [process.returncode for process in started] == [0] * count, texts
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def ranks(count: int, script: Path, *arguments: str, **settings: str) -> Iterator[list[Rank]]:
    """Yield `count` processes of `script`, set up as torchrun would, with `settings`."""
    port = str(free_port())
    variables = [
        environment(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=port,
            WORLD_SIZE=str(count),
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            **settings,
        )
        for rank in range(count)
    ]
    roles = {
        rank: Role(
            name=f"rank {rank}",
            argv=warm.command(str(script), *arguments, number=rank),
            env=variables[rank],
        )
        for rank in range(count)
    }
    with Roles(roles, streams=LINES, grace_s=0.0) as started:
        yield Job(started, count).ranks


def outputs(processes: Sequence[Rank], deadline_s: float = JOB_S) -> list[str]:
    """Wait for all; what each printed. Fails the test at the deadline, with what there is."""
    processes[0].job.read_until(lambda: all(rank.has_ended() for rank in processes), deadline_s)
    texts = ["".join(f"{line}\n" for line in rank.lines) for rank in processes]
    for rank, text in zip(processes, texts, strict=True):
        number = rank.job.ranks.index(rank)
        assert rank.has_ended(), (
            f"rank {number} did not end within {deadline_s:g} s; it said:\n{text}"
        )
    return texts


def results(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what each rank's checks found, by their names, from its output ("" for nothing)."""
    found = []
    for rank, text in enumerate(texts):
        lines = [line for line in text.splitlines() if line.startswith("RESULTS ")]
        assert lines, f"rank {rank} printed:\n{text}"
        found.append(json.loads(lines[-1].removeprefix("RESULTS ")))
    return found
