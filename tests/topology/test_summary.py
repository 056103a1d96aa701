"""The log's summary of a network."""

from dataclasses import replace

import pytest

from headrace.collectives.measure import survey
from headrace.collectives.measure.budget import ProbeEffort
from headrace.topology.summary import in_words
from tests.collectives.measure.network import Network, shuffled_racks

PLENTY = ProbeEffort(budget_s=1000.0)  # on a busy machine the usual one ends before all is measured


@pytest.mark.parametrize(
    ("sizes", "start"),
    [
        ((4, 4), "2 racks of 4 hosts, uplinks 16:1 (100 Mbit/s), hosts 400 Mbit/s"),
        ((5, 2, 1), "3 racks of 5 + 2 + 1, uplinks 8 to 20:1 (100 Mbit/s), hosts 400 Mbit/s"),
    ],
)
def test_racks_and_their_uplinks(sizes: tuple[int, ...], start: str) -> None:
    topology, _ = shuffled_racks(sizes, 1)
    hosts = [topology.hosts[host] for host in topology.rank_host]
    assert in_words(survey(Network(topology), hosts, effort=PLENTY)).startswith(start)


def test_a_uniform_network_with_a_slow_host() -> None:
    topology, _ = shuffled_racks((4,), 0)
    links = tuple(
        replace(link, beta_us_per_mb=50_000.0) if 2 in (link.src, link.dst) else link
        for link in topology.links
    )
    slow = replace(topology, links=links, shared=())
    said = in_words(survey(Network(slow), ["a", "b", "c", "d"], effort=PLENTY))
    assert said == "4 hosts and no racks among them, hosts 400 Mbit/s, c at 40% of that"
