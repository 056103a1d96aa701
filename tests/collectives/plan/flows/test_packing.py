"""Tree packings against known optima and flows, in whole chunks, and as schedules."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.engine import Routes, SearchProblem, SearchSettings
from headrace.collectives.plan.flows import Packing, PackSettings, pack
from headrace.collectives.plan.flows.arborescence import cheapest_arborescence, shallower
from headrace.collectives.plan.flows.commodities import Loads, TreeColumn
from headrace.collectives.plan.flows.rates import Flows
from headrace.collectives.plan.flows.rounding import rounded, tree_routes
from headrace.collectives.plan.ir.chunks import Deliveries, Sends
from headrace.collectives.plan.ir.permutations import link_images
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.topology import SharedCapacity, Topology
from headrace.topology.symmetry import translations
from tests.collectives.plan.sends_check import (
    all_to_all,
    allgather,
    broadcast,
    ndv2_node,
    ndv2_pair,
    network,
    ring,
    total_us,
)
from tests.topology.automorphisms import automorphisms


def load_us(topology: Topology, packing: Packing, tree: np.ndarray, chunk_mb: float) -> float:
    """Load of the busiest resource, in us, when every chunk goes down its `tree`."""
    loads = Loads(topology)
    total = np.zeros(len(loads.betas))
    for column, count in enumerate(np.bincount(tree[tree >= 0], minlength=len(packing.columns))):
        if count:
            total += count * chunk_mb * loads.of(packing.columns[column].links)
    return float(total.max(initial=0.0))


def scheduled(
    topology: Topology,
    deliveries: Deliveries,
    chunk_mb: float,
    through: Routes,
    batch_share: float = 0.0,
) -> tuple[Sends, float]:
    """Send every chunk down its route; return sends and total in us."""
    found = NativeSearch().search(
        SearchProblem(topology=topology, deliveries=deliveries, chunk_mb=chunk_mb, routes=through),
        SearchSettings(restarts=24, batch_share=batch_share),
    )
    return found.sends, found.total_us


@cache
def all_trees(n: int) -> np.ndarray:
    """Every rank's parent in all trees of n ranks, [trees, n]: rank 0 is the root, and its own."""
    choices = np.meshgrid(*[np.arange(n)] * (n - 1), indexing="ij")
    parents = np.insert(np.stack(choices, axis=-1).reshape(-1, n - 1), 0, 0, axis=1)
    ancestors = parents
    for _ in range(n):
        ancestors = np.take_along_axis(parents, ancestors, axis=1)
    return parents[(ancestors == 0).all(axis=1)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_arborescences_are_the_cheapest_of_all_trees(data: st.DataObject) -> None:
    """networkx finds none in some graphs that have one, such as a chain with its edges back."""
    n = data.draw(st.integers(2, 6))
    entry = st.sampled_from([1.0, 2.0, 3.0, 5.0, np.inf])
    cost = np.array(
        data.draw(st.lists(st.lists(entry, min_size=n, max_size=n), min_size=n, max_size=n))
    )
    np.fill_diagonal(cost, np.inf)
    children, trees = np.arange(1, n), all_trees(n)
    best = cost[trees[:, 1:], children].sum(axis=1).min()
    if np.isinf(best):
        with pytest.raises(TopologyError, match="rank 0 cannot reach rank"):
            cheapest_arborescence(cost, 0)
        return
    parents = cheapest_arborescence(cost, 0)
    assert parents[0] == -1
    assert cost[parents[1:], children].sum() == best
    flat = shallower(parents, cost, np.ones((n, n)))
    assert cost[flat[1:], children].sum() == pytest.approx(best)
    for tree in (parents, flat):
        assert (trees[:, 1:] == tree[1:]).all(axis=1).any()


def loads(topology: Topology, packing: Packing) -> float:
    """The busiest resource, counted link by link."""
    mb = np.zeros(len(topology.links))
    for column in packing.columns:
        mb[column.links] += column.mb
    each = [mb[k] * link.beta_us_per_mb for k, link in enumerate(topology.links)]
    each += [mb[list(s.links)].sum() * s.beta_us_per_mb for s in topology.shared]
    return max(each)


@pytest.mark.parametrize(
    ("topology", "deliveries", "us"),
    [
        (ndv2_node(), allgather(8), 161 / 3),
        (ndv2_node(), all_to_all(8), 368 / 3),
        (ndv2_node(), broadcast(8), 23 / 3),
        (ndv2_pair(), allgather(16), 840.0),
        (ndv2_pair(), all_to_all(16), 6720.0),
        (ring(5), allgather(5), 20.0),
        (ring(5), broadcast(5), 5.0),
    ],
)
def test_known_optima(topology: Topology, deliveries: Deliveries, us: float) -> None:
    packing = pack(topology, deliveries, 1.0)
    assert packing.throughput_us == pytest.approx(us, rel=1e-3)
    assert us * (1 - 1.1e-3) <= packing.bound_us <= us * (1 + 1e-9)
    assert packing.gap <= 1e-3
    assert loads(topology, packing) == pytest.approx(packing.throughput_us)
    assert packing.prices.min() >= 0.0
    assert packing.prices.sum() == pytest.approx(1.0)
    shipped = np.bincount(
        [column.commodity for column in packing.columns], [column.mb for column in packing.columns]
    )
    assert shipped == pytest.approx([commodity.mb for commodity in packing.commodities])


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    n = draw(st.integers(2, 5))
    pairs = {(i, (i + 1) % n) for i in range(n)}
    pairs |= draw(st.sets(st.sampled_from([(s, d) for s in range(n) for d in range(n) if s != d])))
    betas = st.sampled_from([10.0, 20.0, 25.0, 70.0, 300.0])
    groups = st.sets(st.integers(0, len(pairs) - 1), min_size=2)
    shared = [
        SharedCapacity(name=f"c{i}", links=tuple(draw(groups)), beta_us_per_mb=draw(betas))
        for i in range(draw(st.integers(0, 2)) if len(pairs) > 2 else 0)
    ]
    return network(
        n,
        [(s, d, draw(st.sampled_from([0.0, 5.0])), draw(betas)) for s, d in sorted(pairs)],
        *shared,
    )


@settings(max_examples=30, deadline=None)
@given(topology=networks())
def test_paths_pack_as_tightly_as_flows_and_trees_no_tighter(topology: Topology) -> None:
    n = topology.ranks
    pairs = [(s, d) for s in range(n) for d in range(n) if s != d]
    flows = Flows(topology)
    tight = pack(topology, all_to_all(n), 1.0).throughput_us
    assert tight == pytest.approx(flows.rate(pairs).us_per_mb, rel=2e-3)
    into = max(flows.rate([(s, t) for s in range(n) if s != t]).us_per_mb for t in range(n))
    trees = pack(topology, allgather(n), 1.0)
    assert trees.throughput_us >= into * (1 - 1e-9)
    assert loads(topology, trees) == pytest.approx(trees.throughput_us)
    one = pack(topology, broadcast(n), 1.0).throughput_us
    cut = max(flows.rate([(0, t)]).us_per_mb for t in range(1, n))
    if not topology.shared:  # Edmonds: branchings attain the smallest cut
        assert one == pytest.approx(cut, rel=2e-3)
    else:
        assert one >= cut * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(topology=networks(), data=st.data())
def test_whole_chunks_arrive_as_scheduled(topology: Topology, data: st.DataObject) -> None:
    n, chunks = topology.ranks, data.draw(st.integers(1, 3))
    make = data.draw(st.sampled_from([allgather, broadcast, all_to_all]))
    share = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    deliveries = make(n, chunks)
    packing = pack(topology, make(n), 1.0)
    tree = rounded(topology, packing, deliveries)
    wanted = deliveries.targets.any(axis=1)
    assert ((tree >= 0) == wanted).all()
    busiest = load_us(topology, packing, tree, 1.0 / chunks)
    assert busiest >= packing.bound_us * (1 - 1e-9)
    sends, end = scheduled(topology, deliveries, 1.0 / chunks, tree_routes(packing, tree), share)
    assert total_us(topology, deliveries, 1.0 / chunks, sends) == pytest.approx(end)
    assert end >= busiest * (1 - 1e-9)


def test_thirds_of_an_all_to_all_fill_the_node_exactly() -> None:
    topology = ndv2_node()
    packing = pack(topology, all_to_all(8), 1.0)
    deliveries = all_to_all(8, 3)
    tree = rounded(topology, packing, deliveries)
    assert load_us(topology, packing, tree, 1 / 3) == pytest.approx(368 / 3)
    sends, end = scheduled(topology, deliveries, 1 / 3, tree_routes(packing, tree))
    assert total_us(topology, deliveries, 1 / 3, sends) == pytest.approx(end)
    assert end <= 368 / 3 * 1.02


def test_packing_is_deterministic_and_stops_when_told() -> None:
    one, other = (pack(ndv2_pair(), allgather(16), 1.0) for _ in range(2))
    assert [c.links.tolist() for c in one.columns] == [c.links.tolist() for c in other.columns]
    assert [c.mb for c in one.columns] == [c.mb for c in other.columns]
    early = pack(ring(6), broadcast(6), 1.0, settings=PackSettings(iterations=1, spread_rounds=1))
    assert early.stopped in ("iterations", "gap")
    assert early.bound_us <= early.throughput_us


def test_some_targets_are_served_by_shortest_paths() -> None:
    targets = np.array([[False, False, True, True, False]])
    deliveries = Deliveries(ranks=5, origin=np.array([0], dtype=np.int32), targets=targets)
    packing = pack(ring(5), deliveries, 1.0)
    sends, end = scheduled(
        ring(5), deliveries, 1.0, tree_routes(packing, rounded(ring(5), packing, deliveries))
    )
    assert total_us(ring(5), deliveries, 1.0, sends) == pytest.approx(end)


def test_what_cannot_be_packed_or_scheduled_is_an_error() -> None:
    one_way = network(3, [(0, 1, 0.0, 1.0), (1, 0, 0.0, 1.0), (2, 0, 0.0, 1.0)])
    with pytest.raises(TopologyError, match="cannot reach rank 2"):
        pack(one_way, allgather(3), 1.0)
    with pytest.raises(TopologyError, match="cannot reach rank 2"):
        pack(one_way, all_to_all(3), 1.0)
    packing = pack(ring(3), allgather(3), 1.0)
    with pytest.raises(ProgramError, match="not the packing's 3"):
        rounded(ring(3), packing, broadcast(3))
    nothing = Routes(first=np.zeros(2, dtype=np.int64), link=np.empty(0, dtype=np.int32))
    astray = Routes(first=np.array([0, 1]), link=np.array([ring(3).link_index[1, 2]], np.int32))
    for routes in (nothing, astray):
        with pytest.raises(ProgramError, match="no construction carries every chunk"):
            scheduled(ring(3), broadcast(3), 1.0, routes)


def test_one_rank_packs_nothing() -> None:
    alone = network(1, [])
    packing = pack(alone, allgather(1), 1.0)
    assert (packing.throughput_us, packing.columns) == (0.0, ())
    assert rounded(alone, packing, allgather(1)).tolist() == [-1]


# --- One commodity of an orbit ----------------------------------------------------------------


def torus(side: int) -> Topology:
    rows = [
        (x * side + y, (x + dx) % side * side + (y + dy) % side, 0.5, 20.0)
        for x in range(side)
        for y in range(side)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    return network(side * side, rows)


@pytest.mark.parametrize(
    ("topology", "deliveries", "us"),
    [
        (torus(4), allgather(16), 15 * 20.0 / 4),
        (ndv2_node(), allgather(8), 161 / 3),
        (ndv2_node(), all_to_all(8), 368 / 3),
    ],
)
def test_a_group_packs_one_for_all(topology: Topology, deliveries: Deliveries, us: float) -> None:
    group = translations(topology)
    group = automorphisms(topology) if group is None else group
    packing = pack(topology, deliveries, 1.0, symmetry=group)
    assert packing.throughput_us == pytest.approx(us, rel=1e-3)
    assert packing.prices.sum() == pytest.approx(1.0)
    # The images of the trees carry the other commodities.
    carried = {(k.origin, k.targets): 0.0 for k in packing.commodities}
    columns: list[TreeColumn] = []
    for perm in group:
        image = link_images(topology, perm)
        for column in packing.columns:
            first = packing.commodities[column.commodity]
            targets = tuple(sorted(perm[list(first.targets)].tolist()))
            carried[int(perm[first.origin]), targets] += column.mb
            columns.append(replace(column, links=image[column.links]))
    times = len(group) * len({c.commodity for c in packing.columns}) / len(packing.commodities)
    assert list(carried.values()) == pytest.approx([k.mb * times for k in packing.commodities])
    columns = [replace(column, mb=column.mb / times) for column in columns]
    assert loads(topology, replace(packing, columns=tuple(columns))) == pytest.approx(
        packing.throughput_us
    )


def test_no_group_of_something_else_is_accepted() -> None:
    turn = np.array([np.arange(8), np.roll(np.arange(8), 1)])
    with pytest.raises(TopologyError, match="has no image"):
        pack(ndv2_node(), allgather(8), 1.0, symmetry=turn)
    turn = np.array([np.arange(4), np.roll(np.arange(4), 1)])
    with pytest.raises(ProgramError, match="chunk 0 from rank 0 has no image from rank 3"):
        pack(ring(4), broadcast(4), 1.0, symmetry=turn)
    port = SharedCapacity(name="port", links=(0, 2), beta_us_per_mb=50.0)
    uneven = network(4, [(k.src, k.dst, 0.0, 10.0) for k in ring(4).links], port)
    with pytest.raises(TopologyError, match="the capacity of links"):
        pack(uneven, allgather(4), 1.0, symmetry=turn)
