"""Jobs that lose processes and hosts: time until training goes on, and updates that are lost.

Each role is killed, stopped (SIGSTOP) and cut off: it has a host of its own in a testbed, whose
link goes down, and up again when the job, or the reader alone, starts again.
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from benchmarks.embeddings.drawn import SKEW
from benchmarks.embeddings.job_of_recovery import BATCH, DIM, TABLES
from benchmarks.harness import Report
from headrace.embeddings.data.generate import ClickSource
from headrace.embeddings.run.job.job_processes import JobHosts, JobOptions, RoleHost
from headrace.embeddings.run.job.supervisor import run_embedding_job
from headrace.testbed import Testbed, TestbedSpec
from headrace.testbed.spec import RESERVED_HOST
from headrace.testbed.teardown import namespace_name

ROLES = ("trainer", "server", "reader", "cacher")
HOSTS = ("other trainer", "trainer", "server", "other server", "reader", "cacher")
"""By number: each role's host in the testbed."""

Fault = tuple[str, str]
"""A fault ("killed", "stopped", "cut off"), and the role that has it."""

_RENDEZVOUS = 29500
_SCRIPT = Path(__file__).with_name("job_of_recovery.py")
_COMMIT_EVERY = 5
_BATCHES = 60
_ROW_BYTES = 4 * DIM
_KILLS = 20
_OTHERS = 2
_MOST_S = 1800.0
"""For a job: a kill that is not recovered from ends it by this."""


def bars() -> dict[str, str]:
    """Return the bars of this section."""
    return {
        "recovery-s": "<=15",
        "recovery-s-trainer": "<=30",
        "lost-updates": "<=0",
    }


@dataclass
class _Job:
    """A job that suffers faults one after the other, each some batches after it went on."""

    testbed: Testbed
    faults: Sequence[Fault]
    random: random.Random
    processes: dict[str, Popen[Any]] = field(default_factory=dict)
    begun: list[tuple[Fault, float]] = field(default_factory=list)
    noticed_s: dict[Fault, list[float]] = field(default_factory=dict)
    recovered_s: dict[Fault, list[float]] = field(default_factory=dict)
    _left: int = 0
    _next: int = 0
    _unnoticed: bool = False
    _restarting: bool = False

    def host(self, role: str) -> RoleHost:
        """Return a role's host, where its newest process is remembered."""
        host = self.testbed.hosts[HOSTS.index(role)]

        def start(
            argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **options: Any
        ) -> Popen[Any]:
            process = self.testbed.popen(host.name, argv, env=env, **options)
            self.processes[role] = process
            return process

        return RoleHost(start=start, address=host.address)

    def on_line(self, name: str, line: str) -> None:
        """Take a line of the job: each of trainer 0 is a batch that begins."""
        if name == "supervisor":
            self._unnoticed, self._restarting = False, True
            fault, since = self.begun[-1]
            self.noticed_s.setdefault(fault, []).append(time.perf_counter() - since)
            if fault[0] == "cut off":
                self._set_link(fault[1], "up")
        elif name == "trainer 0" and line.startswith("batch "):
            self._take_batch()

    def _take_batch(self) -> None:
        if self._restarting:
            fault, since = self.begun[-1]
            self.recovered_s.setdefault(fault, []).append(time.perf_counter() - since)
            self._restarting = False
            self._left = 0
            print(
                f"{len(self.begun)} of {len(self.faults)} faults: {' '.join(fault)}",
                file=sys.stderr,
            )
        if self._unnoticed or self._next == len(self.faults):
            return
        if self._left == 0:
            # a commit that began is made before the next one begins: there is a new one
            self._left = self.random.randint(2 * _COMMIT_EVERY + 1, 4 * _COMMIT_EVERY)
        self._left -= 1
        if self._left == 0:
            fault = self.faults[self._next]
            self._next += 1
            self._unnoticed = True  # a link that is down comes up when its loss is noticed
            # some time into the batch
            threading.Timer(self.random.random() * 0.1, self._begin, (fault,)).start()

    def _begin(self, fault: Fault) -> None:
        kind, role = fault
        self.begun.append((fault, time.perf_counter()))
        if kind == "cut off":
            self._set_link(role, "down")
        else:
            number = signal.SIGKILL if kind == "killed" else signal.SIGSTOP
            os.kill(self.processes[role].pid, number)

    def _set_link(self, role: str, state: str) -> None:
        """Set the link of a role's host, at the switch: its packets are lost, not refused."""
        switch = namespace_name(self.testbed.run, RESERVED_HOST)
        device = f"host{HOSTS.index(role)}"
        subprocess.run(["ip", "-n", switch, "link", "set", device, state], check=True)


def faults_of(*, quick: bool) -> list[Fault]:
    """Return the faults of a run, in their order."""
    if quick:
        return [("killed", role) for role in ROLES]
    kills = [("killed", role) for _ in range(_KILLS) for role in ROLES]
    others = [
        (kind, role) for _ in range(_OTHERS) for kind in ("stopped", "cut off") for role in ROLES
    ]
    return [*kills, *others]


def measure(report: Report, *, quick: bool) -> None:
    """Let every role suffer, and compare with a job that nothing happened to."""
    faults = faults_of(quick=quick)
    rows = 20_000 if quick else 640_000
    spec = TestbedSpec.from_table(
        {
            "name": "recovery",
            "defaults": {"host_rate": "10gbit"},
            "racks": [{"hosts": len(HOSTS)}],
        }
    )
    with tempfile.TemporaryDirectory() as name, Testbed.up(spec, fallback=False) as testbed:
        folder = Path(name)
        clicks = folder / "clicks.tsv"
        with clicks.open("wb") as file:
            for lines in ClickSource(skew=SKEW).lines(_BATCHES * BATCH):
                file.write(lines)
        job = _Job(testbed, faults, random.Random(5))
        epochs = 2 + len(faults) // 3  # a fault every 20 batches or less
        began = time.perf_counter()
        run_embedding_job(
            [sys.executable, str(_SCRIPT), str(clicks), str(folder), str(rows), str(epochs)],
            JobOptions(
                lookahead=20,
                prefetch=4,
                folder=folder / "state",
                commit_every=_COMMIT_EVERY,
                deadline_s=_MOST_S,
            ),
            JobHosts(
                trainers=(job.host("other trainer"), job.host("trainer")),
                servers=(job.host("server"), job.host("other server")),
                readers=(job.host("reader"),),
                cacher=job.host("cacher"),
                rendezvous=_RENDEZVOUS,
            ),
            on_line=job.on_line,
            environment={"PYTHONPATH": str(Path.cwd())},
            restart=True,
        )
        took_s = time.perf_counter() - began
        result = json.loads((folder / "result.json").read_text())
    missing = len(faults) - sum(map(len, job.recovered_s.values()))
    lost = result["lost"] + round(abs(result["batches"] - epochs * _BATCHES)) + missing
    _report(report, job, rows, took_s)
    report.bar("lost-updates", lost)


def _report(report: Report, job: _Job, rows: int, took_s: float) -> None:
    report.note(
        f"a job of {TABLES} tables of {rows} rows ({TABLES * rows * _ROW_BYTES / 1e9:.2f} GB), two "
        f"trainers, two servers, a commit every {_COMMIT_EVERY} batches, took {took_s:.0f} s"
    )
    for (fault, role), times in job.recovered_s.items():
        report.row(
            "seconds from a fault until what starts again has ended, and to the next batch",
            fault=fault,
            role=role,
            times=len(times),
            ended=statistics.median(job.noticed_s[fault, role]),
            median=statistics.median(times),
            worst=max(times),
        )
    trainers, others = (
        [
            seconds
            for (_, role), times in job.recovered_s.items()
            for seconds in times
            if (role == "trainer") == of_trainers
        ]
        for of_trainers in (True, False)
    )
    report.bar("recovery-s", max(others, default=None))
    report.bar("recovery-s-trainer", max(trainers, default=None))
