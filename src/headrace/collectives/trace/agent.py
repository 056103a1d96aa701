"""One rank of a traced collective as a process: ``python -m headrace.collectives.trace.agent``.

It exchanges lines of JSON with its parent process (`launch`). In: the task; then the addresses of
all ranks. Out: its own address, progress and the result (from rank 0), or an error.
"""

import base64
import json
import sys
from collections.abc import Callable
from typing import TextIO

import headrace.artifact as artifact_io
from headrace.collectives.measure.launch.processes import run_worker
from headrace.collectives.program import Program
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.pacing import pace
from headrace.collectives.settings import CollectiveSettings
from headrace.collectives.trace.job import TraceJob, trace_ranks
from headrace.errors import CommunicationError


def trace_as_rank(lines: TextIO, emit: Callable[..., None]) -> None:
    """Run one rank of the job that `lines` describe; `emit` writes a message to the parent."""
    settings = CollectiveSettings.from_environment()
    task = json.loads(lines.readline())
    raw = base64.b64decode(task.pop("program"))
    program = Program.from_artifact(artifact_io.from_bytes(raw, kind="program"))
    job = TraceJob(program=program, deadline_s=settings.deadline_s, **task["job"])
    executor = Executor(
        task["rank"],
        program.demand.ranks,
        host=task["listen"],
        secret=task["secret"],
        channels=channels_of(program),
        threads=settings.threads,
        shared_memory=settings.shared_memory,
        tls=settings.tls,
    )
    try:
        emit(address=executor.address)
        addresses = _addresses(lines)
        executor.connect(addresses)
        pace(executor, addresses, settings)
        found = trace_ranks(executor, job, lambda what, share: emit(progress=[what, share]))
        if found is not None:
            emit(found=found.to_json())
    finally:
        executor.close()


def channels_of(program: Program) -> int:
    """Return the number of connections per pair of ranks that a program needs."""
    return int(program.lanes["channel"].max(initial=0)) + 1


def _addresses(lines: TextIO) -> list[str]:
    line = lines.readline()
    if not line:
        raise CommunicationError("the process that started the tracing is gone")
    return json.loads(line)["addresses"]


if __name__ == "__main__":
    try:
        run_worker(sys.stdin, sys.stdout, trace_as_rank)
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(130)  # the parent reads no more
