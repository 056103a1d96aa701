"""Estimated changes of a network, and the baselines of every plan."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.adapt.observe.network import KnownNetwork
from headrace.collectives.adapt.observe.port_changes import PortRates, bandwidth, topology_ports
from headrace.collectives.adapt.observe.traffic import Traffic
from headrace.topology.presets import uniform

TOPOLOGY = uniform(4)
OUT = next(
    (port.name,)
    for port in topology_ports(TOPOLOGY)
    if all(TOPOLOGY.links[link].src == 0 for link in port.links)
)


def traffic(factors: dict[str, float], scale: float = 1.0) -> Traffic:
    """Traffic of connections at these rates of ports, within the limits of a plan."""
    rates = bandwidth(PortRates(factors=factors).apply(TOPOLOGY)) * scale
    np.fill_diagonal(rates, np.nan)
    sent = np.ones((4, 4)) - np.eye(4)
    return Traffic(sent_bytes=sent, rate_bytes_per_s=rates, rtt_us=np.full((4, 4), 100.0))


def test_nothing_is_known_to_have_changed_before_anything_was_seen() -> None:
    network = KnownNetwork(TOPOLOGY)
    assert network.changes(traffic({})) == {}
    assert not network.has_baseline


def test_estimates_and_accepted_changes() -> None:
    network = KnownNetwork(TOPOLOGY)
    network.add_baseline(traffic({}))
    found = network.changes(traffic(dict.fromkeys(OUT, 0.4)))
    assert found == pytest.approx(dict.fromkeys(OUT, 0.4), rel=0.01)
    network.update(found)
    assert network.topology.digest != TOPOLOGY.digest
    # until it is settled, the old normal is what is compared with
    network.update(network.changes(traffic(dict.fromkeys(OUT, 0.2))))
    assert network.rates.factors == pytest.approx(dict.fromkeys(OUT, 0.2), rel=0.01)
    network.accept()
    assert not network.has_baseline
    network.add_baseline(traffic(dict.fromkeys(OUT, 0.2)))
    network.accept()
    assert network.has_baseline, "nothing is forgotten while the same is believed"
    network.update(network.changes(traffic({})))
    assert network.topology.digest == TOPOLOGY.digest


def test_what_was_normal_under_a_plan_is_known_when_it_serves_again() -> None:
    network = KnownNetwork(TOPOLOGY)
    network.add_baseline(traffic({}))
    network.switch_plan("first", "second")
    assert not network.has_baseline
    network.add_baseline(traffic({}, scale=0.5))  # another plan, other rates
    network.switch_plan("second", "tuned", alike=True)
    assert network.has_baseline
    network.switch_plan("tuned", "first")
    assert network.has_baseline
    found = network.changes(traffic(dict.fromkeys(OUT, 0.4)))
    assert found == pytest.approx(dict.fromkeys(OUT, 0.4), rel=0.01)


def test_measuring_begins_anew() -> None:
    network = KnownNetwork(TOPOLOGY)
    network.add_baseline(traffic({}))
    network.update(dict.fromkeys(OUT, 0.4))
    network.measured(uniform(4))
    assert not network.has_baseline
    assert not network.rates.factors


def test_a_lower_bound_that_is_passed_is_known_at_once_and_no_change() -> None:
    bounds = tuple(replace(s, at_least=True) for s in TOPOLOGY.shared)
    network = KnownNetwork(replace(TOPOLOGY, shared=bounds))
    network.add_baseline(traffic({}))
    assert network.changes(traffic({}, scale=2.0)) == {}
    assert network.slow == ()
    assert not network.rates.factors
    for was, now in zip(bounds, network.topology.shared, strict=True):
        assert now.at_least
        assert now.beta_us_per_mb <= was.beta_us_per_mb
    assert network.topology.shared != bounds
