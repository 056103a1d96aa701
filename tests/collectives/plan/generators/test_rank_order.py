"""Templates in the best order of ranks: against all orders, the simulator and the proof."""

from collections.abc import Sequence
from functools import partial
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.instruments.perturbed import perturbed
from headrace.collectives.demand import ROOTED, Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.engine import SearchResult
from headrace.collectives.plan.generators import templates
from headrace.collectives.plan.generators.rank_order import best_placement, joined, placements
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.ir.sends import Sends
from headrace.collectives.plan.request import Method, Request
from headrace.collectives.plan.verify import verify
from headrace.collectives.program import Schedule
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.topology import Link, Topology, presets
from tests.collectives.plan.tiny import random_topology

ENGINE = NativeSearch()
MB = 1_000_000


def ring(demand: Demand, order: Sequence[int]) -> Schedule:
    return templates.ring(demand, order=order)


def doubling(demand: Demand, order: Sequence[int]) -> Schedule:
    return joined(templates.halving_doubling(demand, order=order))


def simulated_us(schedule: Schedule, topology: Topology, total_bytes: int = MB) -> float:
    return simulate(lower(schedule), topology, total_bytes, model=FULL).total_us


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 500),
    collective=st.sampled_from([Collective.ALLGATHER, Collective.ALLREDUCE, Collective.BROADCAST]),
)
def test_tiny_networks_get_the_best_order_there_is(seed: int, collective: Collective) -> None:
    topology = random_topology(seed, ranks=5)
    chunks = 5 if collective is Collective.ALLREDUCE else 2
    demand = Demand(collective=collective, ranks=5, chunks=chunks, root=0)
    found = best_placement(
        topology,
        partial(ring, demand),
        MB,
        ENGINE,
        start=range(5),
        fixed=0 if collective in ROOTED else None,
        seed=seed,
        trials=600,
    )
    # A ring may start anywhere: with rank 0 first there are all that differ.
    orders = ((0, *rest) for rest in permutations(range(1, 5)))
    least = min(simulated_us(ring(demand, order), topology) for order in orders)
    assert found.total_us == pytest.approx(least)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 500),
    ranks=st.integers(3, 8),
    collective=st.sampled_from(
        [
            Collective.ALLGATHER,
            Collective.REDUCE_SCATTER,
            Collective.ALLREDUCE,
            Collective.BROADCAST,
            Collective.REDUCE,
        ]
    ),
)
def test_reordered_plans_are_proven_and_take_as_long_as_predicted(
    seed: int, ranks: int, collective: Collective
) -> None:
    topology = random_topology(seed, ranks=ranks)
    method = Method(model=FULL, engine=ENGINE, seed=seed)
    request = Request(topology, collective, root=ranks - 1, method=method)
    for found in placements(request, MB, 60):
        assert sorted(found.order) == list(range(ranks))
        program = lower(found.schedule)
        verify(program)
        assert program.demand.collective is collective
        assert simulated_us(found.schedule, topology) == pytest.approx(found.total_us)


def test_a_slow_link_is_left_out_of_the_ring() -> None:
    links = tuple(
        Link(src=s, dst=d, alpha_us=1.0, beta_us_per_mb=100.0 if {s, d} == {2, 3} else 10.0)
        for s in range(8)
        for d in range(8)
        if s != d
    )
    topology = Topology(name="one slow", hosts=("h",), rank_host=(0,) * 8, links=links)
    make = partial(ring, Demand(collective=Collective.ALLGATHER, ranks=8))
    found = best_placement(topology, make, 8 * MB, ENGINE, start=range(8), seed=3)
    around = list(zip(found.order, (*found.order[1:], found.order[0]), strict=True))
    assert (2, 3) not in around
    assert (3, 2) not in around
    assert found.total_us == pytest.approx(7 * 11.0)


def test_a_ring_is_found_where_the_ranks_in_order_have_none() -> None:
    mesh = presets.mesh((3, 4))
    make = partial(ring, Demand(collective=Collective.ALLGATHER, ranks=12))
    with pytest.raises(TopologyError, match="has no link"):
        simulate(lower(make(range(12))), mesh, MB, model=FULL)
    found = best_placement(mesh, make, MB, ENGINE, start=range(12), trials=3000)
    assert simulated_us(found.schedule, mesh) == pytest.approx(found.total_us)


def test_where_there_is_no_ring_it_is_said() -> None:
    star = Topology(
        name="star",
        hosts=("h",),
        rank_host=(0,) * 4,
        links=tuple(
            Link(src=s, dst=d, alpha_us=1.0, beta_us_per_mb=10.0)
            for leaf in (1, 2, 3)
            for s, d in ((0, leaf), (leaf, 0))
        ),
    )
    make = partial(ring, Demand(collective=Collective.ALLGATHER, ranks=4))
    with pytest.raises(ProgramError, match="every order tried needs links"):
        best_placement(star, make, MB, ENGINE, start=range(4), trials=50)


def test_equal_seeds_give_equal_orders_and_more_trials_are_no_worse() -> None:
    topology = perturbed(presets.dgx2(1), 7)
    make = partial(doubling, Demand(collective=Collective.ALLGATHER, ranks=16))
    few, again, more = (
        best_placement(topology, make, 16 * MB, ENGINE, start=range(16), seed=1, trials=trials)
        for trials in (100, 100, 400)
    )
    assert few.order == again.order
    assert few.total_us == again.total_us
    first = simulated_us(make(range(16)), topology, 16 * MB)
    assert max(few.total_us, more.total_us) <= first


def test_parts_that_follow_each_other_are_one_message() -> None:
    demand = Demand(collective=Collective.ALLGATHER, ranks=16)
    apart = templates.halving_doubling(demand, order=range(16))
    together = doubling(demand, range(16))
    verify(lower(together))
    assert sum(not each.joined for each in together.transfers) == 16 * 4
    assert len(together.transfers) == len(apart.transfers)
    machine = presets.dgx2(1)
    assert simulated_us(together, machine) < simulated_us(apart, machine)


def test_what_is_nowhere_near_gets_a_quarter_of_the_trials() -> None:
    class Counting(NativeSearch):
        count = 0

        def retime(self, topology: Topology, sends: Sends, chunk_mb: float) -> SearchResult:
            self.count += 1
            return super().retime(topology, sends, chunk_mb)

    topology = perturbed(presets.uniform(9), 1)
    make = partial(ring, Demand(collective=Collective.ALLGATHER, ranks=9))
    counts: list[int] = []
    for beat_us in (float("inf"), 1.0):
        engine = Counting()
        best_placement(topology, make, MB, engine, start=range(9), trials=400, beat_us=beat_us)
        counts.append(engine.count)
    assert counts[1] <= 110 < 300 < counts[0]
