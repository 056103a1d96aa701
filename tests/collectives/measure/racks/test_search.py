from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.measure.probes.permutation_traffic import cyclic_shifts, mixed_directions
from headrace.collectives.measure.probes.recorder import Recorder, Series, Site
from headrace.collectives.measure.probes.round_robin import rounds as disjoint_pairs
from headrace.collectives.measure.racks.fluid import Rates, Rounds, predict, seen
from headrace.collectives.measure.racks.likelihood import fit_racks
from headrace.collectives.measure.racks.partition import Grouping, labels_of
from headrace.collectives.measure.racks.search import concurrent_rounds, search_racks
from tests.collectives.measure.network import Network, shuffled_racks

SAMPLED = pytest.mark.sampled(2)

HOST = 25.0  # bytes per us


def everything(hosts: int) -> list[list[tuple[int, int]]]:
    plan = [list(m) for pairs in disjoint_pairs(hosts) for m in (pairs, [(b, a) for a, b in pairs])]
    return [*plan, *cyclic_shifts(hosts), *mixed_directions(hosts)]


def made(
    groups: Grouping,
    *,
    uplink: float = HOST,
    far: float = np.inf,
    core: float = np.inf,
    slow: dict[int, float] | None = None,
    noise: float = 0.0,
    seed: int = 0,
    fair: bool = False,
) -> tuple[Rounds, np.ndarray]:
    """Rounds of such racks, and the bandwidths of disjoint pairs (bytes/s)."""
    n = sum(map(len, groups))
    plan = everything(n)
    size, dst = np.zeros((len(plan), n)), np.full((len(plan), n), -1)
    for index, pairs in enumerate(plan):
        for a, b in pairs:
            size[index, a], dst[index, a] = 20_000 * HOST, b
        dst[index][dst[index] < 0] = np.setdiff1d(np.arange(n), dst[index])
    empty = np.where(size > 0, 1.0, np.nan)
    rounds = Rounds(size=size, dst=dst, src=np.argsort(dst, axis=1), took_us=empty, fair=fair)
    host = np.full((1, n), HOST)
    for rank, rate in (slow or {}).items():
        host[0, rank] = rate
    rates = Rates(
        host=host, uplink=np.full((1, n), uplink), far=np.array([far]), core=np.array([core])
    )
    random = np.random.default_rng(seed)
    took = seen(rounds, predict(rounds, labels_of(groups)[None], rates))[0]
    took = np.where(size > 0, took * np.exp(noise * random.standard_normal(took.shape)), np.nan)
    bandwidth = np.ones((n, n))
    for index, pairs in enumerate(plan[: 2 * len(disjoint_pairs(n))]):
        for a, b in pairs:
            bandwidth[a, b] = size[index, a] / took[index, a] * 1e6
    return replace(rounds, took_us=took, fair=False), bandwidth


def partitions(members: tuple[int, ...]) -> Iterator[Grouping]:
    if not members:
        yield ()
        return
    first, rest = members[0], members[1:]
    for smaller in partitions(rest):
        yield tuple(sorted(((first,), *smaller)))
        for index, group in enumerate(smaller):
            grown = (*smaller[:index], (first, *group), *smaller[index + 1 :])
            yield tuple(sorted(grown))


@SAMPLED
@pytest.mark.parametrize("truth", [((0, 3), (1, 2, 4)), ((0, 4), (1,), (2, 3))])
def test_of_all_partitions_the_true_one_scores_best(truth: Grouping) -> None:
    rounds, bandwidth = made(truth)
    scores = {groups: fit_racks(rounds, groups).score for groups in partitions((0, 1, 2, 3, 4))}
    assert len(scores) == 52
    assert max(scores, key=lambda groups: scores[groups]) == truth
    assert search_racks(rounds, [bandwidth]) == truth


@SAMPLED
@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("uplink", [0.5 * HOST, HOST])
@pytest.mark.parametrize(
    "truth",
    [
        ((0, 3, 5, 6), (1, 2, 4, 7)),
        ((0, 7), (1, 4), (2, 5), (3, 6)),
        ((0, 2, 5, 6, 7), (1, 3), (4,)),
    ],
)
def test_racks_that_no_pair_shows_are_found_through_noise(
    truth: Grouping, uplink: float, fair: bool
) -> None:
    rounds, bandwidth = made(truth, uplink=uplink, noise=0.1, fair=fair)
    assert search_racks(rounds, [bandwidth]) == truth


def test_rates_come_back() -> None:
    truth = ((0, 3, 5, 6), (1, 2, 4, 7))
    rounds, _ = made(truth, uplink=0.75 * HOST)
    rates = fit_racks(rounds, truth).rates
    assert rates.host[0] == pytest.approx(np.full(8, HOST), rel=0.05)
    assert rates.uplink[0] == pytest.approx(np.full(8, 0.75 * HOST), rel=0.1)


@SAMPLED
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_a_network_without_racks_is_one_group(noise: float, seed: int) -> None:
    rounds, bandwidth = made((tuple(range(8)),), noise=noise, seed=seed)
    assert search_racks(rounds, [bandwidth]) == (tuple(range(8)),)


@SAMPLED
def test_a_slow_host_is_no_rack() -> None:
    rounds, bandwidth = made((tuple(range(8)),), slow={2: 0.4 * HOST}, noise=0.05)
    assert search_racks(rounds, [bandwidth]) == (tuple(range(8)),)


@SAMPLED
@pytest.mark.parametrize("hosts", [8, 12])
def test_what_everyone_shares_is_no_rack(hosts: int) -> None:
    everyone = (tuple(range(hosts)),)
    rounds, bandwidth = made(everyone, core=0.6 * hosts * HOST, noise=0.1)
    assert search_racks(rounds, [bandwidth]) == everyone


def test_pairs_that_are_far_without_sharing_anything_are_racks_too() -> None:
    truth = ((0, 3, 5, 6), (1, 2, 4, 7))
    rounds, bandwidth = made(truth, uplink=np.inf, far=0.4 * HOST, noise=0.05)
    assert search_racks(rounds, [bandwidth]) == truth


def test_rounds_are_the_longest_transfers_of_everyone() -> None:
    topology, _ = shuffled_racks((2, 2, 1), 0)
    recorder = Recorder(Network(topology))
    site = Site.of([topology.hosts[host] for host in topology.rank_host])
    for sent in (8e4, 8e5):
        recorder.bulk(Series.ROUND_ROBIN, [(0, 3), (4, 1)], [sent, sent / 2], 1)
    recorder.bulk(Series.PERMUTATION, [(i, (i + 1) % 5) for i in range(5)], [4e5] * 5, 1)
    recorder.bulk(Series.UNLOADED, [(0, 1)], [4e5], 1)
    recorder.echo([(0, 1)], 4)
    rounds = concurrent_rounds(recorder.table(range(5)), site)
    assert rounds.hosts == 5
    assert rounds.size.tolist() == [[8e5, 0, 0, 0, 4e5], [4e5] * 5]
    assert rounds.dst[0, [0, 4]].tolist() == [3, 1]
    assert (np.sort(rounds.dst, axis=1) == np.arange(5)).all()
    assert (np.take_along_axis(rounds.dst, rounds.src, axis=1) == np.arange(5)).all()
    assert (np.isfinite(rounds.took_us) == (rounds.size > 0)).all()
