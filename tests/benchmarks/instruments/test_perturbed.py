from dataclasses import replace

import pytest

from benchmarks.instruments.perturbed import perturbed
from headrace.errors import TopologyError
from headrace.topology import Topology
from headrace.topology.presets import ring
from tests.topology.test_transforms import TOPOLOGIES


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: t.name)
def test_perturbed_changes_every_cost_within_the_spread(topology: Topology) -> None:
    made = perturbed(topology, seed=7, spread=0.2)
    assert made == perturbed(topology, seed=7, spread=0.2)
    assert made.digest != perturbed(topology, seed=8, spread=0.2).digest
    pairs = [(a.alpha_us, b.alpha_us) for a, b in zip(made.links, topology.links, strict=True)]
    for mine, theirs in ((made.links, topology.links), (made.shared, topology.shared)):
        pairs += [(a.beta_us_per_mb, b.beta_us_per_mb) for a, b in zip(mine, theirs, strict=True)]
    ratios = [new / old for new, old in pairs]
    assert all(0.8 <= ratio <= 1.2 for ratio in ratios)
    assert len(set(ratios)) > 0.9 * len(ratios)  # each its own
    assert max(ratios) - min(ratios) > 0.15


def test_perturbed_refuses_a_spread_that_could_give_costs_of_nothing() -> None:
    with pytest.raises(TopologyError, match=r"spread is 1.0, needs at least 0 and less than 1"):
        perturbed(ring(3), 0, 1.0)
    assert replace(perturbed(ring(3), 0, 0.0), name="") == replace(ring(3), name="")
