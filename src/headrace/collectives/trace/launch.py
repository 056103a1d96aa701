"""Starting the ranks of a traced collective: processes of this machine, a testbed's, torchrun's."""

import base64
import queue
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.collectives.measure.launch.processes import Processes
from headrace.collectives.program import Program
from headrace.collectives.run.executor import Executor
from headrace.collectives.run.pacing import pace
from headrace.collectives.settings import CollectiveSettings
from headrace.collectives.trace.agent import channels_of
from headrace.collectives.trace.job import OnProgress, TraceJob, TraceResult, trace_ranks
from headrace.errors import CommunicationError, InputError
from headrace.settings import child_environment

if TYPE_CHECKING:
    from headrace.collectives.run.rendezvous import Rendezvous
    from headrace.testbed import Testbed

ProgramOf = Callable[[int, bool], Program]
"""Make a program, given the number of ranks and whether all share one host's memory."""

_AGENT = (sys.executable, "-m", "headrace.collectives.trace.agent")
_LOOPBACK = "127.0.0.1"
_START_S = 60.0
_AFTERMATH_S = 2.0  # wait after the first failure for the messages of other ranks
_RENDEZVOUS_S = 120.0


def trace_local(job: TraceJob, on_progress: OnProgress | None = None) -> TraceResult:
    """Trace a job between processes of this machine.

    Raises
    ------
    CommunicationError : naming the rank that failed, and why.
    """

    def start(_rank: int, **options: Any) -> "subprocess.Popen[str]":
        # ranks share this machine's processors: like torchrun, one thread a rank
        environment = child_environment({"OMP_NUM_THREADS": "1"})
        return subprocess.Popen(_AGENT, env=environment, **options)

    listen = [_LOOPBACK] * job.program.demand.ranks
    with _Ranks(start, listen) as ranks:
        return ranks.trace(job, on_progress or (lambda _what, _share: None))


def trace_testbed(
    testbed: "Testbed", hosts: Sequence[str], job: TraceJob, on_progress: OnProgress | None = None
) -> TraceResult:
    """Trace a job on a testbed that is up, with one process per rank on ``hosts[rank]``.

    Raises
    ------
    TestbedError : a host is not of this testbed.
    CommunicationError : naming the rank that failed, and why.
    """

    def start(rank: int, **options: Any) -> "subprocess.Popen[str]":
        return testbed.popen(hosts[rank], _AGENT, **options)

    with _Ranks(start, [testbed.host(name).address for name in hosts]) as ranks:
        return ranks.trace(job, on_progress or (lambda _what, _share: None))


def trace_torchrun(
    program_of: ProgramOf, total_bytes: int, repeats: int, on_progress: OnProgress | None = None
) -> tuple[TraceJob, TraceResult | None]:
    """Trace a job between the ranks that torchrun started; every rank calls this.

    Parameters
    ----------
    program_of : makes the program, the same at all ranks, from their number and whether all share
        one host's memory.

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
    bootstrap, rank, ranks = _torchrun_rendezvous(settings)
    config = bootstrap.agree(
        interface=settings.socket_interface,
        listen=settings.paced_address,
        book_digest="",
        shared_memory=settings.shared_memory,
        tls=settings.tls,
    )
    one_host = config.shared_memory and len(set(config.rank_host)) == 1
    program = program_of(ranks, one_host)
    job = TraceJob(
        program=program,
        total_bytes=total_bytes,
        repeats=repeats,
        deadline_s=settings.deadline_s,
    )
    executor = Executor(
        rank,
        ranks,
        host=config.host,
        secret=config.secret,
        channels=channels_of(program),
        threads=settings.threads,
        shared_memory=config.shared_memory,
        tls=config.tls,
    )
    try:
        addresses = bootstrap.addresses(executor.address)
        executor.connect(addresses)
        bootstrap.forget_secret()
        pace(executor, addresses, settings)
        return job, trace_ranks(executor, job, on_progress)
    finally:
        executor.close()


def _torchrun_rendezvous(settings: CollectiveSettings) -> "tuple[Rendezvous, int, int]":
    """Return the rendezvous of the ranks that torchrun started, this rank, and their number."""
    if settings.rank is None or settings.world_size is None:
        raise InputError("RANK and WORLD_SIZE are not set, needs torchrun to start the ranks")
    # torch takes seconds to import, and only its store is needed
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed.rendezvous import rendezvous

    from headrace.collectives.run.rendezvous import Rendezvous
    from headrace.collectives.run.torch.incarnation import own_part

    store, rank, ranks = next(rendezvous("env://"))
    # the store may outlive this: a job traced before left its keys there
    part = own_part(PrefixStore("headrace/trace", store), rank, range(ranks), _RENDEZVOUS_S)
    return Rendezvous(part, rank, ranks, _RENDEZVOUS_S), rank, ranks


class _Ranks(Processes):
    """The ranks' processes; `listen` are the addresses that they listen on."""

    def __init__(self, start: Any, listen: Sequence[str]) -> None:
        super().__init__(start, len(listen))
        self._listen_on = listen
        self._all_ranks = range(len(listen))

    def trace(self, job: TraceJob, on_progress: OnProgress) -> TraceResult:
        """Send all ranks their tasks and addresses, and wait for rank 0's result."""
        program = base64.b64encode(job.program.to_artifact().to_bytes()).decode()
        common = {
            "program": program,
            "secret": secrets.token_hex(16),
            "job": {
                "total_bytes": job.total_bytes,
                "repeats": job.repeats,
                "warm_ups": job.warm_ups,
            },
        }
        tasks = [common | {"rank": r, "listen": self._listen_on[r]} for r in self._all_ranks]
        self.send(self._all_ranks, tasks)
        on_progress("starting the ranks", 0.0)
        addresses: dict[int, str] = {}
        silence_s = _START_S
        while True:
            rank, message = self._next(silence_s)
            if "address" in message:
                addresses[rank] = message["address"]
                if len(addresses) == len(self._all_ranks):
                    call = {"addresses": [addresses[r] for r in self._all_ranks]}
                    self.send(self._all_ranks, [call] * len(self._all_ranks))
                    silence_s = job.deadline_s + _START_S
            elif "progress" in message and rank == 0:
                on_progress(*message["progress"])
            elif "found" in message:
                return TraceResult.from_json(message["found"])

    def _next(self, timeout_s: float) -> tuple[int, dict[str, Any]]:
        until = time.monotonic() + timeout_s
        while (left_s := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                rank, message = self.receive(left_s)
                if message is None and self.exit_code(rank) == 0:
                    continue  # it is done, and rank 0 sends the result
                if message is None or "error" in message:
                    raise self._failure({rank: message})
                return rank, message
        raise CommunicationError(f"no message from the ranks for {timeout_s:g} s: tracing is stuck")

    def _failure(self, ends: dict[int, dict[str, Any] | None]) -> CommunicationError:
        """Return the cause: a process that died explains the errors of the others."""
        until = time.monotonic() + _AFTERMATH_S
        while len(ends) < len(self._all_ranks) and (left_s := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                rank, message = self.receive(left_s)
                if message is None or "error" in message:
                    ends.setdefault(rank, message)
        dead = [
            f"rank {rank} ended with exit code {code}" if code > 0 else f"rank {rank} was killed"
            for rank, message in sorted(ends.items())
            if message is None and (code := self.exit_code(rank))
        ]
        errors = [f"rank {r}: {m['error']}" for r, m in sorted(ends.items()) if m is not None]
        return CommunicationError("tracing failed: " + "; ".join([*dead, *errors[:1]]))
