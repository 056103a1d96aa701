"""A plan's orbits and the expanded plan agree: proof, prediction, bound."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.orbits.bound import orbit_bound
from headrace.collectives.plan.generators.orbits.build import OrbitFound, plan_orbits
from headrace.collectives.plan.generators.orbits.group import RegularGroup
from headrace.collectives.plan.generators.orbits.plan import ORBIT_COLLECTIVES
from headrace.collectives.plan.generators.orbits.simulate import expanded_schedule, simulate_orbits
from headrace.collectives.plan.generators.orbits.verify import verify_orbits
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.topology import Topology
from headrace.topology.presets import dgx2, dgx_a100, ring, torus
from tests.collectives.plan.generators.orbits.cayley import cases, dihedral_group, network

SOME = st.sampled_from(sorted(ORBIT_COLLECTIVES))


def agree(found: OrbitFound, topology: Topology, total_bytes: int) -> None:
    """Expand, lower, verify, simulate: as the orbits' own verifier and simulator say."""
    orbits = simulate_orbits(found.plan, topology, total_bytes)
    assert orbits.total_us == found.predicted_us
    program = lower(expanded_schedule(found.plan, orbits))
    verify(program)
    plain = simulate(program, topology, total_bytes, model=FULL)
    assert plain.total_us == pytest.approx(orbits.total_us, rel=1e-9)
    assert found.bound.total_us <= found.predicted_us * (1 + 1e-9)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), collective=SOME, size=st.sampled_from((1000, 10**6)))
def test_random_groups(
    case: tuple[RegularGroup, Topology], collective: Collective, size: int
) -> None:
    group, topology = case
    total = size * topology.ranks
    found = plan_orbits(topology, collective, total, group=group, chunks=(1, 2))
    agree(found, topology, total)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("collective", sorted(ORBIT_COLLECTIVES))
@pytest.mark.parametrize(
    "topology", [ring(5), torus((3, 4)), dgx2(1), dgx2(2), dgx_a100(2)], ids=lambda t: t.name
)
def test_presets(topology: Topology, collective: Collective) -> None:
    total = topology.ranks << 20
    agree(plan_orbits(topology, collective, total, chunks=(1, 2)), topology, total)


def test_a_group_that_does_not_commute() -> None:
    group = dihedral_group(4)
    steps = {int(group.generators[0, 0]): (0.5, 1.0), int(group.generators[1, 0]): (0.5, 2.0)}
    topology = network(group, steps, port=0.75)
    for collective in sorted(ORBIT_COLLECTIVES):
        found = plan_orbits(topology, collective, 8_000_000, group=group, chunks=(1, 2))
        agree(found, topology, 8_000_000)


def test_ranks_that_share_a_nic_are_told_apart() -> None:
    """Two GPUs at one NIC cannot both be first: they need a representative each."""
    topology = dgx2(2)
    found = plan_orbits(topology, Collective.ALLGATHER, 32 << 20, chunks=(1,))
    simulated = simulate_orbits(found.plan, topology, 32 << 20)
    assert simulated.ranks == (0, 1)
    assert np.ptp(simulated.start_us, axis=1).max() > 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("collective", sorted(ORBIT_COLLECTIVES))
@pytest.mark.parametrize("topology", [ring(5), torus((3, 4)), dgx2(2), dgx_a100(2)])
def test_bounds_agree_with_those_of_the_whole_graph(
    topology: Topology, collective: Collective
) -> None:
    """Neither may contradict a schedule; on these the flows' bandwidth is what symmetry finds."""
    total = topology.ranks << 20
    found = plan_orbits(topology, collective, total)
    whole = lower_bound(topology, Demand(collective=collective, ranks=topology.ranks), total)
    assert whole.total_us <= found.predicted_us * (1 + 1e-9)
    if collective in (Collective.ALLGATHER, Collective.REDUCE_SCATTER):
        assert found.bound.bandwidth_us == pytest.approx(whole.bandwidth_us, rel=1e-6)


def test_proof_names_the_plan() -> None:
    found = plan_orbits(ring(4), Collective.ALLREDUCE, 4000)
    assert verify_orbits(found.plan) == found.proof
    assert found.proof.plan_digest == found.plan.digest
    assert found.bound == orbit_bound(
        ring(4), RegularGroup(generators=found.plan.generators), found.plan.demand, 4000
    )
