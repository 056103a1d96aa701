"""Which capacities trials show, and whether their limits were reached."""

import pytest

from headrace.collectives.measure.probes.shared_capacity import TrialOutcome, accept
from headrace.collectives.measure.probes.trials import Capacity, Trial
from headrace.collectives.measure.survey import survey
from headrace.collectives.run.bootstrap import EFFORT
from headrace.testbed import TestbedSpec
from headrace.topology import Topology
from tests.collectives.measure.network import Network

THREE_UNEVEN_RACKS = {
    "name": "three-uneven-racks",
    "defaults": {"host_rate": "300mbit", "uplink_rate": "120mbit"},
    "racks": [{"hosts": 3}, {"hosts": 2, "uplink_rate": "60mbit"}, {"hosts": 2}],
}


def into(host: int, stretch: float) -> TrialOutcome:
    """Two flows into one host, of 1 and 0.5 MB/us alone."""
    port = Capacity(kind="nic", name="h", hosts=frozenset({host}), direction="in")
    trial = Trial(capacities=(port,), flows=((1, host), (2, host)))
    return TrialOutcome(trial=trial, rates=(1.0, 0.5), stretch=stretch)


@pytest.mark.parametrize(
    ("stretch", "rate", "at_least"),
    [
        (1.2, 1.25, False),  # together more than the faster one alone: that is the limit
        (1.5, 1.0, False),  # as much as it: it fills the port alone
        (2.9, 1.0, True),  # far less than one alone: something else was in the way
    ],
)
def test_a_limit_that_was_not_reached_is_a_lower_bound(
    stretch: float, rate: float, at_least: bool
) -> None:
    """It was taken for an estimate, and what exceeded it later for a change of the network."""
    beta = {(1, 0): 1.0, (2, 0): 2.0, (0, 1): 1.0, (0, 2): 2.0, (1, 2): 1.0, (2, 1): 1.0}
    [found] = accept([into(0, stretch)], beta, 1.12)
    assert 1 / found.beta_us_per_mb == pytest.approx(rate)
    assert found.at_least is at_least


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_three_uneven_racks_are_found_with_limits_that_were_reached(noise: float) -> None:
    actual = TestbedSpec.from_table(THREE_UNEVEN_RACKS).topology("random", seed=3)
    network = Network(actual, noise=noise, burst_bytes=7000, seed=1)
    hosts = [actual.hosts[host] for host in actual.rank_host]
    found = survey(network, hosts, effort=EFFORT, clock=network.clock).topology
    true = {frozenset(s.links): s.beta_us_per_mb for s in actual.shared}
    assert len(found.shared) > 12
    for shared in found.shared:
        assert not shared.at_least, shared
        assert shared.beta_us_per_mb == pytest.approx(true[frozenset(shared.links)], rel=0.12)


def test_a_bound_is_kept_in_files_and_changes_no_digest_of_others() -> None:
    actual = TestbedSpec.from_table(THREE_UNEVEN_RACKS).topology()
    assert all("at_least" not in row for row in actual.to_head()["shared"])
    head = actual.to_head()
    head["shared"][0]["at_least"] = True
    bounded = Topology.from_head(head)
    assert bounded.shared[0].at_least
    assert not bounded.shared[1].at_least
    assert bounded.digest != actual.digest
    assert Topology.from_head(bounded.to_head()) == bounded
    assert Topology.from_head(actual.to_head()).digest == actual.digest
