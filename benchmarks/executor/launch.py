"""Starting every rank of a rival, and sending them commands."""

import importlib.util
import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import Empty
from typing import Any

from benchmarks.harness import Report
from benchmarks.jobs import WHERE
from headrace.launch.roles import INHERITED, Role, Roles
from headrace.testbed import Testbed, rank_roles

OPENMPI = "openmpi"
INTERFACES = {
    "native": "headrace",
    "tls": "headrace, over TLS",
    "headrace": "torch",
    "gloo": "torch",
    OPENMPI: "mpi4py",
    "iperf3": "one stream",
    "sockets": "send and recv",
}
"""Interface through which every rival is called; "native" is headrace without torch."""

MPIRUN = Path(sys.executable).parent / "mpirun"

# Ranks outnumber processors, so they yield while they wait; on one host, shared memory is the only
# transport.
MPI_OPTIONS = (
    "--allow-run-as-root",
    "--oversubscribe",
    *("--bind-to", "none"),
    *("--mca", "mpi_yield_when_idle", "1"),
    *("--mca", "pml", "ob1"),
    *("--mca", "btl", "self,sm"),
)

ENVIRONMENT = {**WHERE, "OMP_NUM_THREADS": "1", "HEADRACE_MEASURE": "off"}
"""Environment of all ranks: one thread each, as under torchrun, and no survey of the network."""

_START_S = 90.0
_ANSWER_S = 300.0
_STOP_S = 10.0
_LOOPBACK = "127.0.0.1"

Link = Connection
"""To one rank."""


def openmpi_missing() -> str | None:
    """Return why Open MPI cannot be run, or None."""
    if MPIRUN.exists() and importlib.util.find_spec("mpi4py") is not None:
        return None
    return (
        f"Open MPI and mpi4py are not installed beside {sys.executable}: "
        "make bench CLAIM=executor does it, or pip install -r requirements/bench-executor.txt"
    )


def rivals_here(report: Report, wanted: Sequence[str]) -> list[str]:
    """Return the rivals that can be run; a note names missing ones and how to install them."""
    missing = openmpi_missing()
    if missing is None or OPENMPI not in wanted:
        return list(wanted)
    report.note(missing)
    return [rival for rival in wanted if rival != OPENMPI]


def rival_columns(rival: str) -> dict[str, str]:
    """Return what tables say of a rival: whose it is, and the interface."""
    return {
        "rival": "headrace" if rival in ("native", "tls") else rival,
        "interface": INTERFACES[rival],
    }


class Group:
    """The processes of one rival, one a rank, which wait blocked until they are asked."""

    def __init__(self, rival: str, links: "Sequence[Link]") -> None:
        self.rival = rival
        self._links = links

    def ask(self, do: str, **details: Any) -> list[dict[str, Any]]:
        """Have all ranks do something, and return their answers by rank.

        Raises
        ------
        RuntimeError : a rank failed, ended, or did not answer in time.
        """
        for link in self._links:
            with suppress(OSError):  # of a rank that ended: its answer's absence is noticed
                link.send({"do": do, **details})
        return self._answers(_ANSWER_S)

    def meet(self) -> None:
        """Let the ranks tell each other their addresses, if they need to, until all are ready."""
        told = self._answers(_START_S)
        if "exchange" in told[0]:
            for link in self._links:
                link.send([each["exchange"] for each in told])
            self._answers(_START_S)

    def stop(self) -> None:
        """Let the processes end by themselves."""
        for link in self._links:
            with suppress(OSError):
                link.send({"do": "stop"})
            link.close()

    def _answers(self, limit_s: float) -> list[dict[str, Any]]:
        end = time.monotonic() + limit_s
        answers: dict[int, dict[str, Any]] = {}
        pending = {link: rank for rank, link in enumerate(self._links)}
        while pending:
            ready = wait(list(pending), max(0.0, end - time.monotonic()))
            if not ready:
                ranks = sorted(pending.values())
                raise RuntimeError(f"{self.rival}: ranks {ranks} did not answer in {limit_s:.0f} s")
            for link in ready:
                assert isinstance(link, Connection)
                rank = pending.pop(link)
                answers[rank] = self._received(rank, link)
        return [answers[rank] for rank in sorted(answers)]

    def _received(self, rank: int, link: "Link") -> dict[str, Any]:
        try:
            answer = link.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"{self.rival}: rank {rank} ended") from None
        if "error" in answer:
            raise RuntimeError(f"{self.rival}: rank {rank} failed:\n{answer['error']}")
        return answer


@contextmanager
def groups_on_one_host(rivals: Sequence[str], ranks: int) -> Iterator[dict[str, Group]]:
    """Start all ranks of every rival on this host; they are ended with the block."""
    with ExitStack() as stack:
        yield {rival: stack.enter_context(_group(rival, ranks)) for rival in rivals}


@contextmanager
def groups_on_hosts(rivals: Sequence[str], testbed: Testbed) -> Iterator[dict[str, Group]]:
    """Start one rank of every rival on each of the testbed's hosts."""
    ranks, port = len(testbed.hosts), testbed.record.master_port
    with ExitStack() as stack:
        yield {
            rival: stack.enter_context(_group(rival, ranks, testbed, port + number))
            for number, rival in enumerate(rivals)
        }


@contextmanager
def _group(
    rival: str, ranks: int, testbed: Testbed | None = None, port: int = 0
) -> Iterator[Group]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/ranks")
        server.listen(ranks)
        task = {"rival": rival, "ranks": ranks, "socket": f"{folder}/ranks"}
        if rival == OPENMPI:
            mpirun = [str(MPIRUN), *MPI_OPTIONS, "-n", str(ranks), *_command(task)]
            roles = [Role(name="mpirun", argv=mpirun, env=ENVIRONMENT)]
        elif testbed is None:
            roles = _roles_here(ranks, task)
        else:
            roles = _roles_on_hosts(testbed, task, port)
        with Roles(dict(enumerate(roles)), streams=INHERITED, grace_s=_STOP_S) as started:
            group = Group(rival, _links(server, rival, ranks, started))
            group.meet()
            try:
                yield group
            finally:
                group.stop()
                _await_ends(started, len(roles))


def _await_ends(started: Roles[int], count: int) -> None:
    """Wait until processes have ended by themselves, for as long as they may take."""
    until = time.monotonic() + _STOP_S
    with suppress(Empty):
        while any(started.exit_code(number) is None for number in range(count)):
            started.receive_line(max(0.0, until - time.monotonic()))


def _command(task: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.executor.rank", json.dumps(task)]


def _roles_here(ranks: int, task: Mapping[str, Any]) -> list[Role]:
    environment = {
        **ENVIRONMENT,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(_free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [
        Role(
            name=f"rank {rank}",
            argv=_command({**task, "rank": rank, "host": _LOOPBACK}),
            env={**environment, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]


def _roles_on_hosts(testbed: Testbed, task: Mapping[str, Any], port: int) -> list[Role]:
    roles = rank_roles(
        testbed, (), range(len(testbed.hosts)), {**ENVIRONMENT, "MASTER_PORT": str(port)}
    )
    return [
        replace(role, argv=_command({**task, "rank": rank, "host": host.address}))
        for rank, (role, host) in enumerate(zip(roles, testbed.hosts, strict=True))
    ]


def _links(server: socket.socket, rival: str, ranks: int, started: Roles[int]) -> "list[Link]":
    """Accept every rank's connection."""
    links: dict[int, Link] = {}
    end = time.monotonic() + _START_S
    server.settimeout(0.2)
    while len(links) < ranks:
        try:
            accepted, _ = server.accept()
        except TimeoutError:
            with suppress(Empty):
                rank, _ = started.receive_line(0.0)
                code = started.exit_code(rank)
                raise RuntimeError(f"{rival}: process {rank} ended at its start: {code}") from None
            if time.monotonic() > end:
                raise RuntimeError(
                    f"{rival}: {len(links)} of {ranks} ranks came within {_START_S:.0f} s"
                ) from None
            continue
        accepted.setblocking(True)
        link = Connection(accepted.detach())
        links[link.recv()["rank"]] = link
    return [links[rank] for rank in range(ranks)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
