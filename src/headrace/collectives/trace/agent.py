"""One rank of a traced collective as a process: ``python -m headrace.collectives.trace.agent``.

In: the task; then the addresses of all ranks. Out: its own address, progress and the result (from
rank 0), or an error (see `headrace.launch`).
"""

import base64

from headrace.collectives.program import Program
from headrace.collectives.settings import CollectiveSettings
from headrace.collectives.trace.job import TraceJob, trace_ranks
from headrace.executor import Executor
from headrace.executor.pacing import pace
from headrace.launch.worker import Receive, Send, run_worker


def trace_as_rank(receive: Receive, send: Send) -> None:
    """Run one rank of the job that the parent describes."""
    settings = CollectiveSettings.from_environment()
    task = receive()
    program = Program.from_bytes(base64.b64decode(task.pop("program")))
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
        send(address=executor.address)
        addresses = receive()["addresses"]
        executor.connect(addresses)
        pace(executor, addresses, settings)
        traced = trace_ranks(executor, job, lambda what, share: send(progress=[what, share]))
        if traced is not None:
            send(found=traced.to_json())
    finally:
        executor.close()


def channels_of(program: Program) -> int:
    """Return the number of connections per pair of ranks that a program needs."""
    return int(program.lanes["channel"].max(initial=0)) + 1


if __name__ == "__main__":
    run_worker(trace_as_rank)
