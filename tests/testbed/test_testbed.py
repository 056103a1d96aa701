"""A testbed in the kernel: commands on hosts, shaped rates, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TestbedError
from headrace.testbed import Testbed, TestbedSpec, network, run_ranks, state, teardown
from headrace.testbed.rates import PAYLOAD_SHARE
from tests.testbed.conftest import assert_gone
from tests.waiting import ENDLESS_S, HANG_S, no_hang, wait_until

pytestmark = pytest.mark.root

RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], 7000)) as server:
    print("ready", flush=True)
    with server.accept()[0] as peer:
        while (got := int(peer.recv(16))):
            while got:
                got -= len(peer.recv(min(got, 1 << 16)))
            print("received", flush=True)
"""

SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000)) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for line in sys.stdin:
        peer.send(line.strip().encode().rjust(16))
        time.sleep(0.02)
        peer.sendall(bytes(int(line)))
    peer.send(b"0".rjust(16))
"""


class Flow:
    """One connection between two hosts; `seconds(n)` sends n bytes and times them.

    Times are from the request on, less the 20 ms for which the sender sleeps: work on the machine
    prolongs them. A clock that began at the receiver began late there, so that links looked fast.
    """

    def __init__(self, testbed: Testbed, src: str, dst: str) -> None:
        address = testbed.host(dst).address
        python = [sys.executable, "-u", "-c"]
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.receiver = testbed.popen(dst, [*python, RECEIVER, address], **options)
        assert self.receiver.stdout is not None
        assert self.receiver.stdout.readline() == "ready\n"
        self.sender = testbed.popen(src, [*python, SENDER, address], **options)

    def start(self, nbytes: int) -> None:
        self.sender.stdin.write(f"{nbytes}\n")
        self.sender.stdin.flush()

    def seconds(self, nbytes: int) -> float:
        began = time.monotonic()
        self.start(nbytes)
        return self.seconds_since(began)

    def seconds_since(self, began: float) -> float:
        """Wait until all is received."""
        assert self.receiver.stdout.readline() == "received\n"
        return time.monotonic() - began - 0.02

    def best_seconds(self, nbytes: int, limit_s: float) -> float:
        """Time transfers until one takes less than a limit: a busy machine delays many."""
        times_s: list[float] = []

        def is_below() -> bool:
            times_s.append(self.seconds(nbytes))
            return times_s[-1] < limit_s

        wait_until(is_below, lambda: f"not within {limit_s:.3f} s: {times_s}")
        return min(times_s)

    def close(self) -> None:
        self.sender.stdin.close()
        assert self.sender.wait(HANG_S) == 0
        assert self.receiver.wait(HANG_S) == 0
        self.receiver.stdin.close()
        self.receiver.stdout.close()
        self.sender.stdout.close()


def output(testbed: Testbed, host: str, *argv: str) -> str:
    process = testbed.popen(host, argv, stdout=subprocess.PIPE, text=True)
    return process.communicate(timeout=HANG_S)[0]


def test_a_host_has_its_address_and_nothing_else(testbed: Testbed) -> None:
    found = json.loads(output(testbed, "host2", "ip", "-json", "address"))
    addresses = {
        device["ifname"]: [info["local"] for info in device["addr_info"]]
        for device in found
        if "UP" in device["flags"]
    }
    assert addresses["eth0"] == [testbed.host("host2").address] == ["10.77.2.1"]
    assert "127.0.0.1" in addresses["lo"]
    assert set(addresses) == {"lo", "eth0"}
    # a host sees its own network only: no default route
    assert "default" not in output(testbed, "host2", "ip", "route")


def test_hosts_know_one_another_by_name(testbed: Testbed) -> None:
    found = output(testbed, "host0", "getent", "ahostsv4", "host3")
    assert found.split()[0] == "10.77.2.2"


def test_what_a_command_on_a_host_finds_in_its_environment(testbed: Testbed) -> None:
    process = testbed.popen(
        "host3", ["env"], env={"EXTRA": "1", "HOME": None}, stdout=subprocess.PIPE, text=True
    )
    found = dict(line.split("=", 1) for line in process.communicate()[0].splitlines())
    assert found["GLOO_SOCKET_IFNAME"] == found["HEADRACE_SOCKET_IFNAME"] == "eth0"
    assert found["PET_NODE_RANK"] == "3"
    assert found["PET_MASTER_ADDR"] == "10.77.1.1"
    assert found["PET_LOCAL_ADDR"] == "10.77.2.2"
    assert found["EXTRA"] == "1"
    assert "HOME" not in found
    assert "HEADRACE_PACE" not in found


def test_traffic_takes_the_time_of_the_links_it_crosses(testbed: Testbed) -> None:
    nbytes = 1_500_000
    for dst, mbit in (("host1", 400), ("host2", 100)):
        ideal_s = nbytes * 8e-6 / (mbit * PAYLOAD_SHARE)
        with closing(Flow(testbed, "host0", dst)) as flow:
            flow.seconds(100_000)
            best_s = flow.best_seconds(nbytes, 1.5 * ideal_s)
        # it cannot be faster but for the bucket and the wake-up
        assert best_s > 0.97 * ideal_s, (dst, best_s, ideal_s)


def test_a_rate_changes_under_a_flow(testbed: Testbed) -> None:
    """Bounds of the time from below alone, which other work on the machine cannot break."""

    def at_mbit(nbytes: float, mbit: float) -> float:
        return nbytes * 8e-6 / (mbit * PAYLOAD_SHARE)

    nbytes = 3_000_000
    with closing(Flow(testbed, "host0", "host2")) as flow:
        began = time.monotonic()
        flow.start(nbytes)
        time.sleep(0.02)
        testbed.set_rate("rack1", "25mbit")
        changed_s = time.monotonic() - began
        took_s = flow.seconds_since(began)
        # what cannot have been sent at 100 Mbit/s before the change goes at 25
        left = max(0.0, nbytes * (1 - changed_s / at_mbit(nbytes, 100)))
        assert took_s > 0.9 * at_mbit(left, 25)
        testbed.set_rate("rack1", "100mbit")
        # at the former rate it would take twice as long
        flow.best_seconds(nbytes, at_mbit(nbytes, 50))
        testbed.set_rate("host0", "10mbit")
        assert flow.seconds(200_000) > 0.95 * at_mbit(200_000, 10)
    again = Testbed.attach(testbed.run).spec
    assert [again.host_named["host0"].bytes_per_s, again.racks[1].bytes_per_s] == [
        1_250_000,
        12_500_000,
    ]


def test_a_wrong_host_command_or_rate_is_refused(testbed: Testbed) -> None:
    with pytest.raises(TestbedError, match="no host 'host9'; hosts: host0, host1"):
        testbed.popen("host9", ["true"])
    with pytest.raises(TestbedError, match="the command is empty"):
        testbed.popen("host0", [])
    with pytest.raises(TestbedError, match="rate is 'fast'"):
        testbed.set_rate("host0", "fast")
    with pytest.raises(TestbedError, match="'core' is neither a host nor a rack"):
        testbed.set_rate("core", "1mbit")


def test_two_testbeds_at_once_do_not_meet(testbed: Testbed, own_state: Path) -> None:
    with Testbed.up(testbed.spec, fallback=False) as other:
        assert other.run != testbed.run
        server = other.popen(
            "host2", [sys.executable, "-c", RECEIVER, "10.77.2.1"], stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        # the same address in the first testbed is another machine: no listener there
        probe = testbed.popen(
            "host0",
            [sys.executable, "-c", "import socket; socket.create_connection(('10.77.2.1', 7000))"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert "ConnectionRefusedError" in probe.communicate(timeout=HANG_S)[1]
        with pytest.raises(TestbedError, match="several testbeds match"):
            Testbed.attach()
        assert Testbed.attach(other.run).run == other.run
    assert server.wait(HANG_S) == -signal.SIGTERM
    server.stdout.close()
    assert_gone(other.run, own_state)
    assert teardown.namespaces_of(testbed.run)
    with pytest.raises(TestbedError, match="is down"):
        other.popen("host0", ["true"])


def test_down_ends_what_ignores_it_and_what_hides(
    namespaces: None, own_state: Path, spec: TestbedSpec
) -> None:
    testbed = Testbed.up(spec, fallback=False)
    deaf = "trap '' TERM; echo on; while :; do sleep 1; done"
    stubborn = testbed.popen("host0", ["sh", "-c", deaf], stdout=subprocess.PIPE)
    hidden = testbed.popen(
        "host1", ["sh", "-c", "setsid sleep 77 >/dev/null & echo $!"], stdout=subprocess.PIPE
    )
    assert stubborn.stdout is not None
    assert hidden.stdout is not None
    stubborn.stdout.readline()
    orphan = int(hidden.stdout.readline())
    assert hidden.wait(HANG_S) == 0
    assert teardown.start_time(orphan)
    testbed.down(grace_s=0.2)
    testbed.down()  # twice does no harm
    assert stubborn.wait(HANG_S) == -signal.SIGKILL
    assert teardown.start_time(orphan) is None
    stubborn.stdout.close()
    hidden.stdout.close()
    assert_gone(testbed.run, own_state)


def test_down_waits_for_what_left_its_namespace_on_the_way_out(
    namespaces: None, own_state: Path, spec: TestbedSpec
) -> None:
    # as every process does that ends, for a moment: this one takes its time
    slow = "trap 'exec unshare --net sleep 0.4' TERM; echo on; while :; do sleep 0.01; done"
    with Testbed.up(spec, fallback=False) as testbed:
        job = testbed.popen("host0", ["sh", "-c", slow], stdout=subprocess.PIPE)
        assert job.stdout is not None
        job.stdout.readline()
        testbed.down()
        assert teardown.start_time(job.pid) is None
        assert job.wait(HANG_S) == 0
        job.stdout.close()


def test_a_failed_build_leaves_nothing(
    namespaces: None, own_state: Path, spec: TestbedSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    build = network.build

    def noting(run: str, spec: TestbedSpec) -> None:
        runs.append(run)
        build(run, spec)

    monkeypatch.setattr(network, "build", noting)
    monkeypatch.setattr(network, "INTERFACE", "a name with spaces")
    with pytest.raises(TestbedError, match="failed"):
        Testbed.up(spec, fallback=False)
    (run,) = runs
    assert_gone(run, own_state)


def test_a_program_that_does_not_end_is_named(
    spec: TestbedSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in a traceback of Python's."""

    def late(argv: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(network, "find_program", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(TestbedError, match=r"'ip ' did not end within 30 s: try again .*netns add"):
        network.build("0000", spec)


OWNER = """
import sys, time
from pathlib import Path
from typing import Any
from headrace.testbed import Testbed, TestbedSpec, state
state.state_directory = lambda: Path(sys.argv[1])
testbed = Testbed.up(TestbedSpec.load(sys.argv[2]), fallback=False)
job = testbed.popen("host0", ["sleep", "600"], stdout=-3)
print(testbed.run, testbed._guardian.pid, job.pid, flush=True)
time.sleep(600)
"""


def start_owner(own_state: Path) -> tuple["subprocess.Popen[str]", str, int, int]:
    root = Path(__file__).parents[2]
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(own_state), str(root / "examples/testbed-2x2.toml")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root / "src",
    )
    assert owner.stdout is not None
    run, guardian, job = owner.stdout.readline().split()
    # it is started outside, and enters its namespace a moment later
    wait_until(
        lambda: int(job) in teardown.processes_in(teardown.namespaces_of(run)),
        "the job enters its namespace",
    )
    return owner, run, int(guardian), int(job)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_guardian_removes_what_a_killed_owner_left(
    namespaces: None, own_state: Path, how: signal.Signals
) -> None:
    owner, run, guardian, job = start_owner(own_state)
    assert teardown.namespaces_of(run)
    owner.send_signal(how)
    owner.communicate()
    # the process that inherits the killed job may take a moment to reap it
    wait_until(
        lambda: not any(map(teardown.start_time, (guardian, job))), "guardian and job are gone"
    )
    assert_gone(run, own_state)


def test_what_owner_and_guardian_left_is_found_and_removed(
    namespaces: None, own_state: Path, spec: TestbedSpec
) -> None:
    owner, run, guardian, job = start_owner(own_state)
    os.kill(guardian, signal.SIGKILL)
    owner.kill()
    owner.communicate()
    (record,) = state.records()
    assert record.run == run
    assert record.crashed
    assert teardown.start_time(job)
    with Testbed.up(spec, fallback=False) as fresh:
        assert teardown.start_time(job) is None
        assert_gone(run, own_state)
        assert [each.run for each in state.records()] == [fresh.run]


def test_down_does_not_wait_for_a_forked_child(
    namespaces: None, own_state: Path, spec: TestbedSpec
) -> None:
    # a data loader's workers are forked and hold the pipe to the guardian open
    testbed = Testbed.up(spec, fallback=False)
    child = os.fork()
    if child == 0:
        time.sleep(ENDLESS_S)
        os._exit(0)
    try:
        with no_hang():
            testbed.down()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert_gone(testbed.run, own_state)


def test_ranks_get_their_numbers_and_output_is_told_apart(testbed: Testbed) -> None:
    lines: list[tuple[int, str]] = []
    codes = run_ranks(
        testbed,
        ["sh", "-c", 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $HEADRACE_TESTBED_HOST"'],
        testbed.spec.order("interleaved")[1:],
        on_line=lambda rank, line: lines.append((rank, line)),
    )
    assert codes == [0, 0, 0]
    assert sorted(lines) == [
        (0, "0/3 0 10.77.2.1 host2"),
        (1, "1/3 0 10.77.2.1 host1"),
        (2, "2/3 0 10.77.2.1 host3"),
    ]


def test_one_failing_rank_ends_the_others(testbed: Testbed) -> None:
    script = '[ "$RANK" = 2 ] && exit 9; exec sleep 600'
    with no_hang():
        codes = run_ranks(testbed, ["sh", "-c", script], [0, 1, 2, 3], on_line=lambda *_: None)
    assert codes == [-signal.SIGTERM, -signal.SIGTERM, 9, -signal.SIGTERM]


def test_a_job_past_its_time_is_ended(testbed: Testbed) -> None:
    codes = run_ranks(testbed, ["sleep", "60"], [0, 1], timeout_s=0.2)
    assert codes == [-signal.SIGTERM, -signal.SIGTERM]
