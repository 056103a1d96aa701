"""Foreign connections to the ports of all processes of a running job, which trains on."""

import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
import pytest

from headrace.embeddings.run.job.job_processes import JobHosts, RoleHost
from headrace.embeddings.run.job.supervisor import run_embedding_job
from headrace.launch.roles import start_local
from tests.embeddings.run.job.test_job import (
    SCRIPT,
    assert_close,
    clicks,
    environment,
    expected,
    job_options,
)
from tests.waiting import HANG_S

__all__ = ["clicks"]

_LISTENING = "0A"
"""State of a socket, in /proc/net/tcp."""

MESSAGES = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    np.random.default_rng(0).bytes(30_000),
    bytes(30_000),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(508),  # a greeting of TLS
    b'{"role": "trainer 1", "secret": "guessed"}\n',
    b"",
)


def listening_ports(pids: Sequence[int]) -> list[int]:
    """Return the TCP ports that processes listen at."""
    inodes: set[str] = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    ports: list[int] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def call_at(port: int, message: bytes, ends: ExitStack, *, stays: bool) -> None:
    """Send a message to a port; the connection ends at once, or with the test."""
    caller = socket.create_connection(("127.0.0.1", port), HANG_S)
    ends.callback(caller.close)
    with suppress(OSError):  # it may be closed on the first bytes
        caller.sendall(message)
    if not stays:
        caller.close()


@pytest.mark.slow
def test_a_job_is_not_disturbed_by_strangers_at_its_ports(clicks: Path, tmp_path: Path) -> None:
    output, called_file = tmp_path / "learned", tmp_path / "called"
    processes: list[Popen[Any]] = []
    lines: list[tuple[str, str]] = []
    ports: list[int] = []

    def start(argv: Sequence[str], **options: Any) -> Popen[Any]:
        processes.append(start_local(argv, **options))
        return processes[-1]

    def on_line(name: str, line: str) -> None:
        lines.append((name, line))
        if name == "trainer 0" and line.startswith("epoch 0"):
            ports.extend(listening_ports([process.pid for process in processes]))
            for port in ports:
                for message in MESSAGES:
                    for stays in (False, True):
                        call_at(port, message, ends, stays=stays)
            called_file.touch()

    host = RoleHost(start=start)
    with ExitStack() as ends:
        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(output)],
            job_options(folder=tmp_path / "state", commit_every=2),
            JobHosts(trainers=(host,) * 2, servers=(host,), readers=(host,), cacher=host),
            on_line=on_line,
            environment=environment() | {"AWAITED": str(called_file)},
            restart=True,
        )
    # calls of server, reader and cacher, pulses, a rendezvous; connected trainers listen no more
    assert len(ports) >= 5
    assert not [line for name, line in lines if name == "supervisor"]
    assert_close(output, expected(clicks, "files"))
