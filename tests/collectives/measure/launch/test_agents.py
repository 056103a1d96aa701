"""Measuring a testbed with one process per host."""

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from headrace.collectives.measure.effort import Effort
from headrace.collectives.measure.launch import measure_testbed
from headrace.errors import CommunicationError, TestbedError
from headrace.testbed import Testbed, TestbedSpec
from headrace.topology import Topology

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)
QUICK = Effort(tournament_us=5000, quiet_us=5000, sharing_us=5000, most_bytes=1e6)
SPEC = TestbedSpec.from_table(
    {
        "defaults": {"host_rate": "400mbit", "uplink_rate": "100mbit"},
        "racks": [{"hosts": 2}, {"hosts": 2}],
    }
)


def hosts_in(order: list[int]) -> list[str]:
    return [SPEC.hosts[index].name for index in order]


@needs_root
@pytest.mark.root
@pytest.mark.timing
def test_the_racks_of_a_shuffled_testbed_are_found_with_their_rates() -> None:
    seed = 2
    order = SPEC.order("random", seed=seed)
    with Testbed.up(SPEC, fallback=False) as testbed:
        profile = measure_testbed(testbed, hosts_in(order))
    truth = SPEC.topology("random", seed=seed)
    racks = {
        frozenset(rank for rank, host in enumerate(order) if SPEC.hosts[host].rack == rack)
        for rack in (0, 1)
    }
    assert {frozenset(group) for group in profile.groups} == racks
    assert profile.topology.hosts == tuple(hosts_in(order))
    for link, actual in zip(profile.topology.links, truth.links, strict=True):
        assert (link.src, link.dst) == (actual.src, actual.dst)
        assert link.beta_us_per_mb == pytest.approx(actual.beta_us_per_mb, rel=0.1)
    assert uplinks(profile.topology) == pytest.approx(uplinks(truth), rel=0.1)
    assert profile.took_s < 15


def uplinks(topology: Topology) -> dict[tuple[int, ...], float]:
    return {s.links: s.beta_us_per_mb for s in topology.shared if "uplink" in s.name}


@pytest.fixture
def loopback():
    with Testbed.up(SPEC, fallback=True) as testbed:
        yield testbed


def test_without_namespaces_the_transport_keeps_the_rates(loopback: Testbed) -> None:
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK)
    assert profile.groups == ((0, 2), (1, 3))


def test_several_ranks_may_share_a_host(loopback: Testbed) -> None:
    profile = measure_testbed(loopback, ["host1", "host1", "host0"], effort=QUICK)
    assert profile.topology.rank_host == (0, 0, 1)
    # what a job's ranks can compare themselves with
    expected = tuple(loopback.host(name).address for name in ("host1", "host0"))
    assert profile.topology.addresses == expected


def test_a_host_that_dies_in_the_middle_is_named(
    loopback: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, subprocess.Popen[str]] = {}
    popen = loopback.popen

    def remember(host: str, *arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        started[host] = popen(host, *arguments, **options)
        return started[host]

    def kill_one(what: str, _share: float) -> None:
        if what.startswith("link"):
            started["host2"].kill()

    monkeypatch.setattr(loopback, "popen", remember)
    with pytest.raises(CommunicationError, match=r"'host2' \(rank 2\) was ended by signal 9"):
        measure_testbed(loopback, hosts_in([0, 1, 2, 3]), effort=QUICK, progress=kill_one)
    assert all(process.poll() is not None for process in started.values())


def test_an_unknown_host_is_refused(loopback: Testbed) -> None:
    with pytest.raises(TestbedError, match="no host 'host9'"):
        measure_testbed(loopback, ["host0", "host9"])


def test_an_agent_starts_without_torch() -> None:
    code = (
        "import sys, headrace.collectives.measure.launch.agent as _; "
        "sys.exit({'torch', 'sklearn', 'scipy'} & set(sys.modules) != set())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
