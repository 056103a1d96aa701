"""The cut around a rank stands for a linear program's prices only where these are the same."""

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.instruments.perturbed import perturbed
from headrace.collectives.plan.bound.around import limits
from headrace.collectives.plan.flows.rates import Flows
from headrace.topology import Topology, presets
from tests.collectives.plan.random_sends import random_topology


def _by_program(topology: Topology, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Prices of the linear program, which is asked for where links share a capacity."""
    flows = Flows(topology)
    flows._shares = True
    return flows._flow_prices(tuple(pairs), np.ones(len(pairs)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["into", "out of"])
def test_where_it_limits_the_linear_program_says_the_same(way: str) -> None:
    rng = random.Random(3)
    limited = 0
    for number in range(150):
        n = rng.randrange(2, 9)
        topology = replace(random_topology(rng, n, whole=number % 3 == 0), shared=())
        rank, links = rng.randrange(n), topology.columns
        others = [other for other in range(n) if other != rank]
        pairs = [(other, rank) if way == "into" else (rank, other) for other in others]
        end = links.dst if way == "into" else links.src
        ends = (links.src, links.dst) if way == "into" else (links.dst, links.src)
        weight = np.where(np.arange(n) == rank, 0.0, 1.0)
        prices = _by_program(topology, pairs)
        if limits(*ends, 1.0 / links.beta_us_per_mb, rank, weight):
            limited += 1
            np.testing.assert_allclose(prices / prices.max(), end == rank, atol=1e-9)
        rate = Flows(topology).rate(pairs)
        assert rate.us_per_mb == pytest.approx(_rate(topology, prices, pairs), rel=1e-9)
    assert 30 < limited < 140


def _rate(topology: Topology, prices: np.ndarray, pairs: list[tuple[int, int]]) -> float:
    flows = Flows(topology)
    paid = sum(flows._distances(flows._uses.T @ prices)[s, t] for s, t in pairs)
    return paid / (float(prices @ flows._capacity) * flows._unit)


def test_links_elsewhere_that_are_as_tight_are_no_matter_for_it() -> None:
    """Two cuts as tight as each other have prices of their own: the program chooses."""
    ring = presets.ring(4)
    one_way = replace(
        ring, links=tuple(k for k in ring.links if (k.src + 1) % 4 == k.dst), shared=()
    )
    links, weight = one_way.columns, np.array([0.0, 1.0, 1.0, 1.0])
    assert limits(links.src, links.dst, np.ones(4), 0, weight)
    assert not limits(links.src, links.dst, np.array([1.0, 2 / 3, 1.0, 1.0])[links.src - 1], 0,
                      weight)  # fmt: skip


def test_most_ranks_of_a_torus_are_limited_by_their_own_links() -> None:
    topology = perturbed(presets.torus((8, 8)), 1)
    links = topology.columns
    found = [
        limits(links.src, links.dst, 1.0 / links.beta_us_per_mb, rank,
               np.where(np.arange(64) == rank, 0.0, 1.0))
        for rank in range(64)
    ]  # fmt: skip
    assert sum(found) > 55
