from itertools import pairwise

import numpy as np
import pytest

from benchmarks.synthesis.ablations import CONNECTIONS, Made, _forced, instanced
from benchmarks.synthesis.nccl_templates import (
    DGX2,
    NDV2,
    Wiring,
    _two_trees,
    generators,
    peer_to_peer,
    ring,
    tree,
)
from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.ir.chunks import realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.portfolio import plan_collective, predict_us
from headrace.collectives.plan.request import Method
from headrace.collectives.plan.verify import verify
from headrace.topology import Topology, presets

RINGED = (Collective.ALLGATHER, Collective.REDUCE_SCATTER, Collective.ALLREDUCE)
MACHINES = {
    "dgx2-x2": (presets.dgx2(2), DGX2),
    "ndv2-x2": (presets.ndv2(2), NDV2),
    "ndv2-x4": (presets.ndv2(4), NDV2),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> tuple[Topology, Wiring]:
    return MACHINES[request.param]


@pytest.mark.parametrize("collective", RINGED)
def test_rings_are_proven(machine: tuple[Topology, Wiring], collective: Collective) -> None:
    topology, wiring = machine
    parts = 2 * (topology.ranks if collective is Collective.ALLREDUCE else 1)
    demand = Demand(collective=collective, ranks=topology.ranks, chunks=parts)
    channels = min(2, len(wiring.paths))
    verify(lower(ring(demand, wiring, channels, 2 // channels)))


@pytest.mark.parametrize("slices", [1, 3])
def test_trees_are_proven(machine: tuple[Topology, Wiring], slices: int) -> None:
    topology, wiring = machine
    demand = Demand(collective=Collective.ALLREDUCE, ranks=topology.ranks, chunks=2 * slices)
    verify(lower(tree(demand, wiring, 1, slices)))


@pytest.mark.parametrize("slices", [1, 2])
def test_peer_to_peer_is_proven_and_uses_links_that_exist(
    machine: tuple[Topology, Wiring], slices: int
) -> None:
    topology, _ = machine
    demand = Demand(collective=Collective.ALL_TO_ALL, ranks=topology.ranks, chunks=slices)
    program = lower(peer_to_peer(demand, topology, slices))
    verify(program)
    assert predict_us(program, topology, 1 << 20, FULL) > 0  # refuses links that do not exist


@pytest.mark.parametrize("wiring", [DGX2, NDV2])
def test_a_path_passes_every_gpu_once(wiring: Wiring) -> None:
    for path in wiring.paths:
        assert sorted(path) == list(range(len(path)))


def test_rings_of_a_dgx2_enter_and_leave_at_one_nic_each() -> None:
    nics = [(path[0] // 2, path[-1] // 2) for path in DGX2.paths]
    assert nics == [(k, k) for k in range(8)]


def test_the_ring_of_an_ndv2_follows_double_nvlinks() -> None:
    topology = presets.ndv2(1)
    betas = {(k.src, k.dst): k.beta_us_per_mb for k in topology.links}
    assert {betas[pair] for pair in pairwise(NDV2.paths[0])} == {23.0}


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 10])
def test_both_trees_span_the_nodes(nodes: int) -> None:
    for edges in _two_trees(nodes):
        parent = {child: above for above, child in edges}
        (root,) = set(range(nodes)) - set(parent)
        for node in range(nodes):
            steps = 0
            while node != root:
                node, steps = parent[node], steps + 1
                assert steps <= nodes
        assert max(list(parent.values()).count(node) for node in range(nodes)) <= 2


def test_inner_nodes_of_one_tree_are_leaves_of_the_other() -> None:
    inner = [{above for above, _ in edges} for edges in _two_trees(8)]
    assert not inner[0] & inner[1]


def test_large_rings_take_what_their_nics_take() -> None:
    topology, wiring = MACHINES["ndv2-x2"]
    total = 1 << 28
    plan = plan_collective(
        topology,
        Collective.ALLGATHER,
        total,
        generators=generators(wiring)[:1],
        method=Method(model=FULL),
    )
    least = 15 / 16 * total / 1e6 * 106
    assert plan.predicted_us == pytest.approx(least, rel=0.1)
    assert plan.predicted_us >= least


def test_wrong_chunks_and_collectives_are_refused() -> None:
    topology, wiring = MACHINES["ndv2-x2"]
    whole = Demand(collective=Collective.ALLREDUCE, ranks=16, chunks=3)
    exchange = Demand(collective=Collective.ALL_TO_ALL, ranks=16)
    for make in (
        lambda: ring(whole, wiring, 1, 1),
        lambda: tree(whole, wiring, 1, 1),
        lambda: ring(exchange, wiring, 1, 1),
        lambda: tree(exchange, wiring, 1, 1),
        lambda: peer_to_peer(whole, topology, 1),
    ):
        with pytest.raises(ProgramError):
            make()


@pytest.mark.parametrize("connections", CONNECTIONS)
def test_forced_connections_are_as_many(connections: int) -> None:
    assert _forced(connections).connections()[1] == connections


@pytest.mark.parametrize("instances", [2, 4])
def test_instances_multiply_messages_and_keep_bytes(instances: int) -> None:
    made = _forced(2)
    copies = instanced(made, instances)
    assert isinstance(copies, Made)
    assert copies.demand.chunks == instances
    assert copies.sends.message[-1] + 1 == instances * (made.sends.message[-1] + 1)
    pairs = [s.src.astype(np.int64) * 32 + s.dst for s in (made.sends, copies.sends)]
    moved = [np.bincount(pair, minlength=1024) for pair in pairs]
    assert np.array_equal(moved[1], instances * moved[0])
    # Each message pays its alpha: with no data to speak of, n instances take n times as long.
    topology = presets.dgx2(2)
    one, many = (m.us(topology, 1.0) for m in (made, copies))
    assert many == pytest.approx(instances * one, rel=0.35)


def test_algorithms_are_timed_as_programs_are() -> None:
    made, topology = _forced(4), presets.dgx2(2)
    program = lower(realize(made.demand, made.sends))
    assert made.us(topology, 1 << 20) == pytest.approx(predict_us(program, topology, 1 << 20, FULL))
