"""Quality of the plans, and the cost of planning."""

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.collectives.demand import Collective
from headrace.collectives.plan.generators.orbits.build import plan_orbits
from headrace.collectives.plan.generators.orbits.plan import OrbitPlan
from headrace.topology import Topology, without_local_alpha
from headrace.topology.presets import dgx2_taccl_1mb, dgx_a100, ring, torus

SAMPLED = pytest.mark.sampled(3)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("shape", "most_us", "bound_us"),
    [((4, 4), 76.2, 73.24), ((8, 8), 314.6, 307.62), ((16, 16), 1260.0, 1245.12)],
)
def test_allgather_on_a_torus(shape: tuple[int, ...], most_us: float, bound_us: float) -> None:
    """No worse than sending quarters round the rows, then the columns, and vice versa."""
    topology = torus(shape)
    found = plan_orbits(topology, Collective.ALLGATHER, topology.ranks * MIB, chunks=(4,))
    assert found.bound.bandwidth_us == pytest.approx(bound_us, rel=1e-4)
    assert found.predicted_us <= most_us
    # As fast as links allow, and as few messages after one another as hops to the farthest.
    hops = sum(side // 2 for side in shape)
    assert found.predicted_us == pytest.approx(found.bound.bandwidth_us + 0.5 * hops)


@SAMPLED
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCE_SCATTER])
@pytest.mark.parametrize(
    "topology",
    [ring(7), torus((5, 7)), torus((3, 4)), torus((3, 4, 5)), torus((4, 4, 4))],
    ids=lambda t: t.name,
)
def test_within_two_percent_of_the_bound_without_alpha(
    topology: Topology, collective: Collective
) -> None:
    free = torus_without_alpha(topology)
    found = plan_orbits(free, collective, free.ranks * MIB)
    assert found.predicted_us <= 1.02 * found.bound.bandwidth_us


def torus_without_alpha(topology: Topology) -> Topology:
    return replace(topology, links=tuple(replace(link, alpha_us=0.0) for link in topology.links))


def test_a_switch_is_kept_busy() -> None:
    topology = without_local_alpha(dgx2_taccl_1mb(1))
    found = plan_orbits(topology, Collective.ALLGATHER, 16 * 10**6)
    assert found.predicted_us == pytest.approx(120.0)


@SAMPLED
def test_rails_and_switches() -> None:
    topology = dgx_a100(16)
    found = plan_orbits(topology, Collective.ALLGATHER, 128 * 10**6)
    assert found.bound.bandwidth_us == pytest.approx(15 * 40.0)
    assert found.gap < 0.05


def test_all_to_all_on_a_torus() -> None:
    topology = torus((8, 8))
    found = plan_orbits(topology, Collective.ALL_TO_ALL, 64 * MIB)
    assert found.gap < 0.01


def test_small_sizes_take_few_messages() -> None:
    """Doubling: on a switch with sixteen GPUs, four messages one after another."""
    topology = dgx2_taccl_1mb(1)
    found = plan_orbits(topology, Collective.ALLGATHER, 16 * 64)
    assert found.plan.messages == 4


@SAMPLED
def test_small_exchanges_take_few_messages() -> None:
    """Over a few links, again and again, instead of one message for every destination."""
    topology = dgx_a100(16)
    found = plan_orbits(topology, Collective.ALL_TO_ALL, 128 * 64)
    assert found.plan.messages < 22  # one for each destination would be 15 and 7
    assert found.predicted_us < 30.0


@pytest.mark.slow
def test_4096_ranks(tmp_path: Path) -> None:
    topology = torus((64, 64))
    found = plan_orbits(topology, Collective.ALLGATHER, 4096 * MIB)
    assert found.gap < 0.005
    found.plan.save(tmp_path / "plan")
    assert (tmp_path / "plan").stat().st_size < 1 << 20
    assert OrbitPlan.load(tmp_path / "plan").digest == found.plan.digest
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8 << 20  # KiB


@pytest.mark.slow
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.ALLREDUCE])
def test_1024_gpus(collective: Collective) -> None:
    found = plan_orbits(dgx_a100(128), collective, 1024 * 10**6)
    assert found.gap < 0.01
