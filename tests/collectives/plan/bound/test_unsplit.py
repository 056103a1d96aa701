"""Counting whole chunks: against plain enumeration, and where constraint programming may help."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruments.perturbed import perturbed
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.bound.counting import most_urgent_cut
from headrace.collectives.plan.bound.exact import proved_us
from headrace.collectives.plan.bound.unsplit import unsplit_bound
from headrace.collectives.plan.cost.model import EXECUTOR, FULL
from headrace.collectives.plan.ir.chunks import Deliveries, Sends, deliveries_of
from headrace.collectives.plan.request import Method, Request
from headrace.collectives.run.synthesis import NativeSearch
from headrace.topology import Link, SharedCapacity, Topology
from headrace.topology.presets import dgx_a100, ndv2_taccl_1mb
from tests.collectives.plan.oracle import best_us
from tests.waiting import no_hang


def network(rows: list[tuple[int, int, float]], shared: dict[float, tuple[int, ...]]) -> Topology:
    ranks = 1 + max(max(row[:2]) for row in rows)
    return Topology(
        name="small",
        hosts=("host",),
        rank_host=(0,) * ranks,
        links=tuple(Link(src=s, dst=d, alpha_us=0.0, beta_us_per_mb=beta) for s, d, beta in rows),
        shared=tuple(
            SharedCapacity(name=f"s{k}", links=links, beta_us_per_mb=beta)
            for k, (beta, links) in enumerate(shared.items())
        ),
    )


def test_one_chunk_a_message_is_a_restriction_where_a_nic_is_faster_than_its_links() -> None:
    """A bound was above a schedule: two chunks in one message leave the NIC in one go.

    Rank 0 has two chunks for rank 1 (2 us each, the NIC is held for 1 us each), and a third comes
    by on its way 4 -> 0 -> 2 -> 3, which wants the NIC just when the second chunk does.
    """
    topology = network([(0, 1, 2), (0, 2, 1), (4, 0, 2), (2, 3, 1)], {1.0: (0, 1)})
    origin = np.array([0, 0, 4], dtype=np.int32)
    targets = np.zeros((3, 5), dtype=bool)
    targets[[0, 1, 2], [1, 1, 3]] = True
    deliveries = Deliveries(ranks=5, origin=origin, targets=targets)
    alone = proved_us(topology, deliveries, 1.0, alone=True, deterministic=10)
    assert alone == pytest.approx(5)
    rows = np.array([(0, 0, 1, 0), (1, 0, 1, 0), (2, 4, 0, 1), (2, 0, 2, 2), (2, 2, 3, 3)])
    chunk, src, dst, message = rows.astype(np.int32).T
    together = Sends(
        chunk=chunk,
        src=src,
        dst=dst,
        reduce=np.zeros(5, dtype=bool),
        message=message,
        start_us=np.empty(0),
    )
    assert NativeSearch().retime(topology, together, 1.0).total_us == pytest.approx(4)
    # So of such networks constraint programming proves nothing.
    ring = [(0, 1, 2.0), (1, 2, 2.0), (2, 0, 2.0), (0, 2, 1.0)]
    demand = Demand(collective=Collective.ALLGATHER, ranks=3)
    for beta, asked in ((1.0, False), (2.0, True), (3.0, True)):
        bound = unsplit_bound(network(ring, {beta: (0, 3)}), demand, 3_000_000)
        assert any(term.name == "exhausted search" for term in bound.terms) == asked


def test_alpha_that_a_message_shares_does_not_break_what_is_proved() -> None:
    """Two chunks over one link: as two messages they pay alpha twice, as one once."""
    line = replace(
        network([(0, 1, 10.0), (1, 0, 10.0)], {}),
        links=tuple(Link(src=s, dst=1 - s, alpha_us=6.0, beta_us_per_mb=10.0) for s in (0, 1)),
    )
    demand = Demand(collective=Collective.BROADCAST, ranks=2, chunks=2)
    deliveries = deliveries_of(demand)
    assert proved_us(line, deliveries, 1.0, alone=True) == pytest.approx(2 * 16)
    together = best_us(line, deliveries, 1.0, batching=True)
    assert proved_us(line, deliveries, 1.0) == pytest.approx(together) == pytest.approx(26)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_proved_with_alpha_is_close_to_what_can_be_done(seed: int) -> None:
    """Cuts alone were 3% to 9% short of schedules that are the best there are."""
    topology = perturbed(ndv2_taccl_1mb(1), seed)
    demand = Demand(collective=Collective.ALLGATHER, ranks=8)
    best_us = proved_us(topology, deliveries_of(demand), 1.0, alone=True, deterministic=10)
    bound = unsplit_bound(topology, demand, 8_000_000)
    assert bound.terms[-1].name == "exhausted search"
    assert best_us * 0.99 < bound.total_us <= best_us
    assert bound.total_us > 1.02 * most_urgent_cut(topology, deliveries_of(demand), 1.0).us


def test_only_whole_chunks_are_bound_as_such() -> None:
    """A chain streams within a chunk: such a plan was below the bound for whole chunks."""
    chain = network([(0, 1, 10.0), (1, 2, 10.0), (2, 1, 10.0), (1, 0, 10.0)], {})
    demand = Demand(collective=Collective.BROADCAST, ranks=3)
    split, whole = (
        find(chain, demand, 1_000_000).total_us for find in (lower_bound, unsplit_bound)
    )
    assert (split, whole) == (pytest.approx(10), pytest.approx(20))
    for model, chunks, expected in (
        (FULL, 1, whole),
        (FULL, None, split),
        (EXECUTOR, 1, split),
        (EXECUTOR, None, split),
    ):
        method = Method(model=model, chunks=chunks)
        request = Request(chain, Collective.BROADCAST, root=0, method=method)
        assert request.bound(demand, 1_000_000).total_us == pytest.approx(expected)


@settings(max_examples=150, deadline=None)
@given(
    links=st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from((1, 2, 3))), min_size=1, max_size=4
    ),
    share=st.integers(1, 4),
    chunks=st.integers(1, 6),
)
def test_the_smallest_time_is_found(links: list[tuple[int, int]], share: int, chunks: int) -> None:
    """Rank 0 sends all chunks to the rank at the end, over others: try every whole time."""
    last = len(links) + 1
    rows = [(0, k + 1, 1 / 64) for k in range(len(links))]
    rows += [(k + 1, last, float(beta)) for k, (beta, _) in enumerate(links)]
    topology = network(rows, {share / 2: tuple(range(len(links), 2 * len(links)))})
    targets = np.zeros((chunks, last + 1), dtype=bool)
    targets[:, last] = True
    deliveries = Deliveries(
        ranks=last + 1, origin=np.zeros(chunks, dtype=np.int32), targets=targets
    )
    found = most_urgent_cut(topology, deliveries, 1.0)

    def served(us: float) -> int:
        head = 1 / 64
        alone = sum(int((us - head) // beta) for beta, _ in links) if us > head else 0
        # A single link's capacity and its own are one.
        shared = int((us - head) // (share / 2)) if us > head else 0
        return min(alone, shared)

    expected = next(us for us in (1 / 64 + k / 2 for k in range(200)) if served(us) >= chunks)
    assert found.us >= expected - 1e-9
    if found.name == f"into rank {last}":
        assert found.us == pytest.approx(expected)


@pytest.mark.sampled(1)
def test_many_chunks_take_no_more_memory_or_time() -> None:
    """Every time at which a chunk might cross used to be listed: minutes, and gigabytes."""
    topology = dgx_a100(8)
    few, many = (
        deliveries_of(Demand(collective=Collective.ALL_TO_ALL, ranks=64, chunks=chunks))
        for chunks in (1, 16)
    )
    with no_hang():
        once, often = (most_urgent_cut(topology, deliveries, 1.0) for deliveries in (few, many))
    assert often.chunks == 16 * once.chunks
    assert once.us < often.us <= 16 * once.us
