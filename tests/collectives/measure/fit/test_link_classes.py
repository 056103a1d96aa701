from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.measure.fit.alpha_beta import LinkFit
from headrace.collectives.measure.fit.link_classes import (
    complete,
    even_out,
    outlier_pairs,
    unloaded_pairs,
)

GROUPS = ((0, 1, 2), (3, 4, 5))
FIT = LinkFit(
    alpha_us=20.0,
    beta_us_per_mb=20_000.0,
    alpha_variance=1.0,
    beta_variance=1e4,
    call_us=30.0,
    lead_us=0.0,
    residual=0.01,
)


def fits():
    """Fits of two racks: far links cost four times near ones."""
    near = {host: index for index, group in enumerate(GROUPS) for host in group}
    return {
        (a, b): replace(FIT, beta_us_per_mb=20_000.0 * (1 if near[a] == near[b] else 4))
        for a in near
        for b in near
        if a != b
    }


def test_unloaded_pairs_touch_every_kind() -> None:
    groups = ((0, 1, 2, 3), (4, 5, 6), (7,))
    pairs = unloaded_pairs(groups, 6, 2)
    kind = {host: index for index, group in enumerate(groups) for host in group}
    kinds = {(kind[a], kind[b]) for a, b in pairs}
    assert kinds == {(a, b) for a in range(3) for b in range(3)} - {(2, 2)}
    assert len(pairs) == len(set(pairs))
    assert all(a != b for a, b in pairs)


def test_noise_between_links_of_a_kind_is_evened_out() -> None:
    random = np.random.default_rng(0)
    noisy = {
        pair: replace(fit, beta_us_per_mb=fit.beta_us_per_mb * random.uniform(0.97, 1.03))
        for pair, fit in fits().items()
    }
    costs = even_out(noisy, GROUPS)
    assert len({fit.beta_us_per_mb for fit in costs.values()}) == 4
    for pair, fit in fits().items():
        assert costs[pair].beta_us_per_mb == pytest.approx(fit.beta_us_per_mb, rel=0.03)


def test_a_link_that_really_differs_keeps_its_cost() -> None:
    slow = fits()
    slow[0, 4] = replace(slow[0, 4], beta_us_per_mb=160_000.0)
    assert even_out(slow, GROUPS)[0, 4].beta_us_per_mb == 160_000.0
    assert even_out(slow, GROUPS)[1, 4].beta_us_per_mb == 80_000.0


def test_links_worse_than_their_kind_are_suspect_the_worst_first() -> None:
    some = fits()
    some[1, 3] = replace(some[1, 3], beta_us_per_mb=100_000.0)
    some[0, 1] = replace(some[0, 1], alpha_us=90.0)
    some[3, 0] = replace(some[3, 0], beta_us_per_mb=82_000.0)
    assert outlier_pairs(some, GROUPS) == [(0, 1), (1, 3)]
    assert outlier_pairs(fits(), GROUPS) == []


def test_a_kind_that_was_sampled_serves_all_its_pairs() -> None:
    some = {pair: fit for pair, fit in fits().items() if pair in unloaded_pairs(GROUPS, 0, 1)}
    costs = complete(np.full((6, 6), 1e6), GROUPS, some)
    assert {pair: cost.beta_us_per_mb for pair, cost in costs.items()} == {
        pair: fit.beta_us_per_mb for pair, fit in fits().items()
    }


def test_a_host_that_was_not_sampled_but_is_slow_stays_slow() -> None:
    some = {pair: fit for pair, fit in fits().items() if 2 not in pair}
    bandwidth = np.full((6, 6), 1e6)
    bandwidth[2, [0, 1]] = bandwidth[[0, 1], 2] = 1e6 / 8
    costs = complete(bandwidth, GROUPS, some)
    assert costs[2, 0].beta_us_per_mb == pytest.approx(160_000.0)
    assert costs[1, 2].beta_us_per_mb == pytest.approx(160_000.0)
    assert costs[2, 4].beta_us_per_mb == pytest.approx(160_000.0)  # no faster than its own port
    assert costs[1, 4].beta_us_per_mb == pytest.approx(80_000.0)
