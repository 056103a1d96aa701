"""Processes of a job that are killed: time until training goes on, and updates that are lost."""

import json
import os
import random
import signal
import statistics
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
from headrace.embeddings.run.job_processes import JobHosts, JobOptions, RoleHost
from headrace.embeddings.run.supervisor import run_embedding_job
from headrace.launch.roles import start_local

ROLES = ("trainer", "server", "reader", "cacher")
_SCRIPT = Path(__file__).with_name("job_of_recovery.py")
_COMMIT_EVERY = 10
_BATCHES = 60
_ROW_BYTES = 4 * DIM
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
    """A job whose processes are killed one after the other, each some batches after it went on."""

    roles: Sequence[str]
    random: random.Random
    processes: dict[str, Popen[Any]] = field(default_factory=dict)
    killed: list[tuple[str, float]] = field(default_factory=list)
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    _left: int = 0
    _next: int = 0
    _restarting: bool = False

    def host(self, role: str) -> RoleHost:
        """Return this machine, where a role's newest process is remembered."""

        def start(
            argv: Sequence[str], *, env: Mapping[str, str | None] | None = None, **options: Any
        ) -> Popen[Any]:
            process = start_local(argv, env=env, **options)
            self.processes[role] = process
            return process

        return RoleHost(start=start)

    def on_line(self, name: str, line: str) -> None:
        """Take a line of the job: each of trainer 0 is a batch that begins."""
        if name == "supervisor":
            self._restarting = True
        elif name == "trainer 0" and line.startswith("batch "):
            self._take_batch()

    def _take_batch(self) -> None:
        if self._restarting:
            role, since = self.killed[-1]
            self.recovered_s.setdefault(role, []).append(time.perf_counter() - since)
            self._restarting = False
            self._left = 0
        if self._next == len(self.roles):
            return
        if self._left == 0:
            # a commit that began is made before the next one begins: there is a new one
            self._left = self.random.randint(2 * _COMMIT_EVERY + 1, 4 * _COMMIT_EVERY)
        self._left -= 1
        if self._left == 0:
            role = self.roles[self._next]
            self._next += 1
            # some time into the batch
            threading.Timer(self.random.random() * 0.1, self._kill, (role,)).start()

    def _kill(self, role: str) -> None:
        self.killed.append((role, time.perf_counter()))
        os.kill(self.processes[role].pid, signal.SIGKILL)


def measure(report: Report, *, quick: bool) -> None:
    """Kill every role, and compare with a job that nothing happened to."""
    times = 1 if quick else 20
    rows = 20_000 if quick else 640_000
    roles = [role for _ in range(times) for role in ROLES]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clicks = folder / "clicks.tsv"
        with clicks.open("wb") as file:
            for lines in ClickSource(skew=SKEW).lines(_BATCHES * BATCH):
                file.write(lines)
        job = _Job(roles, random.Random(5))
        epochs = 2 + times
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
            ),
            on_line=job.on_line,
            environment={"PYTHONPATH": str(Path.cwd())},
            restart=True,
        )
        took_s = time.perf_counter() - began
        result = json.loads((folder / "result.json").read_text())
    missing = len(roles) - sum(map(len, job.recovered_s.values()))
    lost = result["lost"] + round(abs(result["batches"] - epochs * _BATCHES)) + missing
    _report(report, job, rows, took_s)
    report.bar("lost-updates", lost)


def _report(report: Report, job: _Job, rows: int, took_s: float) -> None:
    report.note(
        f"a job of {TABLES} tables of {rows} rows ({TABLES * rows * _ROW_BYTES / 1e9:.2f} GB), two "
        f"trainers, two servers, a commit every {_COMMIT_EVERY} batches, took {took_s:.0f} s"
    )
    for role, times in job.recovered_s.items():
        report.row(
            "killed processes: seconds from the kill to the next batch that begins",
            role=role,
            kills=len(times),
            median=statistics.median(times),
            worst=max(times),
        )
    trainers = job.recovered_s.get("trainer", [])
    others = [
        seconds for role, times in job.recovered_s.items() if role != "trainer" for seconds in times
    ]
    report.bar("recovery-s", max(others, default=None))
    report.bar("recovery-s-trainer", max(trainers, default=None))
