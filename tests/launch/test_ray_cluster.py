"""Roles on nodes of Ray: messages, ends, restarts, the loss of a node and of the program itself."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testbed import privileges
from tests.launch.ray_nodes import RayNodes, ray_nodes
from tests.launch.test_roles import assert_ends, is_running

pytestmark = [pytest.mark.slow, pytest.mark.root]

SCRIPT = str(Path(__file__).with_name("ray_roles.py"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    if reason := privileges.unavailable_reason():
        pytest.skip(f"needs network namespaces: {reason}")
    pytest.importorskip("ray")
    with ray_nodes(3) as nodes:
        nodes.start(*(["--num-cpus=3", f"--num-gpus={gpus}"] for gpus in (0, 2, 0)))
        yield nodes


@pytest.fixture(scope="module")
def told(nodes: RayNodes) -> dict[str, Any]:
    done = nodes.run(sys.executable, SCRIPT, nodes.address, "tell")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_processes_of_one_kind_are_on_different_nodes(
    nodes: RayNodes, told: dict[str, Any]
) -> None:
    addresses = [host.address for host in nodes.hosts]
    assert sorted(told["addresses"][:3]) == sorted(told["addresses"][3:]) == addresses
    assert told["namespaces"] == 3
    assert all(1024 <= port < 1 << 16 for port in told["ports"])


def test_roles_are_as_on_this_machine(told: dict[str, Any]) -> None:
    assert told["echoes"]
    assert told["died"] == [0, None, 7, "first line", "last line"]
    assert told["killed"] == [1, None, -signal.SIGSEGV]
    assert told["restarted"]
    assert told["lines"] == [["word", "e", str(Path.cwd())], 3]
    lines, code = told["missing"]
    assert lines[0].startswith("no-such-program cannot be started in ")
    assert code == 1
    assert not any(map(is_running, told["pids"]))


def test_gpus_are_where_the_nodes_have_some(told: dict[str, Any]) -> None:
    assert told["gpus"] == [["0"], ["1"], []]
    assert told["shared"] == ["0,1", "0,1"]


def test_more_than_the_cluster_has_is_refused(told: dict[str, Any]) -> None:
    assert "has 3 nodes, without room for 20 processes that need 20 CPU (" in told["too many"]
    assert "of 9 are free): add nodes, or start fewer processes" in told["too many"]


def test_processes_end_with_the_program_that_started_them(nodes: RayNodes) -> None:
    argv = [sys.executable, SCRIPT, nodes.address, "wait"]
    with nodes.popen(argv, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pids = json.loads(program.stdout.readline())
        assert all(map(is_running, pids))
        program.kill()
    for pid in pids:
        assert_ends(pid)


def test_a_node_that_is_removed_ends_its_roles(nodes: RayNodes) -> None:  # the last of them
    argv = [sys.executable, SCRIPT, nodes.address, "lose", nodes.hosts[2].address]
    with nodes.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        pid = json.loads(program.stdout.readline())
        assert pid in nodes.processes(2)
        nodes.remove(2)
        program.stdin.close()
        code, last, replaced = json.loads(program.stdout.read().splitlines()[-1])
    assert code == -signal.SIGKILL
    assert last.startswith(f"lost on node {nodes.hosts[2].address} of Ray: ")
    assert sorted(set(replaced)) == [host.address for host in nodes.hosts[:2]]
    assert not is_running(pid)
