"""Starting the ranks of a traced collective: processes of this machine, a testbed's, torchrun's."""

import base64
import secrets
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.collectives.run.offers import GroupConfig
from headrace.collectives.run.torchrun import join_torchrun
from headrace.collectives.settings import CollectiveSettings
from headrace.collectives.trace.agent import channels_of
from headrace.collectives.trace.job import OnProgress, TraceJob, TraceResult, trace_ranks
from headrace.errors import CommunicationError
from headrace.executor import Executor
from headrace.launch.roles import Role, Roles

if TYPE_CHECKING:
    from headrace.testbed import Testbed

_AGENT = (sys.executable, "-m", "headrace.collectives.trace.agent")
_LOOPBACK = "127.0.0.1"
_START_S = 60.0


def trace_local(job: TraceJob, on_progress: OnProgress | None = None) -> TraceResult:
    """Trace a job between processes of this machine.

    Raises
    ------
    CommunicationError : naming the rank that failed, and why.
    """
    # ranks share this machine's processors: like torchrun, one thread a rank
    roles = [
        Role(name=f"rank {rank}", argv=_AGENT, env={"OMP_NUM_THREADS": "1"})
        for rank in range(job.program.demand.ranks)
    ]
    return _trace(roles, [_LOOPBACK] * len(roles), job, on_progress)


def trace_testbed(
    testbed: "Testbed", hosts: Sequence[str], job: TraceJob, on_progress: OnProgress | None = None
) -> TraceResult:
    """Trace a job on a testbed that is up, with one process per rank on ``hosts[rank]``.

    Raises
    ------
    TestbedError : a host is not of this testbed.
    CommunicationError : naming the rank that failed, and why.
    """
    roles = [
        Role(name=f"rank {rank}", argv=_AGENT, start=partial(testbed.popen, host))
        for rank, host in enumerate(hosts)
    ]
    return _trace(roles, [testbed.host(name).address for name in hosts], job, on_progress)


def trace_torchrun(
    job_of: Callable[[int, bool], TraceJob], on_progress: OnProgress | None = None
) -> tuple[TraceJob, TraceResult | None]:
    """Trace a job between the ranks that torchrun started; every rank calls this.

    Parameters
    ----------
    job_of : makes the job, the same at all ranks, from their number and whether all share one
        host's memory.

    Returns
    -------
    tuple[TraceJob, TraceResult | None]
        The result is at rank 0, None elsewhere.

    Raises
    ------
    InputError : outside torchrun.
    CommunicationError : naming the rank that did not appear, died or hung.
    """
    settings = CollectiveSettings.from_environment()
    jobs: list[TraceJob] = []

    def executor_of(rank: int, ranks: int, config: GroupConfig) -> Executor:
        job = job_of(ranks, config.shared_memory and len(set(config.rank_host)) == 1)
        jobs[:] = [job]
        return Executor(
            rank,
            ranks,
            host=config.host,
            secret=config.secret,
            channels=channels_of(job.program),
            threads=settings.threads,
            shared_memory=config.shared_memory,
            tls=config.tls,
        )

    executor = join_torchrun("trace", settings, executor_of).executor
    [job] = jobs
    try:
        return job, trace_ranks(executor, job, on_progress)
    finally:
        executor.close()


def _trace(
    roles: Sequence[Role], listen: Sequence[str], job: TraceJob, on_progress: OnProgress | None
) -> TraceResult:
    """Start the ranks, send them their tasks and addresses, and wait for rank 0's result."""
    report = on_progress or (lambda _what, _share: None)
    common = {
        "program": base64.b64encode(job.program.to_artifact().to_bytes()).decode(),
        "secret": secrets.token_hex(16),
        "job": {name: getattr(job, name) for name in ("total_bytes", "repeats", "warm_ups")},
    }
    addresses: dict[int, str] = {}
    silence_s = _START_S
    with Roles(dict(enumerate(roles))) as ranks:
        for rank, address in enumerate(listen):
            ranks.send(rank, common | {"rank": rank, "listen": address})
        report("starting the ranks", 0.0)
        while received := ranks.expect("tracing", silence_s):
            rank, message = received
            if "address" in message:
                addresses[rank] = message["address"]
                if len(addresses) == len(roles):
                    for rank_at in addresses:
                        ranks.send(
                            rank_at, {"addresses": [addresses[r] for r in sorted(addresses)]}
                        )
                    silence_s = job.deadline_s + _START_S
            elif "progress" in message and rank == 0:
                report(*message["progress"])
            elif "found" in message:
                return TraceResult.from_json(message["found"])
    raise CommunicationError("tracing failed: all ranks ended without a result")
