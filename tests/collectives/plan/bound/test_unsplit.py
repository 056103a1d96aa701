"""Counting whole chunks: against plain enumeration, and where constraint programming may help."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound.unsplit import most_urgent_cut, unsplit_bound
from headrace.collectives.plan.chunks import Carriage, Sends, carriage_of
from headrace.collectives.plan.exact import exact_schedule
from headrace.collectives.run.search import NativeSearch
from headrace.topology import Link, SharedCapacity, Topology
from headrace.topology.presets import dgx_a100


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
    carriage = Carriage(ranks=5, origin=origin, targets=targets)
    alone = exact_schedule(topology, carriage, 1.0)
    assert alone.bound_us == pytest.approx(5)
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
    carriage = Carriage(ranks=last + 1, origin=np.zeros(chunks, dtype=np.int32), targets=targets)
    found = most_urgent_cut(topology, carriage, 1.0)

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


def test_many_chunks_take_no_more_memory_or_time() -> None:
    """Every time at which a chunk might cross used to be listed: minutes, and gigabytes."""
    topology = dgx_a100(8)
    few, many = (
        carriage_of(Demand(collective=Collective.ALL_TO_ALL, ranks=64, chunks=chunks))
        for chunks in (1, 16)
    )
    begun = time.monotonic()
    once, often = (most_urgent_cut(topology, carriage, 1.0) for carriage in (few, many))
    assert time.monotonic() - begun < 8
    assert often.chunks == 16 * once.chunks
    assert once.us < often.us <= 16 * once.us
