"""A job goes on without a trainer whose host is cut off and stays so."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from headrace.embeddings.run.job.job_processes import JobHosts, RoleHost
from headrace.embeddings.run.job.supervisor import run_embedding_job
from headrace.testbed import Testbed, TestbedSpec, privileges
from headrace.testbed.spec import RESERVED_HOST
from headrace.testbed.teardown import namespace_name
from tests.embeddings.run.job.test_job import (
    SCRIPT,
    assert_close,
    clicks,
    environment,
    expected,
    job_options,
    with_longer_silences,
)
from tests.waiting import HANG_S

__all__ = ["clicks"]

pytestmark = [pytest.mark.slow, pytest.mark.root]


def cut(testbed: Testbed, number: int) -> None:
    """Take a host's link down at the switch: its packets are lost, not refused."""
    switch = namespace_name(testbed.run, RESERVED_HOST)
    subprocess.run(
        ["ip", "-n", switch, "link", "set", f"host{number}", "down"], check=True, timeout=HANG_S
    )


def test_a_job_goes_on_without_a_host_that_stays_cut_off(clicks: Path, tmp_path: Path) -> None:
    with_longer_silences(partial(check_a_host_that_stays_cut_off, clicks, tmp_path))


def check_a_host_that_stays_cut_off(clicks: Path, tmp_path: Path, silence_s: float) -> None:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    spec = TestbedSpec.from_table(
        {"name": "cut", "defaults": {"host_rate": "1gbit"}, "racks": [{"hosts": 2}]}
    )
    output, told = tmp_path / "learned", list[str]()
    with Testbed.up(spec, fallback=False) as testbed:
        first, second = (
            RoleHost(start=partial(testbed.popen, host.name), address=host.address)
            for host in testbed.hosts
        )

        def on_line(name: str, line: str) -> None:
            if name == "supervisor":
                told.append(line)
            elif name == "trainer 1" and line.startswith("epoch 0"):
                cut(testbed, 1)

        run_embedding_job(
            [sys.executable, str(SCRIPT), str(clicks), str(output), "files"],
            job_options(
                folder=tmp_path / f"state of {silence_s}", commit_every=3, silence_s=silence_s
            ),
            JobHosts(
                trainers=(first, second),
                servers=(first,),
                readers=(first,),
                cacher=first,
                rendezvous=29500,
            ),
            on_line=on_line,
            environment=environment(),
            restart=True,
            min_trainers=1,
        )
    assert len(told) == 2
    assert told[0].startswith(f"trainer 1: it has been silent for {silence_s:g} s")
    assert told[1].startswith("trainer 1 did not come back: ")
    assert told[1].endswith("with as many trainers as are left: 1.")
    assert_close(output, expected(clicks, "files"))
