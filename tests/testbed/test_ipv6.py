"""Testbeds whose hosts have IPv6 addresses, alone or beside IPv4, and jobs on them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.launch.agents import measure_testbed
from headrace.errors import TestbedError
from headrace.testbed import Testbed, TestbedSpec, privileges, run_ranks
from headrace.testbed.rates import PAYLOAD_SHARE, PAYLOAD_SHARE_V6
from tests.conformance import warm
from tests.conformance.launch import environment
from tests.testbed.conftest import assert_gone
from tests.waiting import HANG_S, JOB_S

JOB = """
import sys, torch, torch.distributed as dist, headrace.torch
from datetime import timedelta
from pathlib import Path
dist.init_process_group("headrace", timeout=timedelta(seconds=40))
tensor = torch.full((100_000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.unique().tolist() == [6.0]
group = dist.new_group([2, 0])
if dist.get_rank() != 1:
    dist.all_reduce(tensor, group=group)
    assert tensor.unique().tolist() == [12.0]
# established connections, not counting those to the store, by family
port = f"{int(sys.argv[1]):04X}"
for name in ("tcp", "tcp6"):
    rows = [line.split() for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]]
    ends = [(row[1], row[2]) for row in rows if row[3] == "01"]
    mine = [end for end in ends if not any(each.endswith(port) for each in end)]
    print(name, "some" if mine else "none", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def spec(family: str) -> TestbedSpec:
    table = {
        "name": "v6",
        "family": family,
        "defaults": {"host_rate": "400mbit", "uplink_rate": "100mbit"},
        "racks": [{"hosts": 2}, {"hosts": 1}],
    }
    return TestbedSpec.from_table(table)


@pytest.fixture
def ipv6(namespaces: None) -> None:
    if reason := privileges.no_ipv6_reason():
        pytest.skip(reason)


def test_hosts_have_the_addresses_of_their_family() -> None:
    v4, v6, both = (spec(family) for family in ("ipv4", "ipv6", "both"))
    assert [host.addresses for host in v4.hosts][1:] == [("10.77.1.2",), ("10.77.2.1",)]
    assert [host.addresses for host in v6.hosts][1:] == [("fd77::1:2",), ("fd77::2:1",)]
    assert [host.addresses for host in both.hosts][1:] == [
        ("10.77.1.2", "fd77::1:2"),
        ("10.77.2.1", "fd77::2:1"),
    ]
    for each in (v4, v6, both):
        assert TestbedSpec.from_table(each.to_table()) == each
    assert v6.topology().addresses == ("fd77::1:1", "fd77::1:2", "fd77::2:1")
    ratio = v6.topology().links[0].beta_us_per_mb / v4.topology().links[0].beta_us_per_mb
    assert ratio == pytest.approx(PAYLOAD_SHARE / PAYLOAD_SHARE_V6)
    with pytest.raises(TestbedError, match="'family' is 'ipv5', needs one of ipv4, ipv6, both"):
        spec("ipv5")


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="on loopback .* there is one IPv6 address"):
        Testbed.up(spec("ipv6"), fallback=True)
    monkeypatch.setattr(privileges, "_HAS_IPV6", tmp_path / "if_inet6")
    monkeypatch.setattr(privileges, "unavailable_reason", lambda: None)
    with pytest.raises(TestbedError, match="'both', needs 'ipv4' here: this kernel has no IPv6"):
        Testbed.up(spec("both"))


@pytest.mark.sampled(1)
@pytest.mark.root
@pytest.mark.usefixtures("ipv6")
@pytest.mark.parametrize(
    ("family", "settings", "used"),
    [
        ("ipv6", {}, "tcp6"),
        ("ipv6", {"HEADRACE_TLS": "on", "HEADRACE_SOCKET_IFNAME": ""}, "tcp6"),
        ("both", {}, "tcp"),
        ("both", {"HEADRACE_SOCKET_IFNAME": "", "MASTER_ADDR": "fd77::1:1"}, "tcp6"),
    ],
)
def test_jobs_of_either_family(
    family: str, settings: dict[str, str], used: str, own_state: Path
) -> None:
    """An interface with an IPv6 address alone was refused, and so was an IPv6 store.

    Where the interface has both families IPv4 is taken; without an interface, the store's.
    """
    lines: list[str] = []
    variables = environment(**settings)
    kept = {name: variables[name] for name in (*settings, "PYTHONPATH", "OMP_NUM_THREADS")}
    with Testbed.up(spec(family), fallback=False) as testbed:
        port = str(testbed.record.master_port)
        codes = run_ranks(
            testbed,
            warm.command("-c", JOB, port),
            [0, 1, 2],
            env=kept,
            on_line=lambda rank, line: lines.append(line),
            timeout_s=JOB_S,
        )
    assert codes == [0, 0, 0], lines
    for name in ("tcp", "tcp6"):
        assert lines.count(f"{name} {'some' if name == used else 'none'}") == 3, lines
    assert_gone(testbed.run, own_state)


@pytest.mark.root
@pytest.mark.usefixtures("ipv6")
def test_hosts_reach_one_another_by_address_and_name(own_state: Path) -> None:
    with Testbed.up(spec("both"), fallback=False) as testbed:
        found = testbed.popen("host2", ["ip", "-json", "address"], stdout=subprocess.PIPE)
        [device] = [each for each in json.loads(found.communicate()[0]) if each["ifname"] == "eth0"]
        held = {info["local"] for info in device["addr_info"]}
        assert held == {"10.77.2.1", "fd77::2:1", "fe80::2:1"}
        for name in ("10.77.1.1", "fd77::1:1", "host0"):
            dial = f"import socket; socket.create_connection(({name!r}, 9), 5)"
            probe = testbed.popen(
                "host2", [sys.executable, "-c", dial], stderr=subprocess.PIPE, text=True
            )
            # it is there: nothing listens, which it says
            assert "ConnectionRefusedError" in probe.communicate(timeout=HANG_S)[1]


@pytest.mark.root
@pytest.mark.usefixtures("ipv6")
def test_an_ipv6_testbed_can_be_measured(own_state: Path) -> None:
    with Testbed.up(spec("ipv6"), fallback=False) as testbed:
        profile = measure_testbed(
            testbed, ["host0", "host1", "host2"], effort=ProbeEffort(budget_s=2)
        )
    assert profile.topology.hosts == ("host0", "host1", "host2")
    assert profile.topology.addresses == ("fd77::1:1", "fd77::1:2", "fd77::2:1")
