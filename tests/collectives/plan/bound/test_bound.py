"""Bounds: known values, what they are made of, what they refuse, and programs against them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import ROOTED, STANDARD, Collective, Demand
from headrace.collectives.plan.bound import Bound, lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.program import Schedule, Transfer
from headrace.errors import ArtifactError, InputError, TopologyError
from headrace.topology import Link, SharedCapacity, Topology
from headrace.topology.presets import racks, uniform

MB = 1_000_000
ALPHA = 50.0


def bound(topology: Topology, collective: Collective, total_bytes: int = 12 * MB) -> Bound:
    return lower_bound(topology, Demand(collective=collective, ranks=topology.ranks), total_bytes)


def network(n: int, rows: list[tuple[int, int, float, float]], *shared: SharedCapacity) -> Topology:
    return Topology(
        name="network",
        hosts=tuple(f"h{i}" for i in range(n)),
        rank_host=tuple(range(n)),
        links=tuple(Link(src=s, dst=d, alpha_us=a, beta_us_per_mb=b) for s, d, a, b in rows),
        shared=shared,
    )


@pytest.mark.parametrize(
    ("collective", "mb_per_rate"),
    [
        (Collective.ALLREDUCE, 2 * 3 / 4),  # volume: 2(N-1)M over N NICs
        (Collective.BROADCAST, 1.0),
        (Collective.REDUCE, 1.0),
        (Collective.ALLGATHER, 3 / 4),
        (Collective.REDUCE_SCATTER, 3 / 4),
        (Collective.GATHER, 3 / 4),
        (Collective.SCATTER, 3 / 4),
        (Collective.ALL_TO_ALL, 3 / 4),
    ],
)
def test_a_uniform_network_has_the_textbook_bounds(
    collective: Collective, mb_per_rate: float
) -> None:
    found = bound(uniform(4, alpha_us=ALPHA, bytes_per_s=1e9), collective)
    assert found.bandwidth_us == pytest.approx(12_000.0 * mb_per_rate)
    assert found.latency_us == ALPHA
    assert found.total_us == pytest.approx(found.bandwidth_us + ALPHA)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 2, 0)])
@pytest.mark.parametrize(
    ("collective", "mb"),
    [
        (Collective.ALLREDUCE, 12.0),
        (Collective.BROADCAST, 12.0),
        (Collective.ALLGATHER, 6.0),  # the other rack's half
        (Collective.GATHER, 6.0),
        (Collective.ALL_TO_ALL, 12.0),  # 4 ordered pairs a quarter each, twice
    ],
)
def test_racks_are_bound_by_their_uplinks_in_any_rank_order(
    order: tuple[int, ...], collective: Collective, mb: float
) -> None:
    topology = racks(
        (2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6, rank_order=order, alpha_us=ALPHA
    )
    found = bound(topology, collective)
    assert found.bandwidth_us == pytest.approx(mb * 80_000.0)
    assert found.total_us == pytest.approx(found.bandwidth_us + ALPHA)


def test_latency_follows_shortest_paths_and_adds_to_bandwidth() -> None:
    # 0 <-> 1 <-> 2 with no link between the ends.
    rows = [(0, 1, 5.0, 100.0), (1, 0, 5.0, 100.0), (1, 2, 7.0, 300.0), (2, 1, 7.0, 300.0)]
    topology = network(3, rows)
    found = bound(topology, Collective.ALLREDUCE, MB)
    assert found.latency_us == 12.0
    assert found.bandwidth_us == pytest.approx(300.0)
    assert found.total_us == pytest.approx(312.0)
    root = Demand(collective=Collective.BROADCAST, ranks=3, root=1)
    assert lower_bound(topology, root, MB).latency_us == 7.0
    assert bound(topology, Collective.ALLREDUCE, 0).total_us == 12.0


def test_a_slow_detour_does_not_lend_its_latency_to_the_bound() -> None:
    # Two ways from 0 to 1: direct, and through 2 with much alpha. A small message goes direct.
    rows = [(0, 1, 1.0, 100.0), (0, 2, 500.0, 100.0), (2, 1, 500.0, 100.0)]
    topology = network(3, rows)
    demand = Demand(collective=Collective.BROADCAST, ranks=3)
    schedule = Schedule.of(demand, [Transfer(0, 1, 0, 0), Transfer(0, 2, 0, 0)])
    found = lower_bound(topology, demand, 1000)
    assert found.latency_us == 500.0
    assert found.total_us <= simulate(lower(schedule), topology, 1000).total_us
    flow = found.terms[0]
    assert flow.name == "flow 0 -> 2"
    assert flow.us == pytest.approx(0.1 + 500.0)


def test_links_that_share_a_bus_are_bound_by_what_all_sends_move() -> None:
    # Every send crosses one bus: a broadcast to three costs three crossings.
    pairs = [(s, d) for s in range(4) for d in range(4) if s != d]
    bus = SharedCapacity(name="bus", links=tuple(range(12)), beta_us_per_mb=100.0)
    topology = network(4, [(s, d, 0.0, 100.0) for s, d in pairs], bus)
    assert bound(topology, Collective.BROADCAST, MB).total_us == pytest.approx(300.0)
    assert bound(topology, Collective.ALLREDUCE, MB).total_us == pytest.approx(600.0)
    assert bound(topology, Collective.ALL_TO_ALL, MB).total_us == pytest.approx(300.0)


def test_reduce_scatter_is_allgather_on_reversed_links() -> None:
    rows = [(0, 1, 1.0, 100.0), (1, 2, 2.0, 50.0), (2, 0, 3.0, 20.0), (1, 0, 4.0, 70.0)]
    there = network(3, rows)
    back = network(3, [(d, s, a, b) for s, d, a, b in rows])
    one = bound(there, Collective.ALLGATHER, MB)
    other = bound(back, Collective.REDUCE_SCATTER, MB)
    assert one.total_us == pytest.approx(other.total_us)
    assert one.bandwidth_us == pytest.approx(other.bandwidth_us)


@pytest.mark.parametrize("collective", list(STANDARD))
def test_one_rank_needs_no_time(collective: Collective) -> None:
    found = bound(uniform(1), collective)
    assert (found.total_us, found.bandwidth_us, found.latency_us) == (0.0, 0.0, 0.0)
    assert found.terms == ()


@pytest.mark.parametrize("collective", list(STANDARD))
def test_a_bound_survives_json_and_names_its_graph(collective: Collective) -> None:
    topology = racks((2, 1), host_bytes_per_s=50e6, uplink_bytes_per_s=12.5e6)
    found = bound(topology, collective)
    assert Bound.from_head(json.loads(json.dumps(found.to_head()))) == found
    assert found.topology_digest == topology.digest
    kinds = [term.name.split()[0] for term in found.terms]
    assert (kinds[0], kinds[-1]) == ("flow", "latency")
    assert set(kinds) <= {"flow", "trees", "volume", "latency"}
    assert found.total_us == max(term.us for term in found.terms)
    assert "alpha" in found.formula


def test_a_damaged_head_is_an_error() -> None:
    head = bound(uniform(2), Collective.ALLREDUCE).to_head()
    del head["terms"]
    with pytest.raises(ArtifactError, match=r"plan 3: needs .*KeyError\('terms'\)"):
        Bound.from_head(head, "plan 3")


@pytest.mark.parametrize("collective", sorted(set(STANDARD) - ROOTED))
def test_a_pair_that_cannot_reach_each_other_is_named(collective: Collective) -> None:
    with pytest.raises(TopologyError, match=r"rank 1 cannot reach rank 0 .*add a link"):
        bound(network(2, [(0, 1, 1.0, 1.0)]), collective)


def test_rooted_collectives_need_only_their_own_direction() -> None:
    one_way = network(2, [(0, 1, 1.0, 10.0)])
    assert bound(one_way, Collective.BROADCAST, MB).total_us == pytest.approx(11.0)
    with pytest.raises(TopologyError, match="rank 1 cannot reach rank 0"):
        bound(one_way, Collective.REDUCE)
    with pytest.raises(TopologyError, match="rank 0 cannot reach rank 1"):
        bound(network(2, []), Collective.BROADCAST)


def test_bad_arguments_are_errors() -> None:
    with pytest.raises(InputError, match="total_bytes is -1"):
        bound(uniform(2), Collective.ALLREDUCE, -1)
    with pytest.raises(TopologyError, match="has 2 ranks, the collective 3"):
        lower_bound(uniform(2), Demand(collective=Collective.ALLREDUCE, ranks=3), 1)


# --- No program beats the bound ---------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Full meshes with uneven links, and capacities shared by arbitrary sets of them."""
    n = draw(st.integers(2, 4))
    pairs = [(s, d) for s in range(n) for d in range(n) if s != d]
    alphas = st.sampled_from([0.0, 1.0, 20.0, 300.0])
    betas = st.sampled_from([20.0, 100.0, 130.0, 1000.0])
    rows = [(s, d, draw(alphas), draw(betas)) for s, d in pairs]
    groups = st.sets(st.integers(0, len(pairs) - 1), min_size=1)
    shared = [
        SharedCapacity(name=f"c{i}", links=tuple(draw(groups)), beta_us_per_mb=draw(betas))
        for i in range(draw(st.integers(0, 3)))
    ]
    return network(n, rows, *shared)


def random_schedule(demand: Demand, draw: st.DrawFn) -> Schedule:
    """Every chunk along its own random tree, or everything direct: correct, seldom good."""
    n = demand.ranks
    transfers: list[Transfer] = []

    def tree(root: int) -> list[tuple[int, int]]:
        """(child, parent), parents first."""
        rest = draw(st.permutations([r for r in range(n) if r != root]))
        placed = [root]
        edges: list[tuple[int, int]] = []
        for rank in rest:
            edges.append((rank, draw(st.sampled_from(placed))))
            placed.append(rank)
        return edges

    for slot in range(demand.slots):
        match demand.collective:
            case Collective.ALLREDUCE:
                edges = tree(draw(st.integers(0, n - 1)))
                transfers += [Transfer(c, p, slot, slot, True) for c, p in reversed(edges)]
                transfers += [Transfer(p, c, slot, slot) for c, p in edges]
            case Collective.REDUCE:
                edges = tree(demand.root)
                transfers += [Transfer(c, p, slot, slot, True) for c, p in reversed(edges)]
            case Collective.REDUCE_SCATTER:
                edges = tree(slot // demand.chunks)
                transfers += [Transfer(c, p, slot, slot, True) for c, p in reversed(edges)]
            case Collective.BROADCAST:
                transfers += [Transfer(p, c, slot, slot) for c, p in tree(demand.root)]
            case Collective.ALLGATHER:
                edges = tree(slot // demand.chunks)
                transfers += [Transfer(p, c, slot, slot) for c, p in edges]
            case Collective.GATHER:
                if slot // demand.chunks != demand.root:
                    transfers.append(Transfer(slot // demand.chunks, demand.root, slot, slot))
            case Collective.SCATTER:
                if slot // demand.chunks != demand.root:
                    transfers.append(Transfer(demand.root, slot // demand.chunks, slot, slot))
            case Collective.ALL_TO_ALL:
                half = demand.slots // 2
                if slot < half:
                    d, k = divmod(slot, demand.chunks)
                    transfers += [
                        Transfer(s, d, slot, half + s * demand.chunks + k) for s in range(n)
                    ]
    return Schedule.of(demand, transfers)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_program_beats_the_bound(data: st.DataObject) -> None:
    topology = data.draw(networks())
    demand = Demand(
        collective=data.draw(st.sampled_from(list(STANDARD))),
        ranks=topology.ranks,
        chunks=data.draw(st.integers(1, 3)),
        root=data.draw(st.integers(0, topology.ranks - 1)),
    )
    total_bytes = data.draw(st.sampled_from([0, 1000, 65536, MB, 4 * MB]))
    program = lower(random_schedule(demand, data.draw))
    found = simulate(program, topology, total_bytes, max_pieces=300)
    least = lower_bound(topology, demand, total_bytes)
    assert found.total_us >= least.total_us * (1 - 1e-9)
    assert found.shared_busy.max(initial=0.0) <= 1 + 1e-9
