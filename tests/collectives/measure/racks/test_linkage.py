import numpy as np
import pytest

from headrace.collectives.measure.probes.round_robin import rounds
from headrace.collectives.measure.racks.linkage import group_hosts
from headrace.errors import InputError
from tests.collectives.measure.network import Network, shuffled_racks

SAMPLED = pytest.mark.sampled(14)

SHAPES = [(2, 2), (4, 4), (2, 2, 2, 2), (3, 3), (3, 3, 3), (5, 2, 1), (8, 8, 8, 8)]


def alone(sizes: tuple[int, ...], seed: int, noise: float, uplink: float):
    """Bandwidths of pairs by themselves."""
    topology, truth = shuffled_racks(sizes, seed, uplink=uplink)
    random = np.random.default_rng(seed)
    matrix = np.ones((topology.ranks, topology.ranks))
    for link in topology.links:
        matrix[link.src, link.dst] = np.exp(noise * random.standard_normal()) / link.beta_us_per_mb
    return matrix, truth


def met(sizes: tuple[int, ...], seed: int, noise: float, uplink: float):
    """Bandwidths of a round-robin: disjoint pairs that share uplinks."""
    topology, truth = shuffled_racks(sizes, seed, uplink=uplink)
    network, random = Network(topology), np.random.default_rng(seed)
    matrix = np.ones((topology.ranks, topology.ranks))
    for meeting in rounds(topology.ranks):
        for flows in (meeting, [(b, a) for a, b in meeting]):
            for flow, rate in zip(flows, network._fair(flows), strict=True):
                matrix[flow] = rate * np.exp(noise * random.standard_normal())
    return matrix, truth


@SAMPLED
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("seen", [alone, met])
def test_racks_are_found_in_any_order_through_noise(seen, sizes, seed: int) -> None:
    matrix, truth = seen(sizes, seed, noise=0.15, uplink=100)
    assert {frozenset(group) for group in group_hosts(matrix)} == truth


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2, 2), (3, 3, 3), (5, 2, 1)])
@pytest.mark.parametrize("seen", [alone, met])
def test_racks_are_found_exactly_through_much_noise(seen, sizes, seed: int) -> None:
    matrix, truth = seen(sizes, seed, noise=0.3, uplink=100)
    assert {frozenset(group) for group in group_hosts(matrix)} == truth


def invented(hosts: int, seeds: int = 60) -> int:
    """Number of matrices of pure noise in which racks are found."""
    matrices = (
        5e7 * np.exp(0.3 * np.random.default_rng(seed).standard_normal((hosts, hosts)))
        for seed in range(seeds)
    )
    return sum(len(group_hosts(matrix)) > 1 for matrix in matrices)


@SAMPLED
def test_much_noise_looks_like_racks_only_to_few_hosts() -> None:
    """`pytest -s` prints the figures of docs/adaptation.md."""
    found = {hosts: invented(hosts) for hosts in (3, 4, 5, 6, 8, 12, 16, 32)}
    print("\nracks in 60 networks that have none, by hosts:", found)
    assert sum(found[hosts] for hosts in (8, 12, 16, 32)) == 0
    assert sum(found[hosts] for hosts in (3, 4, 5, 6)) <= 240 / 6


@SAMPLED
def test_much_noise_hides_some_racks_whose_uplinks_are_half_as_fast() -> None:
    """`pytest -s` prints the figures of docs/adaptation.md."""
    print("\nracks not found exactly, of 30 networks, alone and in a round-robin:")
    for sizes, most in (((2, 2), 15), ((2, 2, 2, 2), 15), ((4, 4), 8), ((3, 3, 3), 8)):
        missed: list[int] = []
        for seen in (alone, met):
            drawn = (seen(sizes, seed, noise=0.3, uplink=200) for seed in range(30))
            missed.append(
                sum({frozenset(group) for group in group_hosts(m)} != truth for m, truth in drawn)
            )
        print(sizes, *missed)
        assert max(missed) <= most


def test_racks_do_not_depend_on_the_order_of_hosts() -> None:
    matrix, _ = alone((5, 2, 1), 3, noise=0.3, uplink=100)
    order = np.random.default_rng(0).permutation(8)
    turned = group_hosts(matrix[np.ix_(order, order)])
    assert {frozenset(order[list(group)].tolist()) for group in turned} == {
        frozenset(group) for group in group_hosts(matrix)
    }


def test_hundreds_of_hosts_in_racks_of_many_sizes() -> None:
    sizes = tuple(range(3, 23))
    label = np.repeat(np.arange(len(sizes)), sizes)
    random = np.random.default_rng(4)
    label = label[random.permutation(len(label))]
    rate = np.where(label[:, None] == label, 4e8, 1e8)
    matrix = rate * np.exp(0.3 * random.standard_normal(rate.shape))
    truth = {tuple(np.flatnonzero(label == rack).tolist()) for rack in range(len(sizes))}
    assert set(group_hosts(matrix)) == truth


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_a_bandwidth_that_is_none_is_named(bad: float) -> None:
    matrix = np.ones((4, 4))
    matrix[3, 1] = bad
    with pytest.raises(InputError, match=r"bandwidth\[3, 1\]"):
        group_hosts(matrix)


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("seed", range(4))
def test_hosts_without_structure_are_one_group(hosts: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = 5e7 * np.exp(0.1 * random.standard_normal((hosts, hosts)))
    assert group_hosts(matrix) == (tuple(range(hosts)),)


def test_groups_are_sorted_and_complete() -> None:
    matrix, _ = alone((3, 2), 1, noise=0.0, uplink=50)
    groups = group_hosts(matrix)
    assert list(groups) == sorted(groups)
    assert sorted(host for group in groups for host in group) == [0, 1, 2, 3, 4]
