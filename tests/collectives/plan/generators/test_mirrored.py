"""Allreduce over trees used in both directions: loads, order, proof, and what it is good for."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.errors import ProgramError
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import EXECUTOR, FULL
from headrace.collectives.plan.generators.mirrored import Trees, half_duplex, mirrored, systolic
from headrace.collectives.plan.generators.templates.rows import TEMPLATES
from headrace.collectives.plan.ir.chunks import realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.portfolio import plan_collective
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.synthesis import NativeSearch
from headrace.testbed import TestbedSpec
from headrace.topology import Link, Topology, presets

MIB = 1 << 20


def uneven() -> Topology:
    """Three hosts in a rack, one of them slow, and one host in another."""
    table = {
        "racks": [{"hosts": 3, "uplink_rate": "200mbit"}, {"hosts": 1, "uplink_rate": "100mbit"}],
        "defaults": {"host_rate": "400mbit"},
        "hosts": {"host1": {"rate": "80mbit"}},
    }
    return TestbedSpec.from_table(table).topology([0, 3, 1, 2])


def best(topology: Topology, size: int = MIB, **options: int):
    *_, finest = mirrored(topology, size, NativeSearch(), EXECUTOR, **options)
    return finest


def test_beats_every_template_where_hosts_differ() -> None:
    topology = uneven()
    found = lower(best(topology))
    took = simulate(found, topology, MIB, model=EXECUTOR).total_us
    template = plan_collective(topology, Collective.ALLREDUCE, MIB, generators=TEMPLATES)
    assert took < template.predicted_us
    assert took < 1.03 * lower_bound(topology, found.demand, MIB).total_us


@pytest.mark.sampled(1)
@pytest.mark.parametrize("make", [uneven, lambda: presets.mesh((2, 3)), lambda: presets.ring(3)])
@pytest.mark.parametrize("model", [EXECUTOR, FULL])
def test_proven_and_the_same_again(make, model) -> None:
    topology = make()
    first, again = (
        [lower(s) for s in mirrored(topology, MIB, NativeSearch(), model)] for _ in range(2)
    )
    assert [p.digest for p in first] == [p.digest for p in again]
    for program in first:
        verify(program)
    counts = [program.demand.chunks for program in first]
    assert counts == sorted(set(counts))


def test_chunks_as_asked_or_as_few_as_it_takes() -> None:
    assert best(uneven(), chunk_counts=(12,)).demand.chunks == 12
    assert best(uneven(), max_chunks=1).demand.chunks == 16


def test_half_duplex_shares_with_the_mirror_image() -> None:
    topology = uneven()
    network = half_duplex(topology, latency=False)
    assert all(link.alpha_us == 0.0 for link in network.links)
    ends = [(link.src, link.dst) for link in topology.links]
    for shared in network.shared:
        inside = {ends[i] for i in shared.links}
        assert inside == {(dst, src) for src, dst in inside}
    for shared in topology.shared:
        assert any(
            set(shared.links) < set(both.links) and both.beta_us_per_mb >= shared.beta_us_per_mb
            for both in network.shared
        )
    assert half_duplex(topology).links == topology.links


def test_a_link_without_mirror_image_is_refused() -> None:
    links = tuple(
        Link(src=a, dst=b, alpha_us=1, beta_us_per_mb=9) for a, b in ((0, 1), (1, 2), (2, 0))
    )
    one_way = Topology(name="one-way", hosts=("a",), rank_host=(0, 0, 0), links=links)
    with pytest.raises(ProgramError, match="both directions"):
        best(one_way)


def test_too_many_or_too_few_ranks_are_refused() -> None:
    with pytest.raises(ProgramError, match="too many edges"):
        best(presets.ring(64))
    with pytest.raises(ProgramError, match="nothing to send"):
        best(presets.uniform(1))


@st.composite
def some_trees(draw: st.DrawFn) -> Trees:
    ranks = draw(st.integers(2, 5))
    roots, edges = [], []
    for _ in range(draw(st.integers(1, 6))):
        order = draw(st.permutations(range(ranks)))
        parents = [draw(st.sampled_from(order[:k])) for k in range(1, ranks)]
        roots.append(order[0])
        edges.append(tuple(zip(parents, order[1:], strict=True)))
    return Trees(ranks=ranks, roots=tuple(roots), edges=tuple(edges))


@settings(max_examples=60, deadline=None)
@given(trees=some_trees(), hop=st.integers(0, 5))
def test_any_trees_make_an_allreduce_with_mirrored_loads(trees: Trees, hop: int) -> None:
    sends = systolic(trees, hop)
    demand = Demand(collective=Collective.ALLREDUCE, ranks=trees.ranks, chunks=len(trees.roots))
    verify(lower(realize(demand, sends)))
    moved = Counter(zip(sends.src.tolist(), sends.dst.tolist(), strict=True))
    assert all(moved[src, dst] == moved[dst, src] for src, dst in moved)
    assert moved.total() == 2 * len(trees.roots) * (trees.ranks - 1)
