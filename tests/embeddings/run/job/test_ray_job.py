"""Jobs on three nodes of Ray learn what one process does, also where a node is removed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testbed import privileges
from tests.embeddings.run.clicks_job import BATCH, ROWS, TABLES
from tests.embeddings.run.job.test_job import SCRIPT, assert_close, clicks, expected
from tests.embeddings.run.job_plans import job_plan
from tests.launch.ray_nodes import RayNodes, ray_nodes
from tests.waiting import JOB_S

__all__ = ["clicks"]

pytestmark = [pytest.mark.slow, pytest.mark.root]

HEADRACE = str(Path(sys.executable).with_name("headrace"))


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    pytest.importorskip("ray")
    with ray_nodes(3) as nodes:
        nodes.start(*[["--num-cpus=3"]] * 3)
        yield nodes


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "job.plan"
    job_plan(
        batch=BATCH,
        lookahead=4,
        prefetch=2,
        cache_bytes=TABLES * ROWS * 64,
        commit_every=1,
    ).save(path)
    return path


def node_of(nodes: RayNodes, script: Path) -> int:
    """Return a node besides the head that a trainer runs on."""
    for number in range(1, len(nodes.hosts)):
        for pid in nodes.processes(number):
            if str(script).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return number
    raise AssertionError("all trainers are on the head node")


def test_a_job_on_three_nodes_one_of_which_is_removed(
    nodes: RayNodes,
    plan: Path,
    clicks: Path,
    tmp_path: Path,
) -> None:
    output, removed_output = tmp_path / "learned", tmp_path / "learned without a node"
    command = [HEADRACE, "embeddings", "run", str(plan), "--ray", nodes.address]
    done = nodes.run(*command, "--", str(SCRIPT), str(clicks), str(output))
    assert done.returncode == 0, done.stderr
    assert_close(output, expected(clicks, "files"))

    script = tmp_path / "slow.py"
    text = SCRIPT.read_text()
    step = "        optimizer.zero_grad()\n"
    assert step in text
    slow = '        print(f"batch {number}", flush=True)\n        __import__("time").sleep(0.2)\n'
    script.write_text(text.replace(step, slow + step))
    command += ["--state", str(tmp_path / "state"), "--", str(script)]
    removed = ""
    lines: list[str] = []
    with nodes.popen(
        [*command, str(clicks), str(removed_output)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if "batch 6" in line and not removed:
                number = node_of(nodes, script)
                removed = nodes.hosts[number].address
                nodes.remove(number)
        assert job.wait(JOB_S) == 0, "".join(lines)
    restarts = [line for line in lines if line.startswith("[supervisor]")]
    assert any("was ended by signal 9" in line and "from commit" in line for line in restarts), (
        restarts
    )
    assert_close(removed_output, expected(clicks, "files"))
