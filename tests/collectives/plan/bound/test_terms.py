"""Terms past flows: trees, groups, cuts of large topologies, and demands known by their chunks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import STANDARD, Collective, Demand
from headrace.collectives.plan.bound import Bound, lower_bound, terms
from headrace.collectives.plan.bound.cuts import LargeTopology, partitions
from headrace.collectives.plan.bound.terms import kinds
from headrace.collectives.plan.generators import matching
from headrace.collectives.plan.ir.chunks import Deliveries
from headrace.errors import SymmetryError, TopologyError
from headrace.topology import SharedCapacity, Topology
from headrace.topology.presets import hub_and_spoke, racks
from tests.collectives.plan.flows.test_packing import networks
from tests.collectives.plan.oracle import best_us
from tests.collectives.plan.sends_check import ndv2_pair, network, ring
from tests.waiting import no_hang

MB = 1_000_000


def bound(topology: Topology, collective: Collective, mb: int = 12) -> Bound:
    demand = Demand(collective=collective, ranks=topology.ranks)
    return lower_bound(topology, demand, mb * MB)


def term(found: Bound, name: str) -> float:
    return max(term.bandwidth_us for term in found.terms if term.name.startswith(name))


def switched_pair() -> Topology:
    """Two hosts of four ranks, each rank with a port in and out; fast NICs for pairs of ranks."""
    n = 8
    local = [(s, d) for s in range(n) for d in range(n) if s != d and s // 4 == d // 4]
    far = [(s, d) for s in range(n) for d in range(n) if s // 4 != d // 4]
    links = local + far
    shared = [
        SharedCapacity(
            name=f"port-{end}-{r}",
            links=tuple(k for k, p in enumerate(links) if p[end] == r and p in local),
            beta_us_per_mb=10.0,
        )
        for r in range(n)
        for end in (0, 1)
    ]
    shared += [
        SharedCapacity(
            name=f"nic-{end}-{q}",
            links=tuple(k for k, p in enumerate(links) if p[end] // 2 == q and p in far),
            beta_us_per_mb=25.0,
        )
        for q in range(n // 2)
        for end in (0, 1)
    ]
    rows = [(s, d, 0.0, 10.0 if (s, d) in local else 25.0) for s, d in links]
    return network(n, rows, *shared)


@pytest.mark.parametrize(
    "collective", [Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.BROADCAST]
)
def test_trees_can_be_stronger_than_flows(collective: Collective) -> None:
    # NICs alone would be filled by the flows into one rank; all ranks together need more of them.
    found = bound(switched_pair(), collective, 8)
    assert term(found, "trees") >= term(found, "flow") * (1 - 1e-3)
    if collective is not Collective.BROADCAST:
        assert term(found, "trees") > term(found, "flow") * 1.01
        assert "trees" in found.formula


@settings(max_examples=25, deadline=None)
@given(topology=networks(), data=st.data())
def test_trees_of_what_combines_are_those_of_the_transposed_graph(
    topology: Topology, data: st.DataObject
) -> None:
    back = network(
        topology.ranks,
        [(k.dst, k.src, k.alpha_us, k.beta_us_per_mb) for k in topology.links],
        *topology.shared,
    )
    one = bound(topology, Collective.ALLGATHER)
    other = bound(back, Collective.REDUCE_SCATTER)
    # of prices that are tied, which alpha goes with them is the solver's choice
    assert one.bandwidth_us == pytest.approx(other.bandwidth_us, rel=3e-3)


def test_three_racks_are_bound_by_all_their_uplinks_together() -> None:
    topology = racks((2, 2, 2), host_bytes_per_s=50e6, uplink_bytes_per_s=25e6, alpha_us=5.0)
    names = [name for name, _ in partitions(topology)]
    assert names == ["groups"]  # one rank a host
    found = bound(topology, Collective.ALLREDUCE)
    # 2 * (3 - 1) * 12 MB over three uplinks of 40,000 us/MB.
    assert term(found, "volume of groups") == pytest.approx(2 * 2 * 12 * 40_000 / 3)
    assert found.bandwidth_us >= term(found, "volume of groups")
    assert "between groups" in found.formula
    gathered = bound(topology, Collective.ALLGATHER)
    assert term(gathered, "volume of groups") == pytest.approx(2 * 12 * 40_000 / 3)


def test_hosts_and_groups_are_told_apart() -> None:
    labels = dict(partitions(ndv2_like()))
    assert labels["hosts"].tolist() == [0, 0, 1, 1]
    assert "groups" not in labels  # the same as the hosts
    assert partitions(ring(4)) == []


def ndv2_like() -> Topology:
    rows = [(0, 1, 0.3, 23.0), (1, 0, 0.3, 23.0), (2, 3, 0.3, 46.0), (3, 2, 0.3, 46.0)]
    far = [(s, d) for s in range(4) for d in range(4) if s // 2 != d // 2]
    shared = [
        SharedCapacity(
            name=f"nic-{end}-{h}",
            links=tuple(4 + k for k, p in enumerate(far) if p[end] // 2 == h),
            beta_us_per_mb=105.0,
        )
        for h in range(2)
        for end in (0, 1)
    ]
    made = network(4, rows + [(s, d, 2.6, 105.0) for s, d in far], *shared)
    return Topology(
        name="pair",
        hosts=("a", "b"),
        rank_host=(0, 0, 1, 1),
        links=made.links,
        shared=made.shared,
    )


# --- Cuts instead of flows --------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(topology=networks(), collective=st.sampled_from(STANDARD), root=st.integers(0, 1))
def test_cuts_never_exceed_flows(topology: Topology, collective: Collective, root: int) -> None:
    """Without alpha: a cut all of whose links have alpha may say more than the flows of a rank."""
    demand = Demand(collective=collective, ranks=topology.ranks, root=root)
    cuts, *_ = terms._of_large(topology, demand)[0]
    found, weaker = (
        max(share.share * share.rate.us_per_mb for kind in made for share in kind)
        for made in (kinds(topology, demand).kinds, [cuts])
    )
    assert weaker <= found * (1 + 1e-6)


@pytest.mark.parametrize("collective", STANDARD)
def test_cuts_find_what_binds_switched_hosts(collective: Collective) -> None:
    topology = ndv2_pair()
    demand = Demand(collective=collective, ranks=16)
    made, formula = terms._of_large(topology, demand)
    cuts = max(s.share * s.rate.us_per_mb for kind in made for s in kind)
    full = lower_bound(topology, demand, MB)
    one_rank = collective in (Collective.REDUCE, Collective.BROADCAST, Collective.ALLREDUCE)
    assert cuts == pytest.approx(full.bandwidth_us, rel=0.02 if one_rank else 1e-3)
    assert "cuts around" in formula


def test_a_large_torus_is_no_hang() -> None:
    side = 32
    cells = [(x, y) for x in range(side) for y in range(side)]
    rows = [
        (x * side + y, (x + dx) % side * side + (y + dy) % side, 0.5, 20.0)
        for x, y in cells
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    topology = network(side * side, rows)
    with no_hang():
        gathered = bound(topology, Collective.ALLGATHER, side * side)
        exchanged = bound(topology, Collective.ALL_TO_ALL, side * side)
    assert gathered.bandwidth_us == pytest.approx((side * side - 1) * 20.0 / 4)
    assert gathered.latency_us == pytest.approx(0.5 * side)
    # Every pair is side / 2 hops apart on average.
    assert exchanged.bandwidth_us == pytest.approx(side * side * (side / 2) * 20.0 / 4, rel=1e-3)
    assert "cuts around ranks" in gathered.formula
    assert gathered.topology_digest == topology.digest


def test_a_large_graph_in_two_parts_is_refused() -> None:
    rows = [(i, (i + 1) % 300, 0.0, 1.0) for i in range(300) if i != 7]
    with pytest.raises(TopologyError, match="cannot reach rank"):
        bound(network(300, rows), Collective.ALLGATHER)
    large = LargeTopology(network(2, [(0, 1, 0.0, 1.0)]))
    with pytest.raises(TopologyError, match="rank 1 cannot reach rank 0"):
        large.require("allgather")


# --- Demands known by their chunks ------------------------------------------------------------


def custom_of(demand: Demand) -> Demand:
    """The same demand, with every value named."""

    def rows(values: str) -> list[tuple[int, int, int, tuple[int, ...]]]:
        return [
            (rank, slot, item, tuple(b for b in range(demand.ranks) if mask >> b & 1))
            for rank in range(demand.ranks)
            for slot, item, mask in getattr(demand, values)(rank)
        ]

    return Demand.custom(
        ranks=demand.ranks, slots=demand.slots, before=rows("initial"), after=rows("final")
    )


@settings(max_examples=30, deadline=None)
@given(topology=networks(), collective=st.sampled_from(STANDARD))
def test_a_custom_demand_is_never_bound_above_the_collective_it_is(
    topology: Topology, collective: Collective
) -> None:
    demand = Demand(collective=collective, ranks=topology.ranks)
    custom = custom_of(demand)
    sides = custom.blocks / demand.blocks
    known = lower_bound(topology, demand, 8 * MB)
    found = lower_bound(topology, custom, round(8 * MB * sides))
    # without alpha: of prices that are tied, which one goes with them is the solver's choice
    assert found.bandwidth_us <= known.bandwidth_us * (1 + 1e-3)
    if collective in (Collective.ALLGATHER, Collective.ALL_TO_ALL, Collective.SCATTER):
        flows = max(t.bandwidth_us for t in known.terms if t.name.startswith("flow"))
        assert found.bandwidth_us >= flows * (1 - 1e-3)
    assert Bound.from_head(found.to_head()) == found


def test_what_several_ranks_hold_need_not_be_carried() -> None:
    held = Demand.custom(
        ranks=3,
        slots=1,
        before=[(0, 0, 0, (0,)), (1, 0, 0, (0,))],
        after=[(2, 0, 0, (0,))],
    )
    assert lower_bound(ring(3), held, MB).total_us == 0.0


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_uneven_exchange_beats_its_bound(data: st.DataObject) -> None:
    counts = data.draw(
        st.lists(
            st.lists(st.sampled_from([0, 0, 1, 2]), min_size=3, max_size=3), min_size=3, max_size=3
        )
    )
    demand = Demand.all_to_all_v(counts)
    pairs = [(s, d) for s in range(3) for d in range(3) if s != d]
    costs = st.sampled_from([(0.0, 10.0), (4.0, 20.0), (1.0, 35.0)])
    topology = network(3, [(s, d, *data.draw(costs)) for s, d in pairs])
    moved = [(s, d) for s, row in enumerate(counts) for d, n in enumerate(row) for _ in range(n)]
    origin = np.array([s for s, d in moved if s != d], dtype=np.int32)
    to = np.array([d for s, d in moved if s != d], dtype=np.int64)
    found = lower_bound(topology, demand, demand.blocks * MB)
    if not len(origin):
        assert found.total_us == 0.0
        return
    assume(len(origin) <= 4)
    deliveries = Deliveries(ranks=3, origin=origin, targets=np.arange(3) == to[:, None])
    assert found.total_us <= best_us(topology, deliveries, 1.0) * (1 + 1e-9)


@pytest.mark.parametrize("collective", [Collective.ALLREDUCE, Collective.ALLGATHER])
def test_more_symmetries_than_can_be_searched_for_leave_the_bound(
    collective: Collective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a star of 212 ranks or more neither a bound nor a plan was computed."""
    demand = Demand(collective=collective, ranks=6)
    known = lower_bound(hub_and_spoke(6), demand, 6_000_000)
    monkeypatch.setattr(terms, "automorphism_generators", _refuse)
    star = replace(hub_and_spoke(6), name="another")  # bounds are cached by topology
    bound = lower_bound(star, demand, 6_000_000)
    assert bound.total_us == pytest.approx(known.total_us)
    monkeypatch.setattr(matching, "automorphism_generators", _refuse)
    assert matching.symmetry_groups(star) == ()


def _refuse(topology: Topology) -> None:
    raise SymmetryError(f"{topology.name}: the search for automorphisms took too many steps")
