"""Groups that plans are made for: racks where they show, others where those are faster."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.measure import Profile, survey
from headrace.collectives.measure.budget import ProbeEffort
from headrace.collectives.measure.embed.groups import aggregation_groups
from tests.collectives.measure.network import Network, shuffled_racks


def measured(sizes: tuple[int, ...], noise: float = 0.0) -> Profile:
    topology, _ = shuffled_racks(sizes, 3)
    hosts = [topology.hosts[host] for host in topology.rank_host]
    return survey(Network(topology, noise=noise), hosts, effort=ProbeEffort(budget_s=1000.0))


def hidden(profile: Profile) -> Profile:
    """As if noise had hidden the racks."""
    return replace(profile, groups=(tuple(range(profile.topology.ranks)),))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [(4, 4), (5, 2, 1)])
def test_racks_that_show_are_the_groups(sizes: tuple[int, ...]) -> None:
    profile = measured(sizes)
    assert len(profile.groups) == len(sizes)
    assert aggregation_groups(profile) == profile.groups


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [(4, 4), (3, 3, 3)])
def test_racks_that_do_not_show_are_found_by_what_they_cost(sizes: tuple[int, ...]) -> None:
    profile = measured(sizes, noise=0.05)
    assert aggregation_groups(hidden(profile)) == tuple(sorted(profile.groups))


def test_hosts_that_are_alike_are_one_group() -> None:
    profile = measured((6,))
    assert aggregation_groups(profile) == (tuple(range(6)),)


def test_nothing_is_tried_where_pairs_were_not_measured() -> None:
    profile = hidden(measured((4, 4)))
    some = {name: np.asarray(column)[1:] for name, column in profile.pairs.items()}
    assert aggregation_groups(replace(profile, pairs=some)) == profile.groups
