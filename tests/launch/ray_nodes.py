"""Nodes of a Ray cluster in the network namespaces of a testbed."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.testbed import Testbed, TestbedSpec
from headrace.testbed.teardown import namespace_name, processes_in
from tests.launch.test_roles import is_running
from tests.waiting import HANG_S, JOB_S, wait_until

_PORT = 6379
_STARTS = 5
_LATE = "The current node timed out during startup"
"""Text of Ray's error if a node's processes take more than 30 s, as on a busy machine."""


class RayNodes:
    """A cluster with a node on every host of a testbed; the first is its head."""

    def __init__(self, testbed: Testbed, folder: Path) -> None:
        self.testbed = testbed
        self.hosts = testbed.hosts
        self.address = f"{self.hosts[0].address}:{_PORT}"
        self.started: list[subprocess.Popen[Any]] = []
        self._folder = folder
        # A token that some program of Ray's has left in the home folder would make the head ask for
        # it, and no other node send it.
        self._environment = {
            "RAY_TMPDIR": str(folder),
            "RAY_AUTH_MODE": "disabled",
            # Ray lowers its workers to a priority at which other tests leave them no time
            "RAY_worker_niceness": "0",
        }

    def start(self, *resources: Sequence[str]) -> None:
        """Start the nodes in turn, each with its options; the session's numbers are the head's."""
        for number, options in enumerate(resources):
            for _ in range(_STARTS):
                process, written = self._start(number, options)
                if process.poll() is None:
                    break
                assert _LATE in written, written
                self.remove(number)  # what has begun late
            else:
                raise AssertionError(f"node {number} did not start {_STARTS} times")
            self.started.append(process)

    def _start(self, number: int, options: Sequence[str]) -> "tuple[subprocess.Popen[Any], str]":
        """Start a node; return its process, which has ended if that failed, and what it wrote."""
        host = self.hosts[number]
        place = (
            ["--head", f"--port={_PORT}", "--include-dashboard=false"]
            if number == 0
            else [f"--address={self.address}"]
        )
        path = self._folder / f"{host.name}.txt"
        with path.open("wb") as output:
            process = self.testbed.popen(
                host.name,
                [
                    str(Path(sys.executable).with_name("ray")),
                    "start",
                    *place,
                    f"--node-ip-address={host.address}",
                    "--disable-usage-stats",
                    "--include-log-monitor=false",
                    "--object-store-memory=80000000",
                    "--block",
                    *options,
                ],
                env=self._environment | {"RAY_USAGE_STATS_ENABLED": "0"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_until(
            lambda: "--block" in path.read_text() or process.poll(),
            f"a node starts on {host.name}",
        )
        return process, path.read_text()

    def popen(self, argv: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a command on the head node."""
        env = self._environment | {"PYTHONPATH": str(Path.cwd())}
        return self.testbed.popen(self.hosts[0].name, argv, env=env, text=True, **options)

    def run(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        """Run a command on the head node."""
        process = self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = process.communicate(timeout=JOB_S)
        return subprocess.CompletedProcess(argv, process.returncode, output, errors)

    def processes(self, number: int) -> list[int]:
        """Return the processes on a node."""
        return processes_in([namespace_name(self.testbed.run, self.hosts[number].name)])

    def remove(self, number: int) -> None:
        """End all processes of a node at once."""
        pids = self.processes(number)
        for sent in ("STOP", "KILL"):
            subprocess.run(["kill", f"-{sent}", *map(str, pids)], check=False)
        wait_until(lambda: not any(map(is_running, pids)), f"node {number} ends")


@contextmanager
def ray_nodes(count: int) -> Generator[RayNodes]:
    """Yield a cluster, not started, on hosts of a new testbed, and remove it with its files."""
    spec = TestbedSpec.from_table(
        {"name": "ray", "defaults": {"host_rate": "1gbit"}, "racks": [{"hosts": count}]}
    )
    # Ray's sockets have paths of at most 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    try:
        with Testbed.up(spec, fallback=False) as testbed:
            nodes = RayNodes(testbed, folder)
            yield nodes
        for process in nodes.started:
            process.wait(HANG_S)
    finally:
        shutil.rmtree(folder)
