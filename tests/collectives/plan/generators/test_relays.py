"""All-to-all by way of relays: proven, never slower than directly, and what it is good for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.collectives.demand import Collective, Demand
from headrace.collectives.plan.bound import lower_bound
from headrace.collectives.plan.cost import simulate
from headrace.collectives.plan.cost.model import FULL
from headrace.collectives.plan.generators.relays import relayed
from headrace.collectives.plan.generators.templates import direct
from headrace.collectives.plan.ir.chunks import realize
from headrace.collectives.plan.ir.lower import lower
from headrace.collectives.plan.verify import verify
from headrace.collectives.run.synthesis import NativeSearch
from headrace.errors import TopologyError
from headrace.topology import BYTES_PER_MB, Topology, presets
from tests.collectives.plan.tiny import random_topology

ENGINE = NativeSearch()
MIB = 1 << 20


def exchanged(
    topology: Topology, total_bytes: int, *, chunks: int = 1, seed: int = 0, trials: int = 200
) -> tuple[float, float, int]:
    """Return the time of the direct exchange, of the best found, and how many messages that has."""
    demand = Demand(collective=Collective.ALL_TO_ALL, ranks=topology.ranks, chunks=chunks)
    mb = demand.chunk_bytes(total_bytes) / BYTES_PER_MB
    plain = simulate(lower(direct(demand)), topology, total_bytes, model=FULL).total_us
    found = relayed(topology, direct(demand), mb, ENGINE, seed=seed, trials=trials)
    program = lower(realize(demand, found.sends))
    verify(program)
    simulated = simulate(program, topology, total_bytes, model=FULL).total_us
    assert simulated == pytest.approx(found.total_us)
    assert simulated >= lower_bound(topology, demand, total_bytes).total_us * (1 - 1e-9)
    return plain, simulated, int(found.sends.message[-1]) + 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 500),
    ranks=st.integers(3, 6),
    chunks=st.integers(1, 2),
    total_bytes=st.sampled_from([1, 10_000, 10_000_000]),
)
def test_any_network_is_served_no_slower_than_directly(
    seed: int, ranks: int, chunks: int, total_bytes: int
) -> None:
    topology = random_topology(seed, ranks=ranks)
    plain, found, _ = exchanged(topology, total_bytes, chunks=chunks, seed=seed, trials=100)
    if chunks == 1:  # more chunks go as one message directly
        assert found <= plain * (1 + 1e-9)


def test_fewer_messages_over_an_uplink_are_faster() -> None:
    topology = presets.fat_tree((4, 3), oversubscription=4.0)
    plain, found, messages = exchanged(topology, 16 * MIB, trials=1500)
    assert found < plain / 1.001
    assert messages < 12 * 11


def test_equal_seeds_give_equal_sends() -> None:
    topology = presets.fat_tree((3, 2), oversubscription=2.0)
    first, second = (exchanged(topology, MIB, seed=5, trials=300) for _ in range(2))
    assert first == second


def test_unlinked_ranks_are_named() -> None:
    with pytest.raises(TopologyError, match="has no link"):
        exchanged(presets.mesh((2, 2)), MIB)
