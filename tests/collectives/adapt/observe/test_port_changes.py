"""Which port has changed, from what connections achieve; and the topology that follows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headrace.collectives.adapt.observe.port_changes import (
    PortRates,
    bandwidth,
    changed_ports,
    raised,
    topology_ports,
)
from headrace.topology import Link, Topology
from headrace.topology.presets import uniform
from tests.collectives.adapt.clusters import network


def rates(topology: Topology, seed: int = 0, noise: float = 0.05) -> np.ndarray:
    random = np.random.default_rng(seed)
    known = bandwidth(topology)
    return known * np.exp(random.normal(0, noise, known.shape))


@pytest.mark.parametrize(
    "factors",
    [
        {"host3-out": 0.4, "host3-in": 0.4},
        {"host0-out": 0.5},
        {"host6-in": 0.3},
        {"rack0-uplink-out": 0.2, "rack0-uplink-in": 0.2},
        {"rack1-uplink-in": 0.25},
        {"host1-out": 0.4, "host1-in": 0.4, "rack1-uplink-out": 0.1, "rack1-uplink-in": 0.1},
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_ports_that_changed_are_found_with_their_factors(
    tmp_path: Path, factors: dict[str, float], seed: int
) -> None:
    # uplinks no faster than hosts, so that each is the narrowest on its way
    topology = network(tmp_path, uplink="400mbit")
    now = PortRates(factors=factors).apply(topology)
    found = changed_ports(topology, rates(topology, seed), rates(now, seed + 100))
    # with two racks, one's way out is the other's way in
    other = {"rack0-uplink-out": "rack1-uplink-in", "rack1-uplink-out": "rack0-uplink-in"}
    other |= {b: a for a, b in other.items()}
    assert {min(name, other.get(name, name)) for name in found} == {
        min(name, other.get(name, name)) for name in factors
    }
    for name, factor in found.items():
        wanted = factors.get(name, factors.get(other.get(name, "")))
        assert factor == pytest.approx(wanted, rel=0.15)
    # and back
    back = changed_ports(topology, rates(now, seed), rates(topology, seed + 100), recovering=found)
    assert back
    assert not PortRates(factors=found).changed(back).factors.keys() - found.keys()


@pytest.mark.parametrize("seed", range(20))
def test_noise_explains_nothing(tmp_path: Path, seed: int) -> None:
    topology = network(tmp_path)
    assert not changed_ports(topology, rates(topology, seed, 0.1), rates(topology, seed + 100, 0.1))


def test_connections_that_were_not_used_are_no_evidence(tmp_path: Path) -> None:
    topology = network(tmp_path)
    before, now = rates(topology), rates(PortRates(factors={"host3-out": 0.4}).apply(topology))
    now[np.random.default_rng(0).random(now.shape) < 0.5] = np.nan
    [(name, factor)] = changed_ports(topology, before, now).items()
    assert name == "host3-out"
    assert factor == pytest.approx(0.4, rel=0.15)


def test_a_change_that_is_undone_leaves_nothing() -> None:
    cut = PortRates().changed({"host0-out": 0.4, "host1-in": 0.5})
    assert cut.changed({"host0-out": 2.45}).factors == {"host1-in": 0.5}
    assert PortRates().changed({"host0-out": 1.03}).factors == {}
    assert cut.described() == "host0-out at 40%, host1-in at 50%"


def test_links_follow_their_narrowest_port(tmp_path: Path) -> None:
    topology = network(tmp_path, uplink="200mbit")
    now = PortRates(factors={"host0-out": 0.25}).apply(topology)
    before_bw, now_bw = bandwidth(topology), bandwidth(now)
    # inside the rack the host's way out was the limit; across, the uplink was, at half of that
    assert now_bw[0, 1] == pytest.approx(before_bw[0, 1] / 4)
    assert now_bw[0, 5] == pytest.approx(before_bw[0, 5] / 2)
    assert now_bw[1, 5] == before_bw[1, 5]
    assert PortRates().apply(topology) is topology


def test_a_host_that_was_not_measured_as_shared_becomes_so() -> None:
    links = tuple(
        Link(src=a, dst=b, alpha_us=50.0, beta_us_per_mb=20000.0)
        for a in range(3)
        for b in range(3)
        if a != b
    )
    plain = Topology(name="t", hosts=("a", "b", "c"), rank_host=(0, 1, 2), links=links)
    assert [port.name for port in topology_ports(plain)] == [
        "a-out",
        "a-in",
        "b-out",
        "b-in",
        "c-out",
        "c-in",
    ]
    now = PortRates(factors={"b-out": 0.5}).apply(plain)
    [capacity] = now.shared
    assert (capacity.name, capacity.beta_us_per_mb) == ("b-out", 40000.0)
    assert {now.links[index].beta_us_per_mb for index in capacity.links} == {40000.0}
    assert sum(link.beta_us_per_mb == 20000.0 for link in now.links) == 4


def test_what_got_slow_together_recovers_together() -> None:
    cut = PortRates().changed({"a-out": 0.4, "a-in": 0.4}).changed({"b": 0.5})
    assert cut.changed({"a-out": 1.4}).factors == {"b": 0.5}
    assert cut.changed({"b": 0.8}).factors == {"a-out": 0.4, "a-in": 0.4, "b": 0.4}


@pytest.mark.parametrize("slower", [True, False])
def test_a_change_that_is_known_is_explained_by_no_other(slower: bool) -> None:
    topology = uniform(4)
    before = bandwidth(topology)
    now = before.copy()
    now[0, :] *= 0.4
    now[:, 2] *= 3.0
    found = changed_ports(topology, before, now, slower=slower)
    assert found
    assert all((factor < 1) is slower for factor in found.values())


def test_connections_that_get_faster_within_a_ports_limit_say_nothing_of_it(
    tmp_path: Path,
) -> None:
    """A host's port was reported at 291% when its ranks merely had less to wait for.

    All connections of a host had a third of its limit while another host was slow, and came near
    the limit later.
    """
    topology = network(tmp_path, uplink="400mbit")
    now = bandwidth(topology)
    before = now.copy()
    before[3, :] /= 2.91
    before[:, 3] /= 2.91
    assert changed_ports(topology, before, now) == {}
    assert changed_ports(topology, before, now, slower=False) == {}
    # more than the limit is a change, by as much as that is
    faster = changed_ports(topology, before, now * np.where(before < now, 2.0, 1.0))
    assert faster == pytest.approx({"host3-out": 2.0, "host3-in": 2.0})
    # a cut beside it is found as before
    now[5, :] *= 0.4
    assert changed_ports(topology, before, now) == pytest.approx({"host5-out": 0.4})


def test_a_lower_bound_rises_and_is_no_change(tmp_path: Path) -> None:
    topology = network(tmp_path, uplink="400mbit")
    bounds = tuple(replace(s, at_least=s.name == "host3-in") for s in topology.shared)
    topology = replace(topology, shared=bounds)
    before = bandwidth(topology)
    now = before.copy()
    now[:, 3] *= 2.0
    assert changed_ports(topology, before, now) == {}
    known = raised(topology, now, np.ones_like(now))
    changed = {
        a.name: a.beta_us_per_mb / b.beta_us_per_mb
        for a, b in zip(topology.shared, known.shared, strict=True)
        if a != b
    }
    assert changed == pytest.approx({"host3-in": 2.0}, rel=1e-3)
    assert raised(known, before, np.ones_like(now)) is known, "a bound does not fall"
    # a connection that carries next to nothing is no evidence
    assert raised(topology, now, np.where(now > before, 0.0, 1.0)) is topology
    # what passes less than before is a change all the same
    now[:, 3] = before[:, 3] * 0.3
    assert changed_ports(topology, before, now) == pytest.approx({"host3-in": 0.3})
