"""Hierarchical plans of clusters: correct on any, close to the bound on many equal hosts."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.hosts.clusters import hosts_of, rails_of
from headrace.collectives.plan.generators.hosts.hierarchy import hierarchical_plans
from headrace.collectives.plan.ir.chunks import realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.topology import Topology, perturbed, subgraph
from headrace.topology.presets import dgx1, dgx2, dgx_a100, ndv2, ndv2_taccl_1mb, racks, ring

SERVED = (Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALLREDUCE)


def best_us(
    topology: Topology, collective: Collective, block_mb: float, chunks: tuple[int, ...]
) -> float:
    """Verify every plan; return the least simulated time."""
    times: list[float] = []
    for demand, sends in hierarchical_plans(topology, collective, block_mb, chunks=chunks):
        program = lower(realize(demand, sends))
        verify(program)
        total = round(block_mb * 1e6 * topology.ranks)
        times.append(simulate(program, topology, total, model=FULL).total_us)
    return min(times)


def bound_us(topology: Topology, collective: Collective, block_mb: float) -> float:
    demand = Demand(collective=collective, ranks=topology.ranks)
    return lower_bound(topology, demand, round(block_mb * 1e6 * topology.ranks)).total_us


@pytest.mark.parametrize("collective", SERVED)
@pytest.mark.parametrize(
    ("topology", "gap"),
    [(ndv2(3), 0.06), (dgx1(2), 0.35), (dgx_a100(3), 0.6), (perturbed(ndv2(3), seed=3), 0.35)],
    ids=lambda value: value.name if isinstance(value, Topology) else "",
)
def test_clusters(topology: Topology, gap: float, collective: Collective) -> None:
    got = best_us(topology, collective, 1.0, (4,))
    assert got <= (1 + gap) * bound_us(topology, collective, 1.0)


def test_80_gpus() -> None:
    """Ten NDv2: the NIC takes in 72 blocks of 105 us and more, and little comes on top."""
    topology = ndv2_taccl_1mb(10)
    got = best_us(topology, Collective.ALLGATHER, 1.0, (4,))
    assert got <= 1.01 * (72 * 105.0 + 2.6)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    nodes=st.integers(2, 4),
    seed=st.integers(0, 99),
    block_mb=st.sampled_from((0.001, 1.0)),
    collective=st.sampled_from(SERVED),
    chunks=st.sampled_from((1, 2)),
)
def test_any_number_of_hosts_and_costs(
    nodes: int, seed: int, block_mb: float, collective: Collective, chunks: int
) -> None:
    topology = perturbed(ndv2(nodes), seed=seed)
    best = best_us(topology, collective, block_mb, (chunks,))
    assert best >= bound_us(topology, collective, block_mb) * (1 - 1e-9)


def test_hosts_of_one_rank_have_only_the_level_between() -> None:
    topology = ring(3)  # each rank a host, and all are neighbours
    assert best_us(topology, Collective.ALLGATHER, 1.0, (2,)) > 0


def test_rails_are_the_nics() -> None:
    for topology, served in (
        (ndv2(2), [tuple(range(8))]),
        (dgx1(2), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (dgx2(3), [(2 * i, 2 * i + 1) for i in range(8)]),
        (dgx_a100(3), [(i,) for i in range(8)]),
    ):
        assert [rail.served for rail in rails_of(topology, hosts_of(topology))] == served


@pytest.mark.parametrize(
    ("topology", "problem"),
    [
        (ndv2(1), "all ranks are on one host"),
        (replace(ndv2(2), rank_host=(0,) * 7 + (1,) * 9), r"hosts have \[7, 9\] ranks"),
        (ring(5), "has links to and from its counterpart"),
    ],
    ids=["one", "uneven", "far"],
)
def test_what_it_does_not_serve_it_refuses(topology: Topology, problem: str) -> None:
    with pytest.raises(ProgramError, match=problem):
        hierarchical_plans(topology, Collective.ALLGATHER, 1.0)


def test_gpus_without_a_way_out_use_another_rail() -> None:
    whole = dgx_a100(2)
    silent = [
        k for k, link in enumerate(whole.links) if link.src % 8 != 3 or abs(link.src - link.dst) < 8
    ]
    topology = subgraph(whole, silent)
    assert len(rails_of(topology, hosts_of(topology))) == 7
    assert best_us(topology, Collective.ALLGATHER, 1.0, (4,)) > 0


def test_other_collectives_are_refused() -> None:
    with pytest.raises(ProgramError, match="broadcast has no hierarchical plan"):
        hierarchical_plans(ndv2(2), Collective.BROADCAST, 1.0)


def test_uplinks_of_racks_are_no_nics() -> None:
    """Capacities of the network between do not join GPUs of different hosts to a rail."""
    topology = racks((2, 2), host_bytes_per_s=1e9, uplink_bytes_per_s=5e8)
    assert best_us(topology, Collective.ALLGATHER, 0.1, (2,)) > 0


def test_equal_inputs_give_equal_plans() -> None:
    first, again = (
        hierarchical_plans(ndv2(2), Collective.ALLGATHER, 1.0, chunks=(4,), most=1)[0][1]
        for _ in range(2)
    )
    assert (first.chunk == again.chunk).all()
    assert (first.message == again.message).all()
