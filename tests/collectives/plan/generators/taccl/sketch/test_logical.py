"""Sketches applied: what is kept, what it costs, what is refused and why."""

from dataclasses import replace

import numpy as np
import pytest

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import SketchError
from headrace.collectives.plan.generators.taccl.routing import RouteProblem
from headrace.collectives.plan.generators.taccl.sketch.logical import apply_sketch
from headrace.collectives.plan.generators.taccl.sketch.named import NAMED
from headrace.collectives.plan.generators.taccl.sketch.sketch import (
    Internode,
    Intranode,
    Policy,
    RelayMap,
    Sketch,
    Strategy,
    Symmetry,
)
from headrace.collectives.plan.ir.chunks import deliveries_of
from headrace.topology import Link, Topology, presets


def two_nodes(gpus: int = 2) -> Topology:
    n = 2 * gpus
    return Topology(
        name="two",
        hosts=("a", "b"),
        rank_host=tuple(rank // gpus for rank in range(n)),
        links=tuple(
            Link(src=s, dst=d, alpha_us=1.0, beta_us_per_mb=(10.0, 90.0)[s // gpus != d // gpus])
            for s in range(n)
            for d in range(n)
            if s != d
        ),
    )  # fmt: skip


def sketch(**changes: object) -> Sketch:
    return Sketch(**{"name": "mine", "nodes": 2, "intranode": Intranode(),
                     "internode": Internode(), **changes})  # fmt: skip


def pairs(topology: Topology) -> set[tuple[int, int]]:
    return set(topology.link_index)


def test_connections_between_nodes() -> None:
    every = pairs(two_nodes())
    inside = {(0, 1), (1, 0), (2, 3), (3, 2)}
    made = apply_sketch(sketch(internode=Internode(connections={1: (0,)})), two_nodes())
    assert pairs(made.topology) == inside | {(1, 2), (3, 0)}
    made = apply_sketch(sketch(internode=Internode(connections="direct-map")), two_nodes())
    assert pairs(made.topology) == inside | {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert pairs(apply_sketch(sketch(), two_nodes()).topology) == every


def test_a_split_multiplies_beta_between_nodes_only() -> None:
    internode = Internode(beta_split={0: 2.0})
    made = apply_sketch(sketch(internode=internode), two_nodes()).topology
    beta = {pair: made.links[at].beta_us_per_mb for pair, at in made.link_index.items()}
    assert (beta[0, 2], beta[1, 2], beta[0, 1], beta[2, 1]) == (180.0, 90.0, 10.0, 180.0)


def test_a_capacity_that_the_split_shares_out_is_not_charged_twice() -> None:
    """Two GPUs at half the rate of their NIC may send at once; three would exceed it."""
    two = apply_sketch(NAMED["dgx2-sk-2"](2), presets.dgx2(2)).topology
    assert not any("nic" in row.name for row in two.shared)
    three = apply_sketch(NAMED["dgx2-sk-2"](3), presets.dgx2(3)).topology
    assert any("nic" in row.name for row in three.shared)
    whole_nics = apply_sketch(NAMED["dgx2-sk-3"](2), presets.dgx2(2)).topology
    assert any("nic" in row.name for row in whole_nics.shared)


def test_chunks_leave_by_their_relay() -> None:
    internode = Internode(relay=RelayMap(group=2, place=1))
    made = apply_sketch(sketch(internode=internode), two_nodes())
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=4))
    problem = RouteProblem.of(made, deliveries, 1.0)
    costs = problem.costs
    for chunk in range(4):
        links = np.flatnonzero(problem.allowed[chunk])
        leaves = {int(costs.src[at]) for at in links if costs.src[at] // 2 == chunk // 2
                  and costs.dst[at] // 2 != chunk // 2}  # fmt: skip
        assert leaves == {chunk // 2 * 2 + 1}
    table = Internode(senders={1: (0, 1)})
    other = RouteProblem.of(apply_sketch(sketch(internode=table), two_nodes()), deliveries, 1.0)
    assert np.array_equal(problem.allowed, other.allowed)


def test_switches_become_hyperedges_with_ports() -> None:
    intranode = Intranode(strategy=Strategy.SWITCH, switches=((0, 1, 2),), policies=(Policy.AUTO,))
    topology = two_nodes(3)
    made = apply_sketch(sketch(intranode=intranode), topology)
    assert len(made.hyperedges) == 2
    edge = made.hyperedges[0]
    assert edge.chosen(1_000_000) is Policy.MAX
    assert edge.chosen(1_000_001) is Policy.MIN
    ports = {row.name: row for row in made.topology.shared}
    assert set(ports) >= {"switch-0-0-out-0", "switch-0-0-in-2", "switch-1-0-out-3"}
    assert ports["switch-0-0-out-0"].beta_us_per_mb == 10.0
    ends = [made.topology.links[at] for at in ports["switch-0-0-out-0"].links]
    assert {(link.src, link.dst) for link in ends} == {(0, 1), (0, 2)}


def test_ports_that_the_topology_has_are_not_doubled() -> None:
    topology = presets.dgx2(2)
    made = apply_sketch(NAMED["dgx2-sk-1"](2), topology)
    assert {row.name for row in made.topology.shared} <= {row.name for row in topology.shared}


def test_a_sketch_that_cuts_a_rank_off_is_refused_with_a_link() -> None:
    topology = replace(two_nodes(), links=tuple(
        link for link in two_nodes().links if {link.src, link.dst} != {0, 1}
    ))  # fmt: skip
    cut = sketch(internode=Internode(connections={1: (0,)}))
    with pytest.raises(SketchError, match=r"cuts rank 1 off: .* keep a link such as 0 -> \d"):
        apply_sketch(cut, topology)


def test_a_relay_that_strands_a_chunk_is_refused_with_the_chunk() -> None:
    internode = Internode(connections={0: (0, 1)}, senders={1: (0, 1)})
    made = apply_sketch(sketch(internode=internode), two_nodes())
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=4))
    with pytest.raises(SketchError, match="chunk 0 of rank 0 cannot reach rank 2"):
        RouteProblem.of(made, deliveries, 1.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": 3}, "field 'nnodes' is 3, topology 'two' has 2 nodes"),
        (
            {"internode": Internode(connections={2: (0,)})},
            "'internode_sketch.internode_conn' names",
        ),
        ({"internode": Internode(senders={0: (5,)})}, "gpus_to_sender_rev_map' names GPU 5"),
        ({"internode": Internode(relay=RelayMap(group=4, place=3))}, "through GPU 3, nodes have 2"),
        ({"symmetries": (Symmetry(offset=1, group=3),)}, "group size 3 does not divide the 4"),
        ({"symmetries": (Symmetry(automorphism=(1, 0)),)}, "has 2 ranks, topology 'two/mine' has"),
    ],
)
def test_what_does_not_fit_the_topology_is_refused(changes: dict, says: str) -> None:
    with pytest.raises(SketchError, match="^mine: |^mine") as caught:
        apply_sketch(sketch(**changes), two_nodes())
    assert says in str(caught.value)


def test_a_symmetry_that_is_none_of_the_topology_is_refused_with_the_link() -> None:
    lone = Internode(connections={1: (0,)})
    with pytest.raises(SketchError, match=r"no automorphism: link 1 -> 2 has no image 0 -> 3"):
        apply_sketch(sketch(internode=lone, symmetries=(Symmetry(offset=1, group=2),)), two_nodes())
    dear = Internode(beta_split={0: 2.0})
    with pytest.raises(
        SketchError, match=r"\(0 -> 2\) has beta_us_per_mb 180.0, the link it goes to"
    ):
        apply_sketch(sketch(internode=dear, symmetries=(Symmetry(offset=1, group=2),)), two_nodes())
    nics = NAMED["dgx2-sk-3"](2)
    with pytest.raises(SketchError, match=r"shared\[64\] node0-nic-out-0 \(that of link 0 -> 16\)"):
        apply_sketch(replace(nics, symmetries=(Symmetry(offset=1, group=16),)), presets.dgx2(2))


def test_a_symmetry_that_is_none_of_the_collective_is_refused_with_the_chunk() -> None:
    made = apply_sketch(sketch(symmetries=(Symmetry(offset=2, group=4),)), two_nodes())
    deliveries = deliveries_of(Demand(collective=Collective.BROADCAST, ranks=4))
    problem = RouteProblem.of(made, deliveries, 1.0)
    with pytest.raises(SketchError, match="no automorphism of the collective: chunk 0 from rank 0"):
        _ = problem.images


def test_symmetries_act_on_ranks_links_and_chunks() -> None:
    made = apply_sketch(NAMED["dgx2-sk-1"](2), presets.dgx2(2))
    deliveries = deliveries_of(Demand(collective=Collective.ALLGATHER, ranks=32, chunks=2))
    problem = RouteProblem.of(made, deliveries, 2.0)
    assert problem.group.size == 16
    assert list(problem.orbits) == [0, 1, 2, 3]
    for element in range(16):
        ranks, links = problem.group.ranks[element], problem.group.links[element]
        chunks = problem.group.chunks[element]
        assert np.array_equal(problem.costs.src[links], ranks[problem.costs.src])
        assert np.array_equal(deliveries.origin[chunks], ranks[deliveries.origin])
        assert np.array_equal(deliveries.targets[chunks][:, ranks], deliveries.targets)


@pytest.mark.parametrize("name", list(NAMED))
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_named_sketches_fit_their_machines(name: str, nodes: int) -> None:
    topology = (presets.dgx2 if name.startswith("dgx2") else presets.ndv2)(nodes)
    made = apply_sketch(NAMED[name](nodes), topology)
    assert made.topology.ranks == topology.ranks
    assert made.transposed().transposed().topology.links == made.topology.links
