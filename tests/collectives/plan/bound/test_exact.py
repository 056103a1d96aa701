"""Exact schedules and bounds against the exhaustive oracle, and known optima."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.bound.counting import most_urgent_cut
from headrace.collectives.plan.bound.exact import exact_sends, proved_us, time_unit_us
from headrace.collectives.plan.bound.unsplit import unsplit_bound
from headrace.collectives.plan.ir.chunks import Deliveries, deliveries_of
from headrace.collectives.plan.ir.permutations import chunk_images, link_images
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.solver import Parameters
from headrace.topology import SharedCapacity, Topology
from headrace.topology.transforms import transposed
from tests.collectives.plan.oracle import best_us, in_order_us
from tests.collectives.plan.sends_check import (
    allgather,
    both_ways,
    broadcast,
    ndv2_node,
    ndv2_pair,
    network,
    ring,
)

LIMITS = Parameters(deterministic=10.0)
MB = 1_000_000


@st.composite
def tiny(draw: st.DrawFn, ranks: int = 3) -> Topology:
    """A ring, more links, uneven costs and capacities that links share, as switches' ports."""
    pairs = {(i, (i + 1) % ranks) for i in range(ranks)}
    others = [(s, d) for s in range(ranks) for d in range(ranks) if s != d]
    pairs |= draw(st.sets(st.sampled_from(others), max_size=3))
    alphas, betas = st.sampled_from([0.0, 3.0, 12.0]), st.sampled_from([10.0, 15.0, 20.0, 45.0])
    shared = [
        SharedCapacity(
            name=f"port{i}",
            links=tuple(draw(st.sets(st.integers(0, len(pairs) - 1), min_size=2, max_size=4))),
            beta_us_per_mb=draw(betas),
        )
        for i in range(draw(st.integers(0, 2)))
    ]
    return network(ranks, [(*p, draw(alphas), draw(betas)) for p in sorted(pairs)], *shared)


MOVES = [
    Collective.BROADCAST,
    Collective.SCATTER,
    Collective.GATHER,
    Collective.ALLGATHER,
    Collective.ALL_TO_ALL,
    Collective.REDUCE,
    Collective.REDUCE_SCATTER,
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("_part", range(3))
@settings(max_examples=9, deadline=None)
@given(topology=tiny(), data=st.data())
def test_exact_is_the_best_of_all_schedules_and_no_bound_exceeds_it(
    _part: int, topology: Topology, data: st.DataObject
) -> None:
    collective = data.draw(st.sampled_from(MOVES))
    few = collective in (Collective.BROADCAST, Collective.REDUCE)
    chunks = data.draw(st.integers(1, 2)) if few else 1
    demand = Demand(collective=collective, ranks=3, chunks=chunks)
    total_bytes = MB * demand.blocks
    mb = 1.0 / chunks
    graph = topology
    if collective in (Collective.REDUCE, Collective.REDUCE_SCATTER):
        graph = transposed(topology)
    deliveries = deliveries_of(demand)
    alone, together = (
        best_us(graph, deliveries, mb, batching=batching) for batching in (False, True)
    )
    assert together <= alone + 1e-9
    assert lower_bound(topology, demand, total_bytes).total_us <= together * (1 + 1e-9)
    assert unsplit_bound(topology, demand, total_bytes).total_us <= together * (1 + 1e-9)
    assert proved_us(graph, deliveries, mb, alone=True, deterministic=10) == pytest.approx(alone)
    sends, bound_us = exact_sends(graph, deliveries, mb, LIMITS)
    assert bound_us == pytest.approx(alone)
    assert sends is not None
    assert in_order_us(graph, sends, mb, deliveries.origin) == pytest.approx(alone)
    assert NativeSearch().retime(graph, sends, mb).total_us >= alone * (1 - 1e-9)


@settings(max_examples=10, deadline=None)
@given(topology=tiny(ranks=4))
def test_four_ranks_broadcast_as_fast_as_can_be(topology: Topology) -> None:
    deliveries = broadcast(4)
    best = best_us(topology, deliveries, 1.0)
    proved = proved_us(topology, deliveries, 1.0, alone=True, deterministic=10)
    assert proved == pytest.approx(best)
    assert most_urgent_cut(topology, deliveries, 1.0).us <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("topology", "deliveries", "us"),
    [
        (ring(3), allgather(3), 10.0),
        (ring(4), allgather(4), 20.0),
        (ring(5, alpha=1.0), allgather(5), 22.0),
        (both_ways(4, [(0, 1), (0, 2), (0, 3)], 0.0, 10.0), allgather(4), 30.0),
        (ndv2_node(), allgather(8), 69.0),
        (ndv2_node(), broadcast(8, 4), 23.0 * 2),
    ],
)
def test_known_optima_are_proved(topology: Topology, deliveries: Deliveries, us: float) -> None:
    mb = 1.0 if deliveries.chunks != 4 or deliveries.ranks != 8 else 0.5
    proved = proved_us(topology, deliveries, mb, alone=True, deterministic=10)
    assert proved == pytest.approx(us)
    sends, _ = exact_sends(topology, deliveries, mb, LIMITS)
    assert sends is not None
    assert NativeSearch().retime(topology, sends, mb).total_us == pytest.approx(us)


def test_nothing_is_sent_without_need() -> None:
    # Found by hypothesis: a chunk that a relay might get late made the schedule look long.
    rows = [(0, 1, 0.0, 15.0), (0, 2, 0.0, 10.0), (1, 2, 0.0, 10.0), (2, 0, 0.0, 10.0)]
    deliveries = deliveries_of(Demand(collective=Collective.SCATTER, ranks=3))
    sends, _ = exact_sends(network(3, rows), deliveries, 1.0, LIMITS)
    assert sends is not None
    assert len(sends.chunk) == 2
    timed = NativeSearch().retime(network(3, rows), sends, 1.0)
    assert timed.total_us == pytest.approx(15.0)


def test_equal_limits_give_equal_schedules() -> None:
    limits = Parameters(deterministic=0.5)
    one, other = (exact_sends(ndv2_node(0.3), allgather(8), 1.0, limits)[0] for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.chunk.tolist() == other.chunk.tolist()
    assert one.src.tolist() == other.src.tolist()


def test_costs_without_a_common_unit_leave_a_small_gap() -> None:
    pairs = [(i, (i + 1) % 4) for i in range(4)]
    rows = [(s, d, 0.1, 10 + math.sqrt(s + 2 * d)) for s, d in pairs + [(d, s) for s, d in pairs]]
    best = best_us(network(4, rows), broadcast(4), 1.0)
    proved = proved_us(network(4, rows), broadcast(4), 1.0, alone=True, deterministic=10)
    assert proved <= best <= proved * (1 + 1e-3)


def test_units_divide_all_costs() -> None:
    assert time_unit_us(np.array([23.0, 46.0])) == 23.0
    assert time_unit_us(np.array([0.3 + 46.0, 23.3])) == pytest.approx(0.1)
    assert time_unit_us(np.array([46 / 6, 23 / 6])) == pytest.approx(23 / 6)
    assert time_unit_us(np.array([1.0, math.pi])) is None


def test_whole_chunks_are_counted() -> None:
    assert most_urgent_cut(ndv2_node(), allgather(8), 1.0).us == pytest.approx(69.0)
    assert most_urgent_cut(ndv2_node(), allgather(8, 2), 0.5).us == pytest.approx(57.5)
    # Eight chunks over a NIC (alpha once), then 69.6 us more until the last is everywhere.
    found = most_urgent_cut(ndv2_pair(), allgather(16), 1.0)
    assert found.us == pytest.approx(2.6 + 840 + 69.6)
    assert (found.chunks, found.name.split()[0]) == (8, "into")
    demand = Demand(collective=Collective.ALLGATHER, ranks=16)
    bound = unsplit_bound(ndv2_pair(), demand, 16 * MB)
    assert bound.total_us == pytest.approx(found.us)
    assert bound.terms[-1].name.startswith("whole chunks into")
    assert "whole chunks" in bound.formula


def test_what_combines_is_counted_on_the_transposed_graph() -> None:
    rows = [(0, 1, 1.0, 10.0), (1, 2, 2.0, 20.0), (2, 0, 3.0, 30.0), (1, 0, 4.0, 70.0)]
    there = network(3, rows)
    one, other = (
        unsplit_bound(graph, Demand(collective=collective, ranks=3), 3 * MB).total_us
        for graph, collective in (
            (there, Collective.ALLGATHER),
            (transposed(there), Collective.REDUCE_SCATTER),
        )
    )
    assert one == pytest.approx(other)


def test_what_cannot_be_is_an_error() -> None:
    one_way = network(2, [(0, 1, 0.0, 1.0)])
    with pytest.raises(ProgramError, match="chunk 1 cannot get from rank 1 to rank 0"):
        proved_us(one_way, allgather(2), 1.0)
    with pytest.raises(TopologyError, match="link 0 -> 1 has no image 1 -> 0"):
        link_images(one_way, np.array([1, 0]))
    with pytest.raises(ProgramError, match="chunk 0 from rank 0 has no image from rank 1"):
        chunk_images(broadcast(3), np.array([1, 2, 0]))


def test_nothing_to_do_takes_no_time() -> None:
    assert proved_us(network(1, []), allgather(1), 1.0) == 0.0
    sends, bound_us = exact_sends(network(1, []), allgather(1), 1.0, LIMITS)
    assert sends is not None
    assert (len(sends.chunk), bound_us) == (0, 0.0)
