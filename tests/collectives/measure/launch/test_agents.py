"""Measuring a testbed with one process per host."""

import base64
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.collectives.measure import Manner, Profile
from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.launch import agents, measure_testbed
from headrace.errors import CommunicationError, TestbedError
from headrace.testbed import Testbed, TestbedSpec
from headrace.topology import BYTES_PER_MB

PROFILE = Path(__file__).parents[3] / "golden" / "written" / "profile.headrace"
SAMPLED = pytest.mark.sampled(1)

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"
)
QUICK = ProbeEffort(
    budget_s=6, tournament_us=5000, crowd_us=5000, quiet_us=5000, sharing_us=5000, most_bytes=1e6
)
BURST_BYTES = 65_536  # a shaped link may send at once after a pause
SPEC = TestbedSpec.from_table(
    {
        "defaults": {"host_rate": "400mbit", "uplink_rate": "100mbit"},
        "racks": [{"hosts": 2}, {"hosts": 2}],
    }
)


def hosts_in(order: list[int]) -> list[str]:
    return [SPEC.hosts[index].name for index in order]


@SAMPLED
@needs_root
@pytest.mark.root
def test_no_transfer_on_a_shuffled_testbed_is_faster_than_its_links() -> None:
    """A busy machine moves data more slowly than its networks would, but never faster.

    That racks and rates are found is tested on simulated networks (`test_survey.py`), and on
    testbeds a bar of the benchmark `network` (`racks-found-...`).
    """
    seed = 2
    order = SPEC.order("random", seed=seed)
    with Testbed.up(SPEC, fallback=False) as testbed:
        profile = measure_testbed(testbed, hosts_in(order))
    truth = SPEC.topology("random", seed=seed)
    assert sorted(rank for group in profile.groups for rank in group) == [0, 1, 2, 3]
    assert profile.topology.hosts == tuple(hosts_in(order))
    for link, actual in zip(profile.topology.links, truth.links, strict=True):
        assert (link.src, link.dst) == (actual.src, actual.dst)
    sizes = profile.samples["chunks"] * profile.samples["chunk_bytes"]
    large = (profile.samples["manner"] == Manner.AT_ONCE) & (sizes > 2 * BURST_BYTES)
    assert large.any()
    ends = [profile.samples[name][large].tolist() for name in ("src", "dst")]
    links = [truth.links[truth.link_index[pair]] for pair in zip(*ends, strict=True)]
    betas = np.array([link.beta_us_per_mb for link in links])
    least_us = (sizes[large] - BURST_BYTES) * betas / BYTES_PER_MB
    assert (profile.samples["us"][large] > 0.95 * least_us).all()


@pytest.fixture
def loopback():
    with Testbed.up(SPEC, fallback=True) as testbed:
        yield testbed


@SAMPLED
def test_without_namespaces_all_pairs_are_measured(loopback: Testbed) -> None:
    """That the transport keeps to the rates there is tested with the demo."""
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK)
    assert profile.topology.hosts == tuple(hosts_in([0, 2, 1, 3]))
    assert sorted(rank for group in profile.groups for rank in group) == [0, 1, 2, 3]
    pairs = set(zip(profile.samples["src"].tolist(), profile.samples["dst"].tolist(), strict=True))
    assert pairs == {(src, dst) for src in range(4) for dst in range(4) if src != dst}


@SAMPLED
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


@SAMPLED
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


@SAMPLED
def test_the_loss_of_the_leader_is_survived(
    loopback: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(loopback, monkeypatch)
    progress = killer.at({"link": "host0"})
    profile = measure_testbed(loopback, hosts_in([0, 2, 1, 3]), effort=QUICK, progress=progress)
    assert profile.topology.hosts == ("host2", "host1", "host3")
    assert killer.all_ended()


@SAMPLED
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


@SAMPLED
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


class Told:
    """Roles of agents that say this, in this order; None is an end by a signal."""

    def __init__(self, *told: tuple[int, dict[str, Any] | None]) -> None:
        self._told = iter(told)
        self._ended: dict[int, int] = {}

    def next(self, _what: str, timeout_s: float) -> tuple[int, dict[str, Any] | None]:
        return self.receive(timeout_s)

    def receive(self, _timeout_s: float) -> tuple[int, dict[str, Any] | None]:
        rank, message = next(self._told)
        if message is None:
            self._ended[rank] = -signal.SIGKILL
        return rank, message

    def exit_code(self, rank: int) -> int | None:
        return self._ended.get(rank)

    def send(self, _rank: int, _message: dict[str, Any]) -> None: ...


def test_an_agent_that_dies_when_all_is_measured_costs_no_profile() -> None:
    """Its end came before the leader's profile, which then was passed over."""
    content = base64.b64encode(PROFILE.read_bytes()).decode()
    told: Any = Told((0, {"progress": ["done", 1.0]}), (1, None), (0, {"profile": content}))
    profile = agents._Agents(told, ["a", "b", "c"], 3).profile(lambda _what, _share: None)
    assert profile.digest == Profile.load(PROFILE).digest


def test_an_unknown_host_is_refused(loopback: Testbed) -> None:
    with pytest.raises(TestbedError, match="no host 'host9'"):
        measure_testbed(loopback, ["host0", "host9"])


def test_an_agent_starts_without_torch() -> None:
    code = (
        "import sys, headrace.collectives.measure.launch.agent as _; "
        "sys.exit({'torch', 'sklearn', 'scipy'} & set(sys.modules) != set())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
