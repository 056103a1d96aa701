"""Measuring a testbed with one process per host."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.launch import agents, measure_testbed
from headrace.errors import CommunicationError, TestbedError
from headrace.testbed import Testbed, TestbedSpec
from headrace.topology import Topology

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)
QUICK = ProbeEffort(
    budget_s=6, tournament_us=5000, crowd_us=5000, quiet_us=5000, sharing_us=5000, most_bytes=1e6
)
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
        assert_close(link.beta_us_per_mb, actual.beta_us_per_mb)
    found, expected = uplinks(profile.topology), uplinks(truth)
    assert found.keys() == expected.keys()
    for links, beta in found.items():
        assert_close(beta, expected[links])
    assert profile.took_s < 15


def assert_close(beta: float, actual: float) -> None:
    # where its timers fire late, a busy kernel's token bucket stays below its rate, never above
    assert 0.9 * actual < beta < 1.25 * actual


def uplinks(topology: Topology) -> dict[tuple[int, ...], float]:
    return {s.links: s.beta_us_per_mb for s in topology.shared if "uplink" in s.name}


@pytest.fixture
def loopback():
    with Testbed.up(SPEC, fallback=True) as testbed:
        yield testbed


@pytest.mark.timing  # a transport that others keep waiting looks slower than its rate
def test_without_namespaces_the_transport_keeps_the_rates(loopback: Testbed) -> None:
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK)
    assert profile.groups == ((0, 2), (1, 3))


def test_several_ranks_may_share_a_host(loopback: Testbed) -> None:
    profile = measure_testbed(loopback, ["host1", "host1", "host0"], effort=QUICK)
    assert profile.topology.rank_host == (0, 0, 1)
    # what a job's ranks can compare themselves with
    expected = tuple(loopback.host(name).address for name in ("host1", "host0"))
    assert profile.topology.addresses == expected


class Killer:
    """Remembers the agents' processes, and ends one when measuring comes to a certain point."""

    def __init__(self, testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: dict[str, subprocess.Popen[str]] = {}
        self.popen = testbed.popen
        monkeypatch.setattr(testbed, "popen", self.remember)

    def remember(self, host: str, *arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        self.started[host] = self.popen(host, *arguments, **options)
        return self.started[host]

    def at(self, deaths: dict[str, str], kind: int = signal.SIGKILL):
        """Return a progress callback: the host of the first point that it hears of dies there."""

        def progress(what: str, _share: float) -> None:
            for point in [point for point in deaths if what.startswith(point)]:
                self.started[deaths.pop(point)].send_signal(kind)

        return progress

    def all_ended(self) -> bool:
        return all(process.poll() is not None for process in self.started.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("point", ["round-robin, round 3", "link", "probing shared capacities"])
def test_a_host_that_dies_in_the_middle_is_survived(
    loopback: Testbed, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    killer = Killer(loopback, monkeypatch)
    progress = killer.at({point: "host2"})
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK, progress=progress)
    assert profile.topology.hosts == ("host0", "host1", "host3")
    assert profile.topology.ranks == 3
    assert len(profile.topology.links) == 6
    assert sorted(rank for group in profile.groups for rank in group) == [0, 1, 2]
    [lost] = profile.provenance["lost"]
    assert (lost["rank"], lost["host"]) == (1, "host2")
    assert "host2" in lost["reason"]
    assert np.isfinite(profile.matrix("bytes_per_s")[~np.eye(3, dtype=bool)]).all()
    assert killer.all_ended()


def test_the_loss_of_the_leader_is_survived(
    loopback: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(loopback, monkeypatch)
    progress = killer.at({"link": "host0"})
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK, progress=progress)
    assert profile.topology.hosts == ("host2", "host1", "host3")
    assert killer.all_ended()


def test_a_host_that_hangs_is_survived(loopback: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_SURVIVORS_S", 1.0)
    monkeypatch.setattr(agents, "_AGENT", (sys.executable, "-c", SHORT_TIMEOUT_AGENT))
    killer = Killer(loopback, monkeypatch)
    progress = killer.at({"link": "host3"}, signal.SIGSTOP)
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK, progress=progress)
    assert profile.topology.hosts == ("host0", "host2", "host1")
    assert profile.provenance["lost"][0]["host"] == "host3"
    assert killer.all_ended()


SHORT_TIMEOUT_AGENT = """
import functools, sys
from headrace.collectives.measure.probes.group_prober import GroupProber
from headrace.collectives.measure.launch.agent import measure_as_rank
from headrace.launch.worker import run_worker
survey = sys.modules["headrace.collectives.measure.survey"]
survey.GroupProber = functools.partial(GroupProber, deadline_s=2.0, idle_timeout_s=5.0)
run_worker(measure_as_rank)
"""


def test_hosts_that_die_again_and_again_end_the_measuring(
    loopback: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(loopback, monkeypatch)
    progress = killer.at({"round-robin, round 2": "host2", "link": "host1"})
    effort = replace(QUICK, most_losses=1)
    with pytest.raises(CommunicationError, match=r"'host1' \(rank 2\) was ended by signal 9"):
        measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=effort, progress=progress)
    assert killer.all_ended()


def test_a_host_without_others_is_no_network(
    loopback: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(loopback, monkeypatch)
    progress = killer.at({"link": "host2"})
    with pytest.raises(CommunicationError, match=r"'host2' \(rank 1\) was ended by signal 9"):
        measure_testbed(loopback, hosts_in([0, 2]), effort=QUICK, progress=progress)
    assert killer.all_ended()


def test_an_unknown_host_is_refused(loopback: Testbed) -> None:
    with pytest.raises(TestbedError, match="no host 'host9'"):
        measure_testbed(loopback, ["host0", "host9"])


def test_an_agent_starts_without_torch() -> None:
    code = (
        "import sys, headrace.collectives.measure.launch.agent as _; "
        "sys.exit({'torch', 'sklearn', 'scipy'} & set(sys.modules) != set())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
