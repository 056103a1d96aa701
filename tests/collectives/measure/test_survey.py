import numpy as np
import pytest

from headrace.collectives.measure.probe import Manner
from headrace.collectives.measure.recorder import Site, Stage
from headrace.collectives.measure.survey import survey
from headrace.topology import Link, SharedCapacity, Topology
from tests.collectives.measure.network import Network, shuffled_racks


def measured(network: Network):
    topology = network.topology
    return survey(network, [topology.hosts[host] for host in topology.rank_host])


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 4), (2, 2, 2), (3, 2, 1)])
def test_a_rack_network_comes_back_as_it_is(sizes: tuple[int, ...]) -> None:
    topology, truth = shuffled_racks(sizes, 5)
    profile = measured(Network(topology, noise=0.02, burst_bytes=32_768, seed=1))
    assert {frozenset(group) for group in profile.groups} == truth
    for link, actual in zip(profile.topology.links, topology.links, strict=True):
        assert (link.src, link.dst) == (actual.src, actual.dst)
        assert link.beta_us_per_mb == pytest.approx(actual.beta_us_per_mb, rel=0.1)
        assert link.alpha_us == pytest.approx(actual.alpha_us, rel=0.3)
    compare_shared(profile.topology, topology)


def compare_shared(found: Topology, actual: Topology) -> None:
    """Every capacity is over the right links; all that several flows can fill are there."""
    known = {frozenset(s.links): s.beta_us_per_mb for s in actual.shared}
    mine = {frozenset(s.links): s.beta_us_per_mb for s in found.shared}
    for links, beta in mine.items():
        assert beta == pytest.approx(known[links], rel=0.12)
    for links, beta in known.items():
        # a lone host's NIC and its rack's uplink have the same links: the slower one shows
        assert links in mine or len(links) < 2, f"no capacity of {beta} found over {links}"


def test_racks_whose_uplinks_differ_keep_their_own_rates() -> None:
    topology, _ = shuffled_racks((3, 3, 3), 2)
    slow = tuple(
        SharedCapacity(name=s.name, links=s.links, beta_us_per_mb=s.beta_us_per_mb * 2)
        if s.name in ("uplink-out-1", "uplink-in-1")
        else s
        for s in topology.shared
    )
    rack_1 = {i for s in slow if s.name in ("uplink-out-1", "uplink-in-1") for i in s.links}
    links = tuple(
        Link(
            src=k.src,
            dst=k.dst,
            alpha_us=k.alpha_us,
            beta_us_per_mb=k.beta_us_per_mb * (2 if i in rack_1 else 1),
        )
        for i, k in enumerate(topology.links)
    )
    actual = Topology(
        name="uneven",
        hosts=topology.hosts,
        rank_host=topology.rank_host,
        links=links,
        shared=slow,
    )
    compare_shared(measured(Network(actual, noise=0.01)).topology, actual)


def test_uplinks_that_no_flows_fill_are_left_out() -> None:
    topology, _ = shuffled_racks((2, 2), 0, host=100, uplink=1000)
    profile = measured(Network(topology, noise=0.02))
    assert len(profile.groups) == 1
    assert not [s for s in profile.topology.shared if s.name.startswith("uplink")]


def test_a_half_duplex_uplink_is_seen() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    profile = measured(Network(topology, half_duplex=True))
    [both] = [s for s in profile.topology.shared if "both" in s.name]
    assert both.beta_us_per_mb == pytest.approx(80_000, rel=0.1)
    assert len(both.links) == 8


def test_a_full_duplex_uplink_is_not_taken_for_half_duplex() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    profile = measured(Network(topology, noise=0.03))
    assert not [s for s in profile.topology.shared if "both" in s.name]


def test_probes_of_a_round_and_quiet_probes_keep_hosts_apart() -> None:
    topology, _ = shuffled_racks((2, 2), 3)
    network = Network(topology)
    profile = measured(network)
    samples = profile.samples
    for probe in np.unique(samples["probe"]):
        rows = samples["probe"] == probe
        first = rows & (samples["repeat"] == 0)
        ends = [*samples["src"][first], *samples["dst"][first]]
        if samples["stage"][rows][0] == Stage.TOURNAMENT:
            assert len(ends) == len(set(ends))
        if samples["stage"][rows][0] == Stage.QUIET:
            assert first.sum() == 1
    met = set(zip(samples["src"].tolist(), samples["dst"].tolist(), strict=True))
    assert met == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert {Manner.AT_ONCE, Manner.ONE_AFTER_ANOTHER} == set(samples["manner"].tolist())


def test_measuring_four_hosts_takes_a_few_seconds_of_network_time() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    network = Network(topology, noise=0.05)
    measured(network)
    assert network.total_us < 6e6


def test_many_hosts_take_rounds_not_pairs() -> None:
    topology, truth = shuffled_racks((8, 8), 0)
    network = Network(topology, noise=0.05)
    profile = measured(network)
    assert {frozenset(group) for group in profile.groups} == truth
    stages = [int(s) for s in profile.samples["stage"]]
    probes = dict(zip(profile.samples["probe"].tolist(), stages, strict=True))
    rounds = sum(stage == Stage.TOURNAMENT for stage in probes.values())
    assert rounds <= 15 * 2 * 5
    assert network.total_us < 20e6
    for link, actual in zip(profile.topology.links, topology.links, strict=True):
        assert link.beta_us_per_mb == pytest.approx(actual.beta_us_per_mb, rel=0.15)


def test_several_ranks_of_a_host_are_one_place_on_the_network() -> None:
    hosts = ("a", "b", "c")
    home = (0, 1, 0, 1, 2, 2)
    pairs = [(s, d) for s in range(6) for d in range(6) if s != d]
    links = tuple(
        Link(
            src=s,
            dst=d,
            alpha_us=10.0 if home[s] == home[d] else 50.0,
            beta_us_per_mb=1000.0 if home[s] == home[d] else 20_000.0,
        )
        for s, d in pairs
    )
    nics = tuple(
        SharedCapacity(
            name=f"nic-{name}-{host}",
            links=tuple(
                i
                for i, pair in enumerate(pairs)
                if home[pair[end]] == host and home[pair[1 - end]] != host
            ),
            beta_us_per_mb=20_000.0,
        )
        for host in range(3)
        for name, end in (("out", 0), ("in", 1))
    )
    topology = Topology(name="pairs", hosts=hosts, rank_host=home, links=links, shared=nics)
    profile = measured(Network(topology, noise=0.01))
    assert profile.topology.rank_host == home
    assert profile.groups == ((0, 1, 2, 3, 4, 5),)
    for link, actual in zip(profile.topology.links, links, strict=True):
        assert link.beta_us_per_mb == pytest.approx(actual.beta_us_per_mb, rel=0.1)
    compare_shared(profile.topology, topology)


def test_one_host_and_one_rank_are_measured_too() -> None:
    alone = Topology(name="one", hosts=("a",), rank_host=(0,), links=())
    assert measured(Network(alone)).groups == ((0,),)


def test_progress_ends_at_one_and_never_goes_back() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    seen: list[float] = []
    survey(Network(topology), topology.hosts, progress=lambda _what, share: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_site_numbers_hosts_by_first_appearance() -> None:
    site = Site.of(["b", "a", "b"])
    assert site.hosts == ("b", "a")
    assert site.members == ((0, 2), (1,))
    assert site.rank_host == (0, 1, 0)
    assert [site.rank(0, turn) for turn in range(3)] == [0, 2, 0]
