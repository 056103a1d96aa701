"""A host is lost: torchrun starts the job again, and the survivors get plans for themselves."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from headrace.testbed import Testbed, TestbedSpec
from tests.conformance import warm
from tests.waiting import JOB_S

SPEC = TestbedSpec.from_table(
    {
        "defaults": {"host_rate": "400mbit", "uplink_rate": "200mbit"},
        "racks": [{"hosts": 2}, {"hosts": 1}],
    }
)
JOB = Path(__file__).with_name("elastic_job.py")


def agent(testbed: Testbed, index: int, folder: Path) -> "subprocess.Popen[str]":
    """Start torchrun on a host; the first keeps the rendezvous."""
    host = testbed.hosts[index]
    conf = {
        "is_host": int(index == 0),
        "join_timeout": int(JOB_S),
        "read_timeout": int(JOB_S),
        "last_call_timeout": 15,
        # an agent that a busy machine keeps from running for some seconds is not lost
        "keep_alive_interval": 1,
        "keep_alive_max_attempt": 20,
    }
    return testbed.popen(
        host.name,
        warm.command(
            *("-m", "torch.distributed.run", "--nnodes=2:3", "--nproc-per-node=1", "--no-python"),
            *("--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=elastic"),
            f"--rdzv-endpoint={testbed.hosts[0].address}:{testbed.record.master_port}",
            f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}",
            f"--local-addr={host.address}",
            *warm.command(str(JOB), str(folder), host.name),
        ),
        env={
            **warm.environment(),
            "HEADRACE_MEASURE": "auto",
            "HEADRACE_CACHE": str(folder / "cache"),
            "HEADRACE_LOG_LEVEL": "info",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def number(path: Path) -> int:
    """Return what a file says; 0 while it is missing or being written."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text else 0


def steps(folder: Path) -> int:
    return number(folder / "steps")


@pytest.mark.slow
def test_survivors_of_a_lost_host_go_on_with_plans_of_their_own(tmp_path: Path) -> None:
    with Testbed.up(SPEC, fallback=os.geteuid() != 0 or None) as testbed:
        agents = [agent(testbed, index, tmp_path) for index in range(3)]
        try:
            end = time.monotonic() + JOB_S
            lost = tmp_path / f"{testbed.hosts[2].name}.pid"
            # A host that starts late joins a job that two began: it is lost once it takes part.
            while steps(tmp_path) < 10 or number(tmp_path / "ranks") < 3:
                ended = [each for each in agents if each.poll() is not None]
                assert not ended, ended[0].stdout and ended[0].stdout.read()
                assert time.monotonic() < end
                time.sleep(0.02)
            (tmp_path / "lost").touch()
            agents[2].kill()
            os.kill(int(lost.read_text()), signal.SIGKILL)
            said = [each.communicate(timeout=JOB_S)[0] for each in agents[:2]]
        finally:
            for each in agents:
                each.kill()
                each.communicate()
    text = "\n".join(said)
    assert [each.returncode for each in agents[:2]] == [0, 0], text
    assert "died" in text
    assert "network measured in" in text
    assert "network known from an earlier job: " in text  # whatever racks a busy machine has
    for host in testbed.hosts[:2]:
        assert f"{host.name}: 60 steps, the last over 2 ranks by plan book" in text
