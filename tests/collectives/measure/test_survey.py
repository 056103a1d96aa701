from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.measure.budget import Budget, ProbeEffort
from headrace.collectives.measure.probes.probe import Manner, Probe
from headrace.collectives.measure.probes.recorder import Series, Site
from headrace.collectives.measure.survey import survey
from headrace.errors import CommunicationError
from headrace.topology import Link, SharedCapacity, Topology
from tests.collectives.measure.network import Network, shuffled_racks

SAMPLED = pytest.mark.sampled(2)

PLENTY = ProbeEffort(budget_s=1000.0)


def measured(network: Network, **effort: float):
    topology = network.topology
    hosts = [topology.hosts[host] for host in topology.rank_host]
    return survey(network, hosts, effort=replace(PLENTY, **effort), clock=network.clock)


@SAMPLED
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


@SAMPLED
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


def test_probes_of_a_round_and_unloaded_probes_keep_hosts_apart() -> None:
    topology, _ = shuffled_racks((2, 2), 3)
    network = Network(topology)
    profile = measured(network)
    samples = profile.samples
    for probe in np.unique(samples["probe"]):
        rows = samples["probe"] == probe
        first = rows & (samples["repeat"] == 0)
        ends = [*samples["src"][first], *samples["dst"][first]]
        if samples["stage"][rows][0] == Series.ROUND_ROBIN:
            assert len(ends) == len(set(ends))
        if samples["stage"][rows][0] == Series.UNLOADED:
            assert first.sum() == 1
    probed = set(zip(samples["src"].tolist(), samples["dst"].tolist(), strict=True))
    assert probed == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert {Manner.AT_ONCE, Manner.ONE_AFTER_ANOTHER} == set(samples["manner"].tolist())


def test_measuring_four_hosts_takes_a_few_seconds_of_network_time() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    network = Network(topology, noise=0.05)
    measured(network)
    assert network.total_us < 6e6


@SAMPLED
def test_many_hosts_take_rounds_not_pairs() -> None:
    topology, truth = shuffled_racks((8, 8), 0)
    network = Network(topology, noise=0.05)
    profile = measured(network)
    assert {frozenset(group) for group in profile.groups} == truth
    stages = [int(s) for s in profile.samples["stage"]]
    probes = dict(zip(profile.samples["probe"].tolist(), stages, strict=True))
    rounds = sum(stage == Series.ROUND_ROBIN for stage in probes.values())
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


def test_every_pair_has_its_bandwidth_and_latency() -> None:
    topology, _ = shuffled_racks((2, 2), 1)
    profile = measured(Network(topology, noise=0.1, call_us=10.0))
    off = ~np.eye(4, dtype=bool)
    least, typical = profile.matrix("min_rtt_us"), profile.matrix("median_rtt_us")
    assert (least[off] < typical[off]).all()
    # an echo is there and back, and the call
    assert typical[off] == pytest.approx(90.0, rel=0.1)
    assert profile.matrix("kernel_rtt_us")[off] == pytest.approx(80.0)
    assert np.isnan(np.diag(typical)).all()
    single = (profile.samples["chunks"] == 1) & (profile.samples["stage"] == Series.ROUND_ROBIN)
    assert single.sum() == 12 * PLENTY.echoes


@SAMPLED
def test_racks_behind_uplinks_as_fast_as_a_host_show_under_permutation_traffic() -> None:
    topology, truth = shuffled_racks((4, 4), 3, host=100, uplink=100)
    network = Network(topology, noise=0.05)
    profile = measured(network)
    assert {frozenset(group) for group in profile.groups} == truth
    uplinks = [s for s in profile.topology.shared if s.name.startswith("uplink")]
    assert len(uplinks) == 4
    for uplink in uplinks:
        assert uplink.beta_us_per_mb == pytest.approx(80_000, rel=0.1)


@SAMPLED
def test_a_uniform_network_shows_no_racks_under_permutation_traffic_either() -> None:
    topology, _ = shuffled_racks((4, 4), 3, host=100, uplink=1000)
    profile = measured(Network(topology, noise=0.1))
    assert len(profile.groups) == 1


@SAMPLED
@pytest.mark.parametrize("budget_s", [4.0, 2.0])
def test_a_short_budget_is_kept_and_what_was_cut_is_said(budget_s: float) -> None:
    topology, truth = shuffled_racks((8, 8), 0)
    network = Network(topology, noise=0.02)
    profile = measured(network, budget_s=budget_s)
    assert network.clock() < budget_s + 1.0  # one of each sort of link is probed come what may
    assert {frozenset(group) for group in profile.groups} == truth
    assert profile.provenance["cut"]
    assert "cut" in dict(profile.summary())
    assert len(profile.topology.links) == 16 * 15
    for link, actual in zip(profile.topology.links, topology.links, strict=True):
        assert link.beta_us_per_mb == pytest.approx(actual.beta_us_per_mb, rel=0.3)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 2)])
def test_no_time_at_all_still_gives_a_profile(sizes: tuple[int, ...]) -> None:
    """Of an odd number of hosts one sends nothing then: each host was a rack of its own."""
    topology, _ = shuffled_racks(sizes, 0)
    profile = measured(Network(topology), budget_s=1e-6)
    hosts = sum(sizes)
    assert len(profile.topology.links) == hosts * (hosts - 1)
    assert len(profile.groups) < hosts
    assert any("rounds left out" in cut for cut in profile.provenance["cut"])


def test_with_time_nothing_is_cut() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    assert measured(Network(topology)).provenance["cut"] == []


@SAMPLED
@pytest.mark.parametrize("seed", range(12))
def test_the_others_are_measured_whichever_ranks_are_lost_at_any_time(seed: int) -> None:
    random = np.random.default_rng(seed)
    ranks = random.permutation(8)[: random.integers(1, 4)].tolist()
    when = random.integers(0, 120, len(ranks)).tolist()
    topology, truth = shuffled_racks((4, 4), seed)
    deaths = dict(zip(sorted(when), ranks, strict=True))
    network = Network(topology, noise=0.02, deaths=deaths)
    profile = measured(network)
    dead = set(network.lost)
    left = [rank for rank in range(8) if rank not in dead]
    assert [row["rank"] for row in profile.provenance["lost"]] == sorted(dead)
    assert profile.topology.hosts == tuple(
        topology.hosts[topology.rank_host[rank]] for rank in left
    )
    found = {frozenset(left[rank] for rank in group) for group in profile.groups}
    assert found == {group - dead for group in truth if group - dead}
    for link in profile.topology.links:
        actual = topology.links[topology.link_index[left[link.src], left[link.dst]]]
        assert link.beta_us_per_mb == pytest.approx(actual.beta_us_per_mb, rel=0.1)


@SAMPLED
def test_what_was_found_before_a_loss_is_not_measured_again() -> None:
    topology, _ = shuffled_racks((4, 4), 0)
    undisturbed = Network(topology)
    measured(undisturbed)
    late = len(undisturbed.probes) - 1
    network = Network(topology, deaths={late: 3})
    measured(network)
    echoes = [probe for probe in network.probes if probe.is_echo]
    assert len(echoes) == len([probe for probe in undisturbed.probes if probe.is_echo])


class Losing(Network):
    """Loses two ranks after the fifth probe, the second while the survey recovers."""

    def measure(self, probe: Probe) -> np.ndarray:
        if len(self.probes) == 5 and len(self.lost) < 2:
            self.deaths[5] = len(self.lost)
        return super().measure(probe)


def test_the_waits_for_lost_hosts_are_left_out_of_the_budget_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two losses in a row the first wait counted twice: the survey took longer than allowed."""
    waits_s: list[float] = []
    monkeypatch.setattr(Budget, "exclude", lambda _, seconds: waits_s.append(seconds))
    topology, _ = shuffled_racks((3, 3), 0)
    measured(Losing(topology))
    assert waits_s == pytest.approx([1.0, 1.0])  # as `Network` takes to notice a loss


def test_a_loss_without_survivors_is_an_error() -> None:
    topology, _ = shuffled_racks((2, 2), 0)
    network = Network(topology, deaths={5: 1})
    network.survive = refuse
    with pytest.raises(CommunicationError, match="rank 1 hung up"):
        measured(network)


def refuse(error: CommunicationError) -> None:
    raise error


@SAMPLED
@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2, 2), (5, 2, 1)])
def test_small_racks_behind_uplinks_as_fast_as_a_host_are_found(
    sizes: tuple[int, ...],
) -> None:
    topology, truth = shuffled_racks(sizes, 1, host=100, uplink=100)
    profile = measured(Network(topology, noise=0.05))
    assert {frozenset(group) for group in profile.groups} == truth
