"""Processes of a design of caches: a server on a host of its own, cacher and readers on another."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.embeddings.workload import Workload
from headrace.embeddings import Synchronisation
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions, JobProcesses, RoleHost
from headrace.testbed import Testbed

PREFETCH = 4
"""Batches between a row's fetch and its use."""

DEADLINE_S = 900.0
"""Of calls: a design waits while others have their turns."""

_STATUS_S = 30.0

COMMITTED = ", committed"
"""Ends the name of a design that commits its rows and the model to a folder."""

NOT_DELAYED = ", not delayed"
"""Ends the name of a design all of whose rows are exchanged before the next batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A design of caches, and its job.

    Attributes
    ----------
    name : of the synchronisation, and `NOT_DELAYED` where nothing is exchanged while the next batch
        computes, or `COMMITTED`, or what tells it from others of the job, after a comma.
    commit_every : batches between commits, where there are any.
    lookahead : None: as many batches as the caches have room for.
    adapt_log : file of the changes where decisions follow the job; None: they do not.
    """

    name: str
    trainers: int
    workload: Workload
    lookahead: int | None
    commit_every: int = 0
    adapt_log: Path | None = None

    @property
    def synchronisation(self) -> Synchronisation:
        """The synchronisation of its caches."""
        return Synchronisation(self.name.partition(",")[0])

    def connect_task(self, processes: JobProcesses) -> dict[str, Any]:
        """Return the trainers' task to connect to its processes."""
        return {
            "connect": self.name,
            "workload": self.workload.to_fields(),
            "cacher": processes.address,
            "secret": processes.secret,
        }


@contextmanager
def started(testbed: Testbed, design: Design) -> Generator[JobProcesses]:
    """Start a design's processes, which trainers can connect to."""
    hosts = [
        RoleHost(start=partial(testbed.popen, host.name), address=host.address)
        for host in testbed.hosts
    ]
    server, cacher = hosts[design.trainers], hosts[design.trainers + 1]
    design.workload.write_clicks()
    with (
        TemporaryDirectory() as folder,
        JobProcesses(
            JobOptions(
                lookahead=design.lookahead,
                prefetch=min(PREFETCH, design.lookahead or PREFETCH),
                synchronisation=design.synchronisation,
                folder=Path(folder) if design.name.endswith(COMMITTED) else None,
                commit_every=design.commit_every,
                adapt=design.adapt_log is not None,
                adapt_log=design.adapt_log,
                deadline_s=DEADLINE_S,
            ),
            JobHosts(
                trainers=tuple(hosts[: design.trainers]),
                servers=(server,),
                readers=(cacher,),
                cacher=cacher,
            ),
        ) as processes,
    ):
        yield processes


def lookahead_now(processes: JobProcesses) -> int:
    """Return the lookahead that is in force at the cacher."""
    (cacher,) = processes.keys_of("cacher")
    processes.roles.send(cacher, {"status": True})
    while True:
        _, message = processes.roles.next("the cacher's status", _STATUS_S)
        if message is None:
            raise RuntimeError("the cacher ended without a status")
        if "status" in message:  # else it told before that it serves
            return message["status"]["lookahead"]
