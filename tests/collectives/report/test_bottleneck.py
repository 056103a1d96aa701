"""The cut that holds a collective up."""

import pytest

from benchmarks.instruments.perturbed import perturbed
from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.report.bottleneck import bottleneck
from headrace.topology import Topology
from headrace.topology.presets import dgx2_taccl_1mb, hub_and_spoke, ndv2_taccl_1mb, racks, torus
from tests.report.small import MB, chain

TOPOLOGIES = [
    ndv2_taccl_1mb(1),
    ndv2_taccl_1mb(2),
    dgx2_taccl_1mb(1),
    hub_and_spoke(6),
    torus((3, 3)),
    perturbed(ndv2_taccl_1mb(2), 3),
    perturbed(torus((4, 4)), 1),
    racks((2, 3), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)
@pytest.mark.parametrize("collective", STANDARD)
def test_no_cut_is_slower_than_the_bound(topology: Topology, collective: Collective) -> None:
    demand = Demand(collective=collective, ranks=topology.ranks, root=1)
    cut = bottleneck(topology, demand, 32 * MB)
    assert cut is not None
    bound = lower_bound(topology, demand, 32 * MB)
    # payload alone: the two treat alpha differently
    assert cut.mb / cut.mb_per_us <= bound.bandwidth_us * (1 + 1e-6)
    inside = set(cut.ranks)
    across = {
        index
        for index, link in enumerate(topology.links)
        if link.src in inside and link.dst not in inside
    }
    assert across == set(cut.links)


def test_two_ndv2_wait_for_their_nic() -> None:
    demand = Demand(collective=Collective.ALLGATHER, ranks=16)
    cut = bottleneck(ndv2_taccl_1mb(2), demand, 16 * MB)
    assert cut is not None
    assert cut.ranks in (tuple(range(8)), tuple(range(8, 16)))
    assert cut.mb == 8.0
    assert cut.us == pytest.approx(8 * 105 + 2.6)  # the table's 840, and alpha once
    assert all("nic" in name for name in cut.shared)


@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.ALL_TO_ALL])
def test_the_cut_of_one_ndv2_is_the_bound(collective: Collective) -> None:
    demand = Demand(collective=collective, ranks=8)
    cut = bottleneck(ndv2_taccl_1mb(1), demand, 8 * MB)
    bound = lower_bound(ndv2_taccl_1mb(1), demand, 8 * MB)
    assert cut is not None
    assert cut.us == pytest.approx(bound.total_us, rel=0.01)


def test_where_nothing_crosses() -> None:
    one = Topology(name="one", hosts=("a",), rank_host=(0,), links=())
    assert bottleneck(one, Demand(collective=Collective.ALLREDUCE, ranks=1), MB) is None
    cut = bottleneck(chain(), Demand(collective=Collective.BROADCAST, ranks=3), MB)
    assert cut is not None
    assert 0 in cut.ranks
