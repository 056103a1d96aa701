"""The native engine against the simulator: its times are those of the simulated sends."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.engine import (
    Routes,
    SearchInterrupted,
    SearchProblem,
    SearchResult,
    SearchSettings,
)
from headrace.collectives.plan.generators.matching import match
from headrace.collectives.plan.ir.chunks import Deliveries, deliveries_of, realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.sends import concatenated
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.topology import BYTES_PER_MB, Link, SharedCapacity, Topology, transposed
from headrace.topology.presets import dgx1
from headrace.topology.symmetry import translations
from tests.waiting import ENDLESS_S

ENGINE = NativeSearch()
CARRYING = (
    Collective.ALLGATHER,
    Collective.BROADCAST,
    Collective.GATHER,
    Collective.SCATTER,
    Collective.ALL_TO_ALL,
)


def searched(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    *,
    settings: SearchSettings = SearchSettings(),  # noqa: B008 - frozen
    **options: Any,
) -> SearchResult:
    problem = SearchProblem(topology=topology, deliveries=deliveries, chunk_mb=chunk_mb, **options)
    return ENGINE.search(problem, settings)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """A one-way ring with chords, costs of any size, hosts, and capacities that links share."""
    n = draw(st.integers(2, 6))
    pairs = {(r, (r + 1) % n) for r in range(n)}
    pairs |= draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=12))
    # Whole numbers make times coincide, others do not: both matter.
    cost = st.one_of(st.integers(1, 4).map(float), st.floats(0.1, 9.0))
    links = tuple(
        Link(src=s, dst=d, alpha_us=draw(cost) * draw(st.integers(0, 1)), beta_us_per_mb=draw(cost))
        for s, d in sorted(pairs)
        if s != d
    )
    shared = tuple(
        SharedCapacity(name=f"s{k}", links=tuple(sorted(members)), beta_us_per_mb=draw(cost))
        for k, members in enumerate(
            draw(
                st.lists(
                    st.sets(st.integers(0, len(links) - 1), min_size=1, max_size=6), max_size=3
                )
            )
        )
    )
    per_host = draw(st.integers(1, 3))
    return Topology(
        name="any",
        hosts=tuple(f"h{k}" for k in range((n - 1) // per_host + 1)),
        rank_host=tuple(r // per_host for r in range(n)),
        links=links,
        shared=shared,
    )


def simulated_us(
    topology: Topology, demand: Demand, found: SearchResult, total_bytes: int
) -> float:
    program = lower(realize(demand, found.sends))
    verify(program)
    return simulate(program, topology, total_bytes, model=FULL).total_us


@settings(max_examples=120, deadline=None)
@given(
    topology=topologies(),
    collective=st.sampled_from(CARRYING),
    chunks=st.integers(1, 3),
    share=st.sampled_from((0.0, 0.5, 1.0)),
    seed=st.integers(0, 1 << 30),
)
def test_the_simulator_confirms_the_time(
    topology: Topology, collective: Collective, chunks: int, share: float, seed: int
) -> None:
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=chunks)
    total_bytes = 3 * BYTES_PER_MB
    mb = demand.chunk_bytes(total_bytes) / BYTES_PER_MB
    how = SearchSettings(seed=seed, restarts=12, batch_share=share)
    found = searched(topology, deliveries_of(demand), mb, settings=how)
    assert simulated_us(topology, demand, found, total_bytes) == pytest.approx(found.total_us)
    again = ENGINE.retime(topology, found.sends, mb)
    assert again.total_us == found.total_us
    assert np.array_equal(again.sends.start_us, found.sends.start_us)


def ring(n: int, alpha_us: float = 1.0) -> Topology:
    pairs = sorted({(r, (r + step) % n) for r in range(n) for step in (1, n - 1)})
    return Topology(
        name="ring",
        hosts=tuple(f"h{r}" for r in range(n)),
        rank_host=tuple(range(n)),
        links=tuple(Link(src=s, dst=d, alpha_us=alpha_us, beta_us_per_mb=10.0) for s, d in pairs),
    )


def test_equal_settings_give_equal_results() -> None:
    topology, demand = ring(7), Demand(collective=Collective.ALLGATHER, ranks=7, chunks=2)
    how = SearchSettings(seed=5, restarts=40, batch_share=1.0)
    one, two = (searched(topology, deliveries_of(demand), 0.5, settings=how) for _ in range(2))
    assert (one.total_us, one.restarts) == (two.total_us, two.restarts)
    for column in ("chunk", "src", "dst", "message", "start_us"):
        assert np.array_equal(getattr(one.sends, column), getattr(two.sends, column))


def test_contiguous_sends_pay_alpha_once() -> None:
    # 0 -> 1 -> 2: forwarding four chunks at once pays alpha twice in all, singly five times.
    topology = Topology(
        name="chain",
        hosts=("a", "b", "c"),
        rank_host=(0, 1, 2),
        links=tuple(Link(src=r, dst=r + 1, alpha_us=100.0, beta_us_per_mb=1.0) for r in range(2)),
    )
    demand = Demand(collective=Collective.BROADCAST, ranks=3, chunks=4)
    how = SearchSettings(restarts=60, batch_share=1.0)
    found = searched(topology, deliveries_of(demand), 1.0, settings=how)
    assert found.total_us == 208.0
    assert found.sends.message.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    single = searched(topology, deliveries_of(demand), 1.0)
    assert single.total_us == 505.0


def test_a_search_ends_at_its_target() -> None:
    topology, demand = ring(4, 0.0), Demand(collective=Collective.ALLGATHER, ranks=4, chunks=2)
    how = SearchSettings(restarts=5000, target_us=15.0)
    found = searched(topology, deliveries_of(demand), 0.5, settings=how)
    assert found.total_us == 15.0
    assert found.restarts < 5000


def test_symmetric_searches_send_all_images() -> None:
    topology, demand = ring(6), Demand(collective=Collective.ALLGATHER, ranks=6, chunks=2)
    group = translations(topology)
    assert group is not None
    how = SearchSettings(restarts=30, batch_share=1.0)
    found = searched(topology, deliveries_of(demand), 0.5, symmetry=group, settings=how)
    sends = found.sends
    rows = set(zip(sends.chunk.tolist(), sends.src.tolist(), sends.dst.tolist(), strict=True))
    for chunk, src, dst in rows:
        assert ((chunk + 2) % 12, (src + 1) % 6, (dst + 1) % 6) in rows


def test_routes_are_kept() -> None:
    topology, demand = ring(4), Demand(collective=Collective.ALLGATHER, ranks=4)
    clockwise = [topology.link_index[r, (r + 1) % 4] for r in range(4)]
    routes = Routes(
        first=np.arange(0, 13, 3),
        link=np.array([clockwise[(c + hop) % 4] for c in range(4) for hop in range(3)], np.int32),
    )
    found = searched(topology, deliveries_of(demand), 1.0, routes=routes)
    assert set((found.sends.dst - found.sends.src).tolist()) == {1, -3}
    assert found.total_us == 33.0


def test_errors_say_what_to_do() -> None:
    topology, demand = ring(4), Demand(collective=Collective.ALLGATHER, ranks=4)
    deliveries = deliveries_of(demand)
    with pytest.raises(ProgramError, match="chunk_mb is 0"):
        searched(topology, deliveries, 0.0)
    with pytest.raises(ProgramError, match="deliveries has 4 ranks, the topology 5"):
        searched(ring(5), deliveries, 1.0)
    with pytest.raises(ProgramError, match="element 0 of the symmetry maps link"):
        searched(topology, deliveries, 1.0, symmetry=np.array([[1, 0, 2, 3]]))
    one_way = Topology(
        name="one-way",
        hosts=("a", "b"),
        rank_host=(0, 1),
        links=(Link(src=0, dst=1, alpha_us=0.0, beta_us_per_mb=1.0),),
    )
    pair = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=2))
    with pytest.raises(ProgramError, match="no construction carries every chunk"):
        searched(one_way, pair, 1.0)
    found = searched(topology, deliveries, 1.0)
    with pytest.raises(TopologyError, match="'one-way' has no link"):
        ENGINE.retime(one_way, found.sends, 1.0)


@pytest.fixture
def interrupt_soon() -> Iterator[None]:
    """SIGINT comes in 0.2 s."""
    timer = threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    yield
    timer.cancel()
    timer.join()


@pytest.mark.usefixtures("interrupt_soon")
def test_an_interrupted_search_hands_over_the_best_so_far() -> None:
    """It used to be lost with the interrupt, however long the search had been."""
    demand = Demand(collective=Collective.ALLGATHER, ranks=8, chunks=2)
    topology, deliveries = dgx1(), deliveries_of(demand)
    with pytest.raises(SearchInterrupted) as caught:
        searched(topology, deliveries, 0.5, settings=SearchSettings(restarts=1 << 40))
    found = caught.value.found
    program = lower(realize(demand, found.sends))
    verify(program)
    assert not found.struck
    assert found.restarts > 1
    size = round(0.5e6 * demand.chunks * demand.blocks)
    assert simulate(program, topology, size, model=FULL).total_us == pytest.approx(found.total_us)


@pytest.mark.usefixtures("interrupt_soon")
@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.ALLREDUCE])
def test_an_interrupted_match_is_a_match(collective: Collective) -> None:
    found = match(dgx1(), collective, 1 << 20, ENGINE, effort="thorough", max_seconds=ENDLESS_S)
    assert found.interrupted
    assert not found.struck
    verify(lower(realize(found.demand, found.sends)))


@settings(max_examples=40, deadline=None)
@given(topology=topologies(), chunks=st.integers(1, 3), seed=st.integers(0, 99))
def test_combining_is_searched_for_backwards_and_carrying_goes_with_it(
    topology: Topology, chunks: int, seed: int
) -> None:
    """A reduce_scatter, then an allgather made to follow it: proven, and as fast as is said."""
    ranks = topology.ranks
    demand = Demand(collective=Collective.ALLREDUCE, ranks=ranks, chunks=ranks * chunks)
    deliveries, mb = deliveries_of(demand), demand.chunk_bytes(BYTES_PER_MB) / BYTES_PER_MB
    how = SearchSettings(seed=seed, restarts=20, batch_share=1.0)
    scatter = searched(transposed(topology), deliveries, mb, backwards=True, settings=how)
    assert scatter.sends.reduce.all()
    half = replace(demand, collective=Collective.REDUCE_SCATTER, chunks=chunks)
    program = lower(realize(half, scatter.sends))
    verify(program)
    time_us = simulate(program, topology, BYTES_PER_MB, model=FULL).total_us
    assert time_us == pytest.approx(scatter.total_us)
    gather = searched(topology, deliveries, mb, before=scatter.sends, settings=how)
    program = lower(realize(demand, concatenated(scatter.sends, gather.sends)))
    verify(program)
    time_us = simulate(program, topology, BYTES_PER_MB, model=FULL).total_us
    assert time_us == pytest.approx(gather.total_us)
    assert gather.total_us >= scatter.total_us


def test_what_goes_before_has_to_fit() -> None:
    topology = dgx1(1)
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=8))
    sends = searched(topology, deliveries, 1.0).sends
    few = replace(deliveries, origin=deliveries.origin[:4], targets=deliveries.targets[:4])
    with pytest.raises(ProgramError, match="needs sends of these chunks"):
        searched(topology, few, 1.0, before=sends)
    with pytest.raises(ProgramError, match="and a search forwards"):
        searched(topology, deliveries, 1.0, before=sends, backwards=True)
