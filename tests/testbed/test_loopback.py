"""The testbed without namespaces: the same calls, on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import TestbedError
from headrace.testbed import (
    Testbed,
    TestbedSpec,
    pace_rate,
    privileges,
    run_ranks,
    state,
    teardown,
)
from tests.forked import status_of_child
from tests.waiting import HANG_S


def test_it_falls_back_where_namespaces_cannot_be_made(
    own_state: Path, spec: TestbedSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown.shutil, "which", lambda *_, **__: None)
    assert privileges.unavailable_reason() == "'ip' (of the package iproute2) is not installed"
    with pytest.raises(TestbedError, match="namespaces cannot be made: 'ip'"):
        Testbed.up(spec, fallback=False)
    with Testbed.up(spec) as testbed:
        assert testbed.is_fallback
        assert testbed.fallback_reason == "'ip' (of the package iproute2) is not installed"
    assert list(own_state.iterdir()) == []


def test_it_falls_back_for_the_root_of_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all capabilities, and the folders of the system are not its own: ip failed."""
    monkeypatch.setattr(privileges, "find_program", lambda name: name)
    monkeypatch.setattr(privileges, "_CAPABILITIES", {})
    monkeypatch.setattr(privileges.os, "access", lambda *_: False)
    assert "/run" in (privileges.unavailable_reason() or "")


def test_hosts_commands_and_rates(own_state: Path, spec: TestbedSpec) -> None:
    with Testbed.up(spec, fallback=True) as testbed:
        assert [host.address for host in testbed.hosts][1:3] == ["127.0.1.2", "127.0.2.1"]
        job = testbed.popen("host2", ["env"], stdout=subprocess.PIPE, text=True)
        found = dict(line.split("=", 1) for line in job.communicate()[0].splitlines())
        assert found["HEADRACE_TESTBED_ADDRESS"] == found["PET_LOCAL_ADDR"] == "127.0.2.1"
        assert found["GLOO_SOCKET_IFNAME"] == "lo"
        pace = Path(found["HEADRACE_PACE"])
        before = pace_rate(json.loads(pace.read_text()), "127.0.1.1", "127.0.2.1")
        testbed.set_rate("rack0", "50mbit")
        assert pace_rate(json.loads(pace.read_text()), "127.0.1.1", "127.0.2.1") == before / 2
        codes = run_ranks(testbed, ["sh", "-c", "exit $RANK"], [0, 1])
        assert codes[1] == 1


def test_a_rate_that_another_object_set_stays(own_state: Path, spec: TestbedSpec) -> None:
    """It was set back to what this object had read before."""
    with Testbed.up(spec, fallback=True) as testbed:
        Testbed.attach(testbed.run).set_rate("host0", "20mbit")
        testbed.set_rate("host1", "40mbit")
        rates = [host.bytes_per_s for host in Testbed.attach(testbed.run).hosts]
        assert rates[:2] == [2_500_000, 5_000_000]
        pace = json.loads(testbed.record.pace_file.read_text())["hosts"]
        share = pace["127.0.1.2"]["bytes_per_s"] / 5_000_000
        assert pace["127.0.1.1"]["bytes_per_s"] == 2_500_000 * share


def test_down_ends_processes_and_their_children(own_state: Path, spec: TestbedSpec) -> None:
    with Testbed.up(spec, fallback=True) as testbed:
        job = testbed.popen(
            "host0", ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE
        )
        assert job.stdout is not None
        child = int(job.stdout.readline())
        assert teardown.start_time(child)
    assert job.wait(HANG_S) == -signal.SIGTERM
    assert teardown.start_time(child) is None
    job.stdout.close()
    assert list(own_state.iterdir()) == []


def test_down_ends_what_a_process_has_left_in_the_background(
    own_state: Path, spec: TestbedSpec
) -> None:
    """With the process that was recorded, its children were lost."""
    with Testbed.up(spec, fallback=True) as testbed:
        command = ["sh", "-c", "sleep 60 > /dev/null & echo $!"]
        job = testbed.popen("host0", command, stdout=subprocess.PIPE)
        child = int(job.communicate(timeout=HANG_S)[0].split()[0])
        assert teardown.start_time(child)
    assert teardown.start_time(child) is None
    assert list(own_state.iterdir()) == []


def test_down_ends_a_process_whose_name_is_cut_within_a_character(
    own_state: Path, spec: TestbedSpec, tmp_path: Path
) -> None:
    """The kernel keeps 15 bytes of a name: these were no UTF-8, and the testbed stayed up."""
    program = tmp_path / "training-model\N{LATIN SMALL LETTER O WITH DIAERESIS}"
    shutil.copy("/bin/sleep", program)
    with Testbed.up(spec, fallback=True) as testbed:
        job = testbed.popen("host0", [str(program), "60"])
    assert job.wait(HANG_S) == -signal.SIGTERM
    assert list(own_state.iterdir()) == []


def test_a_process_whose_name_is_cut_within_a_character_can_have_one() -> None:
    """A script that is started by its name has that, to 15 bytes: these were no UTF-8."""
    script = (
        "from pathlib import Path; from headrace.testbed import privileges;"
        "Path('/proc/self/comm').write_bytes(b'training-model\\xc3');"
        "privileges.find_program = lambda name: name; privileges.unavailable_reason()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_S)


def test_a_child_that_leaves_the_block_takes_nothing_down(
    own_state: Path, spec: TestbedSpec
) -> None:
    with Testbed.up(spec, fallback=True) as testbed:
        assert status_of_child(testbed.__exit__) == 0
        assert len(list(own_state.iterdir())) == 1
    assert list(own_state.iterdir()) == []


def test_a_testbed_of_another_container_is_left_alone(own_state: Path, spec: TestbedSpec) -> None:
    """Its owner's number is of no process here, where /run or /tmp is shared: it was removed."""
    with Testbed.up(spec, fallback=True) as testbed:
        replace(testbed.record, owner=(1 << 22, "0")).save()
        with Testbed.up(spec, fallback=True) as neighbour:
            assert {record.run for record in state.records()} == {testbed.run, neighbour.run}
        assert state.remove_crashed() == []


def test_a_testbed_without_an_owner_is_removed(own_state: Path, spec: TestbedSpec) -> None:
    directory, lock = state.reserve()
    state.Record(
        directory=directory,
        run=directory.name,
        mode=state.LOOPBACK,
        spec=spec,
        owner=(os.getpid(), teardown.start_time(os.getpid()) or ""),
        master_port=1,
    ).save()
    assert state.remove_crashed() == []
    assert lock is not None
    os.close(lock)  # as the kernel does when the owner ends
    assert state.remove_crashed() == [directory.name]
    assert list(own_state.iterdir()) == []
